#include "holdfast/memory/device_snapshot.h"

#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

constexpr int64_t kAlignment = 512;  // devices copy fastest from aligned addresses

}  // namespace

DeviceSnapshot::~DeviceSnapshot() {
  static_cast<void>(wait());  // the device may still be writing into the room
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

int64_t snapshot_bytes(std::span<const LocalPiece* const> pieces) {
  int64_t bytes = 0;
  for (const LocalPiece* piece : pieces) {
    bytes += SnapshotPlaces::room_of(piece->bytes());
  }
  return bytes;
}

Result<void> SnapshotRoom::prepare(int64_t bytes) {
  MutexLock lock(mutex_);
  if (taken_)
    return no_space("device {}: a snapshot uses the room; expected it to be free",
                    device_.number());
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

bool SnapshotRoom::has_memory_of(const SnapshotPlan& plan) const {
  return memory_.data() == plan.room.data() && memory_.size() == plan.room.size();
}

bool SnapshotRoom::is_ready_for(const SnapshotPlan& plan) const {
  MutexLock lock(mutex_);
  return !taken_ && has_memory_of(plan);
}

void SnapshotRoom::claim(const SnapshotPlan& plan) {
  MutexLock lock(mutex_);
  HOLDFAST_CHECK(!taken_ && has_memory_of(plan), "a plan for another room");
  taken_ = true;
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

Result<SnapshotPlan> SnapshotRoom::plan(int64_t bytes, const FillRoom& fill) {
  HOLDFAST_TRY(prepare(bytes));
  SnapshotPlan plan{
      .bytes = bytes, .room = {}, .copies = Device::InsideCopies(device_)};
  {
    MutexLock lock(mutex_);
    plan.room = memory_;
  }
  fill(plan.copies, SnapshotPlaces(plan.room));
  return plan;
}

Result<SnapshotPlan> SnapshotRoom::plan(std::span<LocalPiece* const> pieces) {
  const auto fill = [&](Device::InsideCopies& copies, SnapshotPlaces room) {
    for (const LocalPiece* piece : pieces) {
      copies.add(piece->place(), piece->memory, room.next(piece->bytes()));
    }
  };
  return plan(snapshot_bytes(pieces), fill);
}

void point_to_copies(ByteSpan room, std::span<LocalPiece* const> pieces) {
  SnapshotPlaces places(room);
  for (LocalPiece* piece : pieces) {
    piece->memory = places.next(piece->bytes());
    piece->map = Map::dense(piece->box, bytes_of(piece->tensor->dtype));
  }
}

Result<std::unique_ptr<DeviceSnapshot>> SnapshotRoom::take(
    std::span<LocalPiece* const> pieces, const DeviceMark& mark) {
  const SnapshotPlan planned = HOLDFAST_TRY(plan(pieces));
  auto snapshot = HOLDFAST_TRY(take(planned, mark));
  point_to_copies(planned.room, pieces);
  return snapshot;
}

Result<std::unique_ptr<DeviceSnapshot>> SnapshotRoom::take(const SnapshotPlan& plan,
                                                           const DeviceMark& mark) {
  claim(plan);
  const auto copy = [&]() -> Result<DeviceMark> {
    HOLDFAST_TRY(device_.follow(mark));
    HOLDFAST_TRY(plan.copies.run());
    return device_.mark();
  };
  Result<DeviceMark> copied = copy();
  if (!copied.ok()) {
    release();
    return std::move(copied).error();
  }
  return std::unique_ptr<DeviceSnapshot>(new DeviceSnapshot(*this, *std::move(copied)));
}

}  // namespace holdfast
