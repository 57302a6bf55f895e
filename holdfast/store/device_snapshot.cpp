#include "holdfast/store/device_snapshot.h"

#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

constexpr int64_t kAlignment = 512;  // copies are fastest from such addresses

int64_t room_of(const PieceToWrite& piece) {
  return divide_up(piece.bytes(), kAlignment) * kAlignment;
}

}  // namespace

DeviceSnapshot::~DeviceSnapshot() {
  static_cast<void>(wait());  // the room is still being written to
  room_.release();
}

Result<void> DeviceSnapshot::make_wait(CudaStream stream) const {
  return copied_.device().make_wait(stream, copied_);
}

SnapshotRoom::~SnapshotRoom() {
  HOLDFAST_CHECK(give_back(), "a snapshot outlives its room");
}

int64_t SnapshotRoom::bytes_for(std::span<const PieceToWrite> pieces) const {
  int64_t bytes = 0;
  for (const PieceToWrite& piece : pieces) {
    if (piece.device == &device_) bytes += room_of(piece);
  }
  return bytes;
}

Result<void> SnapshotRoom::prepare(int64_t bytes) {
  MutexLock lock(mutex_);
  if (taken_) return no_space("device {}: a snapshot has the room", device_.number());
  return grow(bytes);
}

Result<void> SnapshotRoom::grow(int64_t bytes) {
  if (static_cast<int64_t>(memory_.size()) >= bytes) return {};
  if (!memory_.empty()) device_.free(memory_);
  memory_ = {};
  const int64_t reserve = bytes > options_.small ? options_.reserve : 0;
  memory_ = HOLDFAST_TRY(device_.allocate(bytes, reserve).within("snapshot"));
  return {};
}

Result<void> SnapshotRoom::claim(int64_t bytes) {
  HOLDFAST_TRY(prepare(bytes));
  MutexLock lock(mutex_);
  if (taken_) return no_space("device {}: a snapshot has the room", device_.number());
  taken_ = true;
  return {};
}

void SnapshotRoom::release() {
  MutexLock lock(mutex_);
  taken_ = false;
}

bool SnapshotRoom::is_free() const {
  MutexLock lock(mutex_);
  return !taken_;
}

bool SnapshotRoom::give_back() {
  MutexLock lock(mutex_);
  if (taken_) return false;
  if (!memory_.empty()) device_.free(memory_);
  memory_ = {};
  return true;
}

Result<std::unique_ptr<DeviceSnapshot>> SnapshotRoom::take(
    std::vector<PieceToWrite> pieces, const DeviceMark& mark) {
  HOLDFAST_TRY(claim(bytes_for(pieces)));
  Result<DeviceMark> copied = copy(pieces, mark);
  if (!copied.ok()) {
    release();
    return std::move(copied).error();
  }
  return std::unique_ptr<DeviceSnapshot>(
      new DeviceSnapshot(*this, std::move(pieces), *std::move(copied)));
}

// Lets the pieces point to where their copies will be. The room is claimed.
Result<DeviceMark> SnapshotRoom::copy(std::span<PieceToWrite> pieces,
                                      const DeviceMark& mark) {
  ByteSpan room = [&] {
    MutexLock lock(mutex_);
    return memory_;
  }();
  std::vector<Device::Copy> copies;
  copies.reserve(pieces.size());
  for (PieceToWrite& piece : pieces) {
    if (piece.device != &device_) continue;
    const ByteSpan to = room.first(static_cast<size_t>(piece.bytes()));
    copies.push_back({.from = piece.place(), .memory = piece.memory, .into = to});
    room = room.subspan(static_cast<size_t>(room_of(piece)));
    piece.memory = to;
    piece.map = Map::dense(piece.box, bytes_of(piece.dtype));
  }
  HOLDFAST_TRY(device_.follow(mark));
  HOLDFAST_TRY(device_.copy_inside(copies));
  return device_.mark();
}

}  // namespace holdfast
