#include "holdfast/store/device_snapshot.h"

#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

constexpr int64_t kAlignment = 512;  // copies are fastest from such addresses

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

int64_t SnapshotPlaces::room_of(int64_t bytes) {
  return divide_up(bytes, kAlignment) * kAlignment;
}

ByteSpan SnapshotPlaces::next(int64_t bytes) {
  const ByteSpan place = room_.first(static_cast<size_t>(bytes));
  room_ = room_.subspan(static_cast<size_t>(room_of(bytes)));
  return place;
}

int64_t snapshot_bytes(std::span<const PieceToWrite* const> pieces) {
  int64_t bytes = 0;
  for (const PieceToWrite* piece : pieces) {
    bytes += SnapshotPlaces::room_of(piece->bytes());
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

Result<std::unique_ptr<DeviceSnapshot>> SnapshotRoom::take(int64_t bytes,
                                                           const DeviceMark& mark,
                                                           const FillRoom& fill) {
  HOLDFAST_TRY(claim(bytes));
  Result<DeviceMark> copied = copy(mark, fill);
  if (!copied.ok()) {
    release();
    return std::move(copied).error();
  }
  return std::unique_ptr<DeviceSnapshot>(new DeviceSnapshot(*this, *std::move(copied)));
}

Result<std::unique_ptr<DeviceSnapshot>> SnapshotRoom::take(
    std::span<PieceToWrite* const> pieces, const DeviceMark& mark) {
  SnapshotPlaces places;
  const auto fill = [&](Device::InsideCopies& copies,
                        SnapshotPlaces room) -> Result<void> {
    places = room;
    for (const PieceToWrite* piece : pieces) {
      HOLDFAST_TRY(
          copies.add(piece->place(), piece->memory, room.next(piece->bytes())));
    }
    return {};
  };
  auto snapshot = HOLDFAST_TRY(take(snapshot_bytes(pieces), mark, fill));
  for (PieceToWrite* piece : pieces) {
    piece->memory = places.next(piece->bytes());
    piece->map = Map::dense(piece->box, bytes_of(piece->dtype));
  }
  return snapshot;
}

// The room is claimed.
Result<DeviceMark> SnapshotRoom::copy(const DeviceMark& mark, const FillRoom& fill) {
  const ByteSpan room = [&] {
    MutexLock lock(mutex_);
    return memory_;
  }();
  HOLDFAST_TRY(device_.follow(mark));
  Device::InsideCopies copies(device_);
  HOLDFAST_TRY(fill(copies, SnapshotPlaces(room)));
  HOLDFAST_TRY(copies.run());
  return device_.mark();
}

}  // namespace holdfast
