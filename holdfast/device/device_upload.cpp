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
    // The device is lost, and with it whoever could still read the block.
    ring_.give_back(block);
    let_go(std::nullopt);
    return std::move(passed).error();
  }
  let_go(Flight{block, *std::move(passed)});
  return written;
}

// Our own blocks come back before anybody waits for another's: they may be all there are. And
// who waits for another's looks again and again, for all others may have gone by then and
// left blocks in flight.
ByteSpan DeviceUpload::take_block() {
  constexpr Duration kLookAgain = std::chrono::milliseconds(1);
  while (true) {
    if (const std::optional<ByteSpan> block = ring_.try_take()) {
      MutexLock lock(mutex_);
      ++in_hand_;
      return *block;
    }
    if (finish_oldest()) continue;
    MutexLock lock(mutex_);
    if (in_flight_.empty()) changed_.wait_for(mutex_, kLookAgain);
  }
}

// A block that is not in anybody's hand any more.
void DeviceUpload::let_go(std::optional<Flight> flight) {
  MutexLock lock(mutex_);
  --in_hand_;
  if (flight.has_value()) in_flight_.push_back(*std::move(flight));
  changed_.notify_all();
}

// False if nothing is under way.
bool DeviceUpload::finish_oldest() {
  std::optional<Flight> oldest;
  {
    MutexLock lock(mutex_);
    if (in_flight_.empty()) return false;
    oldest = in_flight_.front();
    in_flight_.pop_front();
    ++in_hand_;
  }
  Result<void> passed = oldest->passed.wait();
  ring_.give_back(oldest->block);
  let_go(std::nullopt);
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
