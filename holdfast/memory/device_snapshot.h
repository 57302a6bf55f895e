// A copy of pieces inside their device's memory: at the speed of that memory, so that the
// tensors may change again after a moment, while the copy goes to the disk.
//
//   1. mark:   training marks its stream (Device::mark), which costs it nothing.
//   2. take(): copies, on the device's own stream, behind that mark. Any thread.
//   3. make_wait(): before the next update, training's stream is made to wait for the
//              copies. No thread waits for the device.
//   4. A ShardWriter stages the copies; then the snapshot is destroyed.
//
// The memory is taken once and kept, because giving device memory back makes the device
// wait. One snapshot has it at a time.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "holdfast/device/device.h"
#include "holdfast/memory/local_piece.h"

namespace holdfast {

class SnapshotRoom;

// Safe from several threads at once.
class DeviceSnapshot {
 public:
  // Gives the room free. Whoever reads the copies must be done.
  ~DeviceSnapshot();
  DeviceSnapshot(const DeviceSnapshot&) = delete;
  DeviceSnapshot& operator=(const DeviceSnapshot&) = delete;

  // The stream goes on when all is copied. Nobody waits here.
  Result<void> make_wait(CudaStream stream) const;
  // True if all is copied: the tensors may change.
  Result<bool> done() const { return copied_.done(); }
  Result<void> wait() const { return copied_.wait(); }
  const Device& device() const { return copied_.device(); }

 private:
  friend class SnapshotRoom;
  DeviceSnapshot(SnapshotRoom& room, DeviceMark copied)
      : room_(room), copied_(std::move(copied)) {}

  SnapshotRoom& room_;
  DeviceMark copied_;
};

struct SnapshotOptions {
  int64_t reserve = int64_t{1} << 30;  // bytes of the device that are left free
  int64_t small = 0;                   // rooms of up to so many bytes need not
};

// Where the parts of a snapshot lie in its room, one behind the other.
class SnapshotPlaces {
 public:
  explicit SnapshotPlaces(ByteSpan room = {}) : room_(room) {}
  // The next one, of so many bytes.
  ByteSpan next(int64_t bytes);
  // What a part of so many bytes takes of the room.
  static int64_t room_of(int64_t bytes);

 private:
  ByteSpan room_;
};

// Adds what is to be copied into the places of a room.
using FillRoom = std::function<void(Device::InsideCopies&, SnapshotPlaces)>;

// What is copied into the memory of a room. Serves every snapshot of the same memory.
struct SnapshotPlan {
  int64_t bytes = 0;
  ByteSpan room;
  Device::InsideCopies copies;
};

// The memory for snapshots of one device, which must outlive it. Safe from several threads.
class SnapshotRoom {
 public:
  explicit SnapshotRoom(const Device& device, SnapshotOptions options = {})
      : device_(device), options_(options) {}
  // All snapshots are gone.
  ~SnapshotRoom();
  SnapshotRoom(const SnapshotRoom&) = delete;
  SnapshotRoom& operator=(const SnapshotRoom&) = delete;

  // Takes memory for snapshots of up to so many bytes, so that the first one need not.
  // kNoSpace where the device has too little, or a snapshot has the room.
  Result<void> prepare(int64_t bytes);
  // What `fill` adds, for so many bytes of the room. kNoSpace as prepare().
  Result<SnapshotPlan> plan(int64_t bytes, const FillRoom& fill);
  // Of all of the pieces, which are on this device.
  Result<SnapshotPlan> plan(std::span<LocalPiece* const> pieces);
  // True if no snapshot has the room, and its memory is still that of the plan.
  bool is_ready_for(const SnapshotPlan& plan) const;
  // Copies memory as it is after `mark`. The room is ready for the plan.
  Result<std::unique_ptr<DeviceSnapshot>> take(const SnapshotPlan& plan,
                                               const DeviceMark& mark);
  // Plans and copies the pieces, which point to their copies then.
  Result<std::unique_ptr<DeviceSnapshot>> take(std::span<LocalPiece* const> pieces,
                                               const DeviceMark& mark);
  // No snapshot has it.
  bool is_free() const;
  // Gives the memory back, unless a snapshot has it; true if so. The device may wait.
  bool give_back();

 private:
  friend class DeviceSnapshot;
  void claim(const SnapshotPlan& plan);
  void release();
  bool has_memory_of(const SnapshotPlan& plan) const HOLDFAST_REQUIRES(mutex_);
  Result<void> grow(int64_t bytes) HOLDFAST_REQUIRES(mutex_);

  const Device& device_;
  const SnapshotOptions options_;
  mutable Mutex mutex_;
  ByteSpan memory_ HOLDFAST_GUARDED_BY(mutex_);
  bool taken_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

// What a snapshot of the pieces takes of a room.
int64_t snapshot_bytes(std::span<const LocalPiece* const> pieces);
// Lets the pieces point to their copies, which a plan of all of them has in the room.
void point_to_copies(ByteSpan room, std::span<LocalPiece* const> pieces);

}  // namespace holdfast
