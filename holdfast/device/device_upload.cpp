#include "holdfast/device/device_upload.h"

#include <algorithm>
#include <cstring>

namespace holdfast {

DeviceUpload::~DeviceUpload() { static_cast<void>(finish()); }

Result<void> DeviceUpload::put(const Device& device, const BoxMemory& to,
                               ByteSpan memory, int64_t first, ByteView from) {
  const auto most = static_cast<size_t>(ring_.block_bytes());
  for (size_t at = 0; at < from.size(); at += most) {
    HOLDFAST_TRY(send(device, to, memory, first + static_cast<int64_t>(at),
                      from.subspan(at, std::min(most, from.size() - at))));
  }
  return {};
}

Result<void> DeviceUpload::send(const Device& device, const BoxMemory& to,
                                ByteSpan memory, int64_t first, ByteView from) {
  const ByteSpan block = take_block();
  std::memcpy(block.data(), from.data(), from.size());
  Result<void> written = device.write(to, memory, first, block.first(from.size()));
  Result<DeviceMark> passed = device.mark();
  if (!passed.ok()) {
    // The device is lost, so nothing reads from the block any more.
    ring_.give_back(block);
    changed_.notify_all();
    return std::move(passed).error();
  }
  add_flight(Flight{block, *std::move(passed)});
  return written;
}

// A free block of the ring. If there is none, this thread first waits for the oldest
// copy of this upload, because this upload may hold all blocks. If no copy is in
// flight, other threads or other users have the blocks; this thread then looks again
// every millisecond, because a thread of this upload may put its block into flight and
// leave.
ByteSpan DeviceUpload::take_block() {
  constexpr auto kLookAgain = std::chrono::milliseconds(1);
  while (true) {
    if (const std::optional<ByteSpan> block = ring_.try_take_block()) return *block;
    if (finish_oldest()) continue;
    MutexLock lock(mutex_);
    if (in_flight_.empty()) changed_.wait_for(mutex_, kLookAgain);
  }
}

void DeviceUpload::add_flight(Flight flight) {
  MutexLock lock(mutex_);
  in_flight_.push_back(std::move(flight));
  changed_.notify_all();
}

// Waits for the oldest copy and gives its block back. False if no copy is in flight.
bool DeviceUpload::finish_oldest() {
  std::optional<Flight> oldest;
  {
    MutexLock lock(mutex_);
    if (in_flight_.empty()) return false;
    oldest = in_flight_.front();
    in_flight_.pop_front();
  }
  Result<void> passed = oldest->passed.wait();
  ring_.give_back(oldest->block);
  changed_.notify_all();
  MutexLock lock(mutex_);
  if (!passed.ok() && !error_.has_value()) error_ = std::move(passed).error();
  return true;
}

Result<void> DeviceUpload::finish() {
  while (finish_oldest()) continue;
  MutexLock lock(mutex_);
  if (error_.has_value()) return *error_;
  return {};
}

}  // namespace holdfast
