// A copy of pieces inside their device's memory. The copy runs at the speed of that
// memory, so the tensors may change again after a few milliseconds, while the copy is
// written to disk.
//
//   1. mark:   training marks its stream (Device::mark), which does not wait.
//   2. take(): any thread copies, on another stream, after the marked work.
//   3. make_wait(): before the next update, training's stream is made to wait for the
//              copies. No thread waits for the device.
//   4. A ShardWriter stages the copies; then the snapshot is destroyed.
//
// The memory is allocated once and kept, because freeing device memory makes the device
// wait. One snapshot uses it at a time.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "holdfast/device/device.h"
#include "holdfast/memory/local_state.h"

namespace holdfast {

class SnapshotRoom;

// Safe from several threads at once.
class DeviceSnapshot {
 public:
  // Frees the room for the next snapshot. Nobody may read the copies any more.
  ~DeviceSnapshot();
  DeviceSnapshot(const DeviceSnapshot&) = delete;
  DeviceSnapshot& operator=(const DeviceSnapshot&) = delete;

  // Makes the stream wait on the device until all is copied. Returns at once.
  Result<void> make_wait(CudaStream stream) const;
  // True if all is copied, so that the tensors may change.
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
  int64_t reserve = int64_t{1} << 30;  // bytes of the device's memory to leave free
  int64_t small = 0;  // rooms of up to this many bytes may use the reserve
};

// Hands out places for the parts of a snapshot in its room, one behind the other.
class SnapshotPlaces {
 public:
  explicit SnapshotPlaces(ByteSpan room = {}) : room_(room) {}
  // The next place, of `bytes` bytes.
  ByteSpan next(int64_t bytes);
  // How many bytes of the room a part of `bytes` bytes uses; parts are aligned.
  static int64_t room_of(int64_t bytes);

 private:
  ByteSpan room_;
};

// Adds the copies to make, each into its place in the room.
using FillRoom = std::function<void(Device::InsideCopies&, SnapshotPlaces)>;

// The copies that fill the memory of a room. A plan can be used again for as long as
// the tensors and the room's memory stay where they are.
struct SnapshotPlan {
  int64_t bytes = 0;
  ByteSpan room;
  Device::InsideCopies copies;
};

// The memory for snapshots of one device. The device must outlive the room. Safe from
// several threads.
class SnapshotRoom {
 public:
  explicit SnapshotRoom(const Device& device, SnapshotOptions options = {})
      : device_(device), options_(options) {}
  // All snapshots in the room must be destroyed before it.
  ~SnapshotRoom();
  SnapshotRoom(const SnapshotRoom&) = delete;
  SnapshotRoom& operator=(const SnapshotRoom&) = delete;

  // Allocates memory for snapshots of up to `bytes` bytes, so that the first one need
  // not do it. Fails with kNoSpace if the device has too little memory, or a snapshot
  // uses the room.
  Result<void> prepare(int64_t bytes);
  // Plans the copies that `fill` adds, into `bytes` bytes of the room. Fails as
  // prepare() does.
  Result<SnapshotPlan> plan(int64_t bytes, const FillRoom& fill);
  // Plans to copy all of the pieces. They must be on this device.
  Result<SnapshotPlan> plan(std::span<LocalPiece* const> pieces);
  // True if no snapshot uses the room, and its memory is the one that the plan was made
  // for.
  bool is_ready_for(const SnapshotPlan& plan) const;
  // Copies the memory as it is after `mark`. The room must be ready for the plan.
  Result<std::unique_ptr<DeviceSnapshot>> take(const SnapshotPlan& plan,
                                               const DeviceMark& mark);
  // Plans and copies the pieces. Afterwards the pieces point to their copies.
  Result<std::unique_ptr<DeviceSnapshot>> take(std::span<LocalPiece* const> pieces,
                                               const DeviceMark& mark);
  // True if no snapshot uses the room.
  bool is_free() const;
  // Frees the memory, which may make the device wait. Returns false, and frees nothing,
  // if a snapshot uses it.
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

// How many bytes of a room a snapshot of the pieces uses.
int64_t snapshot_bytes(std::span<const LocalPiece* const> pieces);
// Makes the pieces point to their copies, which lie in the room as plan(pieces) put
// them.
void point_to_copies(ByteSpan room, std::span<LocalPiece* const> pieces);

}  // namespace holdfast
