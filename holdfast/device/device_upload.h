// Restores into device memory: host bytes -> pinned blocks -> device.
//
// What is put is copied into a block at once, so the caller's bytes may change when put()
// returns; the device takes the block by itself, and blocks go round. Readers of several
// threads may put at once. Nothing is known to be there before finish().
#pragma once

#include <deque>

#include "holdfast/base/mutex.h"
#include "holdfast/device/device.h"

namespace holdfast {

class DeviceUpload {
 public:
  // The ring, pinned for speed, must outlive it; others may use it meanwhile.
  explicit DeviceUpload(StagingRing& ring) : ring_(ring) {}
  // Waits for what is under way.
  ~DeviceUpload();
  DeviceUpload(const DeviceUpload&) = delete;
  DeviceUpload& operator=(const DeviceUpload&) = delete;

  // Puts a window of the box's stream (box_stream.h) into memory of the device. Waits only
  // for a block.
  Result<void> put(const Device& device, const BoxMemory& to, ByteSpan memory,
                   int64_t first, ByteView from);
  // Waits until all is there.
  Result<void> finish();

 private:
  struct Flight {
    ByteSpan block;
    DeviceMark passed;
  };

  ByteSpan take_block();
  Result<void> send(const Device& device, const BoxMemory& to, ByteSpan memory,
                    int64_t first, ByteView from);
  void let_go(std::optional<Flight> flight);
  bool finish_oldest();

  StagingRing& ring_;
  Mutex mutex_;
  Condition changed_;
  std::deque<Flight> in_flight_ HOLDFAST_GUARDED_BY(mutex_);
  int in_hand_ HOLDFAST_GUARDED_BY(mutex_) = 0;  // blocks between the two
  std::optional<Error> error_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
