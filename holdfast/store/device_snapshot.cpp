#include "holdfast/store/device_snapshot.h"

#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

constexpr int64_t kAlignment = 512;  // copies are fastest from such addresses

int64_t room_of(const PieceToWrite& piece) {
  return divide_up(piece.bytes(), kAlignment) * kAlignment;
}

// The piece as it will be at `memory`.
PieceToWrite moved(const PieceToWrite& piece, ByteView memory) {
  PieceToWrite copy = piece;
  copy.memory = memory;
  copy.map = Map::dense(piece.box, bytes_of(piece.dtype));
  return copy;
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
  memory_ = HOLDFAST_TRY(device_.allocate(bytes, options_.reserve).within("snapshot"));
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

bool SnapshotRoom::give_back() {
  MutexLock lock(mutex_);
  if (taken_) return false;
  if (!memory_.empty()) device_.free(memory_);
  memory_ = {};
  return true;
}

Result<std::unique_ptr<DeviceSnapshot>> SnapshotRoom::take(
    std::span<const PieceToWrite> pieces, const DeviceMark& mark) {
  std::vector<PieceToWrite> copies(pieces.begin(), pieces.end());
  HOLDFAST_TRY(claim(bytes_for(pieces)));
  const auto copy_all = [&]() -> Result<DeviceMark> {
    const ByteSpan room = [&] {
      MutexLock lock(mutex_);
      return memory_;
    }();
    HOLDFAST_TRY(device_.follow(mark));
    size_t at = 0;
    for (PieceToWrite& piece : copies) {
      if (piece.device != &device_) continue;
      const ByteSpan to = room.subspan(at, static_cast<size_t>(piece.bytes()));
      HOLDFAST_TRY(device_.read(piece.place(), piece.memory, 0, to));
      at += static_cast<size_t>(room_of(piece));
      piece = moved(piece, to);
    }
    return device_.mark();
  };
  Result<DeviceMark> copied = copy_all();
  if (!copied.ok()) {
    release();
    return std::move(copied).error();
  }
  return std::unique_ptr<DeviceSnapshot>(
      new DeviceSnapshot(*this, std::move(copies), *std::move(copied)));
}

}  // namespace holdfast
