// Copies host bytes to a device during a restore: first into a pinned block of the
// staging ring, from there to the device.
//
// put() copies the bytes into a block before it returns, so the caller may change them
// then. The device copies the block by itself, and afterwards the block is used again.
// Several threads may call put() at once. Only finish() makes sure that the bytes have
// arrived.
#pragma once

#include <deque>

#include "holdfast/base/mutex.h"
#include "holdfast/device/device.h"

namespace holdfast {

class DeviceUpload {
 public:
  // The ring must outlive this object; it should be pinned, for speed. Others may use
  // it at the same time.
  explicit DeviceUpload(StagingRing& ring) : ring_(ring) {}
  // Waits for the copies that are under way.
  ~DeviceUpload();
  DeviceUpload(const DeviceUpload&) = delete;
  DeviceUpload& operator=(const DeviceUpload&) = delete;

  // Copies a window of the box's bytes (box_stream.h) into memory of the device. Waits
  // only for free blocks.
  Result<void> put(const Device& device, const BoxMemory& to, ByteSpan memory,
                   int64_t first, ByteView from);
  // Waits until all bytes are on the device. Returns the first error of a copy.
  Result<void> finish();

 private:
  // A block that the device copies from until its stream has reached `passed`.
  struct Flight {
    ByteSpan block;
    DeviceMark passed;
  };

  ByteSpan take_block();
  Result<void> send(const Device& device, const BoxMemory& to, ByteSpan memory,
                    int64_t first, ByteView from);
  void add_flight(Flight flight);
  bool finish_oldest();

  StagingRing& ring_;
  Mutex mutex_;
  Condition changed_;
  std::deque<Flight> in_flight_ HOLDFAST_GUARDED_BY(mutex_);
  std::optional<Error> error_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
