#include "holdfast/checkpoint/device_rooms.h"

#include <algorithm>

namespace holdfast {
namespace {

constexpr size_t kMostRooms = 16;   // small ones, of a device
constexpr size_t kSavesAtOnce = 2;  // for which there is room from the beginning

// Numbers of the device's pieces that are, or are not, to be copied at once.
std::vector<size_t> choose(std::span<const PieceToWrite> pieces, const Device& device,
                           bool at_once) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].device == &device && pieces[i].at_once == at_once)
      chosen.push_back(i);
  }
  return chosen;
}

std::vector<PieceToWrite> pick(std::span<const PieceToWrite> pieces,
                               const std::vector<size_t>& chosen) {
  std::vector<PieceToWrite> picked;
  picked.reserve(chosen.size());
  for (const size_t i : chosen) picked.push_back(pieces[i]);
  return picked;
}

// The chosen pieces lie in the snapshot from now on.
void move_to(const DeviceSnapshot& snapshot, const std::vector<size_t>& chosen,
             std::span<PieceToWrite> pieces) {
  for (size_t i = 0; i < chosen.size(); ++i) {
    PieceToWrite& piece = pieces[chosen[i]];
    piece.memory = snapshot.pieces()[i].memory;
    piece.map = snapshot.pieces()[i].map;
    piece.at_once = true;
  }
}

}  // namespace

Result<void> DeviceShot::make_wait(CudaStream stream, ShardWriter& writer) const {
  for (const Device* device : by_ring_) {
    HOLDFAST_TRY(writer.make_wait(stream, *device));
  }
  return {};
}

Result<std::unique_ptr<DeviceSnapshot>> DeviceRooms::SmallRooms::take(
    const std::vector<PieceToWrite>& pieces, const DeviceMark& mark) {
  for (const auto& room : rooms_) {
    Result<std::unique_ptr<DeviceSnapshot>> snapshot = room->take(pieces, mark);
    const bool full = !snapshot.ok() && snapshot.error().code() == ErrorCode::kNoSpace;
    if (!full) return snapshot;
  }
  if (rooms_.size() == kMostRooms) {
    return no_space("device {}: {} saves have small copies on it", device_.number(),
                    kMostRooms);
  }
  return add().take(pieces, mark);
}

SnapshotRoom& DeviceRooms::SmallRooms::add() {
  return *rooms_.emplace_back(
      std::make_unique<SnapshotRoom>(device_, SnapshotOptions{.reserve = 0}));
}

// Taking device memory makes the device wait, so it is not left to the first save.
void DeviceRooms::SmallRooms::prepare(size_t count, int64_t bytes) {
  if (bytes == 0) return;
  while (rooms_.size() < count) static_cast<void>(add().prepare(bytes));
}

DeviceRooms::Rooms& DeviceRooms::of(const Device& device) {
  std::unique_ptr<Rooms>& rooms = rooms_[&device];
  if (rooms == nullptr) rooms = std::make_unique<Rooms>(device);
  return *rooms;
}

bool DeviceRooms::prepare(std::span<const PieceToWrite> pieces, int64_t probed) {
  bool enough = true;
  for (const Device* device : devices_of(pieces)) {
    Rooms& rooms = of(*device);
    const auto later = pick(pieces, choose(pieces, *device, false));
    const auto now = pick(pieces, choose(pieces, *device, true));
    const int64_t small = rooms.large.bytes_for(now);
    if (rooms.large.prepare(rooms.large.bytes_for(later)).ok()) {
      rooms.small.prepare(kSavesAtOnce, small);
      continue;
    }
    enough = false;
    // One for what is copied at once, two to probe.
    rooms.small.prepare(3 * kSavesAtOnce, std::max(small, std::ssize(later) * probed));
  }
  return enough;
}

Result<std::unique_ptr<DeviceShot>> DeviceRooms::take(std::span<PieceToWrite> pieces,
                                                      CudaStream stream) {
  const std::vector<const Device*> devices = devices_of(pieces);
  if (devices.empty()) return std::unique_ptr<DeviceShot>();
  auto shot = std::make_unique<DeviceShot>();
  for (const Device* device : devices) {
    HOLDFAST_TRY(take_on(*device, pieces, stream, *shot));
  }
  return shot;
}

Result<void> DeviceRooms::take_on(const Device& device, std::span<PieceToWrite> pieces,
                                  CudaStream stream, DeviceShot& shot) {
  const DeviceMark mark = HOLDFAST_TRY(device.mark(stream));
  Rooms& rooms = of(device);
  if (const std::vector<size_t> now = choose(pieces, device, true); !now.empty()) {
    auto snapshot = HOLDFAST_TRY(rooms.small.take(pick(pieces, now), mark));
    HOLDFAST_TRY(snapshot->make_wait(stream));
    move_to(*snapshot, now, pieces);
    shot.snapshots_.push_back(std::move(snapshot));
  }
  const std::vector<size_t> later = choose(pieces, device, false);
  if (later.empty()) return {};
  auto snapshot = rooms.large.take(pick(pieces, later), mark);
  if (snapshot.ok()) {
    HOLDFAST_TRY((*snapshot)->make_wait(stream));
    move_to(**snapshot, later, pieces);
    shot.snapshots_.push_back(*std::move(snapshot));
    return {};
  }
  if (snapshot.error().code() != ErrorCode::kNoSpace) return snapshot.error();
  shot.by_ring_.push_back(&device);
  return device.follow(mark);
}

Result<std::vector<std::unique_ptr<DeviceSnapshot>>> DeviceRooms::probe(
    const std::vector<PieceToWrite>& pieces, CudaStream stream) {
  std::vector<std::unique_ptr<DeviceSnapshot>> snapshots;
  for (const Device* device : devices_of(pieces)) {
    const DeviceMark mark = HOLDFAST_TRY(device->mark(stream));
    snapshots.push_back(HOLDFAST_TRY(of(*device).small.take(pieces, mark)));
    HOLDFAST_TRY(snapshots.back()->make_wait(stream));
  }
  return snapshots;
}

}  // namespace holdfast
