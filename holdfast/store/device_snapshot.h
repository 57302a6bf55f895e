// A copy of pieces inside their device's memory: at the speed of that memory, so that the
// tensors may change again after a moment, while the copy goes to the disk.
//
//   1. mark:   training marks its stream (Device::mark), which costs it nothing.
//   2. take(): copies, on the device's own stream, behind that mark. Any thread.
//   3. make_wait(): before the next update, training's stream is made to wait for the
//              copies. No thread waits for the device.
//   4. A ShardWriter stages pieces(); then the snapshot is destroyed.
//
// The memory is taken once and kept, because giving device memory back makes the device
// wait. One snapshot has it at a time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "holdfast/store/device.h"
#include "holdfast/store/shard_writer.h"

namespace holdfast {

class SnapshotRoom;

// Safe from several threads at once.
class DeviceSnapshot {
 public:
  // Gives the room free. Whoever reads pieces() must be done.
  ~DeviceSnapshot();
  DeviceSnapshot(const DeviceSnapshot&) = delete;
  DeviceSnapshot& operator=(const DeviceSnapshot&) = delete;

  // The stream goes on when all is copied. Nobody waits here.
  Result<void> make_wait(CudaStream stream) const;
  // True if all is copied: the tensors may change.
  Result<bool> done() const { return copied_.done(); }
  Result<void> wait() const { return copied_.wait(); }
  const Device& device() const { return copied_.device(); }
  // The same pieces, in the copy.
  const std::vector<PieceToWrite>& pieces() const { return pieces_; }

 private:
  friend class SnapshotRoom;
  DeviceSnapshot(SnapshotRoom& room, std::vector<PieceToWrite> pieces,
                 DeviceMark copied)
      : room_(room), pieces_(std::move(pieces)), copied_(std::move(copied)) {}

  SnapshotRoom& room_;
  std::vector<PieceToWrite> pieces_;
  DeviceMark copied_;
};

struct SnapshotOptions {
  int64_t reserve = int64_t{1} << 30;  // bytes of the device that are left free
  int64_t small = 0;                   // rooms of up to so many bytes need not
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

  // What a snapshot of these pieces needs.
  int64_t bytes_for(std::span<const PieceToWrite> pieces) const;

  // Takes memory for snapshots of up to so many bytes, so that the first one need not.
  // kNoSpace where the device has too little, or a snapshot has the room.
  Result<void> prepare(int64_t bytes);
  // Copies the pieces as they are after `mark`. Pieces of the host, or of another device,
  // are none of its business and stay as they are. kNoSpace as prepare().
  Result<std::unique_ptr<DeviceSnapshot>> take(std::vector<PieceToWrite> pieces,
                                               const DeviceMark& mark);
  // No snapshot has it.
  bool is_free() const;
  // Gives the memory back, unless a snapshot has it; true if so. The device may wait.
  bool give_back();

 private:
  friend class DeviceSnapshot;
  Result<void> claim(int64_t bytes);
  void release();
  Result<DeviceMark> copy(std::span<PieceToWrite> pieces, const DeviceMark& mark);
  Result<void> grow(int64_t bytes) HOLDFAST_REQUIRES(mutex_);

  const Device& device_;
  const SnapshotOptions options_;
  mutable Mutex mutex_;
  ByteSpan memory_ HOLDFAST_GUARDED_BY(mutex_);
  bool taken_ HOLDFAST_GUARDED_BY(mutex_) = false;
};

}  // namespace holdfast
