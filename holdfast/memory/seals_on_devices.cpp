#include "holdfast/memory/seals_on_devices.h"

namespace holdfast {
namespace {

// Adds the pieces of the device that it can seal, each as the seal of its number. Returns
// their numbers.
std::vector<size_t> add_pieces(const Device& device, std::span<const LocalPiece> pieces,
                               DeviceSeals& work) {
  std::vector<size_t> added;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const LocalPiece& piece = pieces[i];
    if (piece.device != &device) continue;
    const StridedCopy runs =
        plan_seal(piece.tensor->shape, piece.tensor->dtype, piece.box, piece.map);
    if (work.add(i, runs, piece.memory)) added.push_back(i);
  }
  return added;
}

}  // namespace

void prepare_seals(std::span<const LocalPiece> pieces, size_t count) {
  for (const Device* device : devices_of(pieces)) {
    DeviceSeals work(*device);
    static_cast<void>(add_pieces(*device, pieces, work));
    static_cast<void>(work.prepare(count));
  }
}

SealsOnDevices::SealsOnDevices(std::span<const LocalPiece> pieces) : has_(pieces.size()) {
  for (const Device* device : devices_of(pieces)) begin(*device, pieces);
}

void SealsOnDevices::begin(const Device& device, std::span<const LocalPiece> pieces) {
  DeviceSeals work(device);
  const std::vector<size_t> added = add_pieces(device, pieces, work);
  if (added.empty()) return;
  Result<std::unique_ptr<DeviceSums>> begun = work.begin();
  if (!begun.ok()) return;
  sums_.push_back(*std::move(begun));
  for (const size_t i : added) has_[i] = true;
}

Result<void> SealsOnDevices::finish(std::span<Seal> seals) {
  for (const auto& sums : sums_) {
    const std::vector<Seal> made = HOLDFAST_TRY(sums->wait());
    for (size_t i = 0; i < made.size(); ++i) seals[i] += made[i];
  }
  sums_.clear();
  return {};
}

}  // namespace holdfast
