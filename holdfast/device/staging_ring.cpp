#include "holdfast/device/staging_ring.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "holdfast/base/checked.h"
#include "holdfast/base/result.h"
#include "holdfast/base/thread_priority.h"

namespace holdfast {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr size_t kPage = 4096;
// So many bytes are in the ring from the beginning, even if blocks are touched ahead.
constexpr int64_t kAtOnce = int64_t{128} << 20;

}  // namespace

StagingRing::StagingRing(RingOptions options)
    : block_(options.block),
      count_(std::max<int64_t>(divide_up(options.bytes, options.block), 2)),
      memory_(reserve(block_ * count_)),
      pinner_(options.pinner) {
  HOLDFAST_CHECK(block_ > 0 && block_ % kDirectAlignment == 0, "block of {} bytes",
                 block_);
  const int64_t at_once = blocks_at_start(options);
  for (int64_t i = at_once; i-- > 0;) give_back(block(i));
  if (at_once == count_) return;
  toucher_ =
      std::jthread([this, at_once, touch = options.touch](const std::stop_token& stop) {
        touch_from(at_once, touch, stop);
      });
}

StagingRing::~StagingRing() {
  toucher_ = std::jthread();  // stops the thread and joins it
  for (int64_t i = 0; i < pinned_; ++i) pinner_->unpin(block(i));
}

// How many blocks are in the ring from the beginning; toucher_ adds the others.
int64_t StagingRing::blocks_at_start(const RingOptions& options) const {
  if (options.pinner != nullptr) return 0;
  if (options.touch == Touch::kWhenUsed) return count_;
  return std::min(count_, divide_up(kAtOnce, block_));
}

ByteSpan StagingRing::block(int64_t i) const {
  return {memory_.get() + i * block_, static_cast<size_t>(block_)};
}

// Touches the blocks from number `first` on, and adds them to the ring. It writes to
// each page instead of asking the system to populate the range, because that call would
// block all other threads of the process that map memory. Pinned blocks are not touched
// at idle priority, because somebody waits for them.
void StagingRing::touch_from(int64_t first, Touch touch, const std::stop_token& stop) {
  if (touch == Touch::kAheadIdly && pinner_ == nullptr) use_idle_scheduling();
  for (int64_t i = first; i < count_ && !stop.stop_requested(); ++i) {
    const ByteSpan touched = block(i);
    for (size_t at = 0; at < touched.size(); at += kPage) touched[at] = std::byte{1};
    pin(touched);
    give_back(touched);
  }
}

void StagingRing::pin(ByteSpan block) {
  if (pinner_ == nullptr || !pins_) return;
  pins_ = pinner_->pin(block).ok();
  if (pins_) ++pinned_;
}

void StagingRing::Free::operator()(std::byte* memory) const { std::free(memory); }

// Asks for huge pages, because touching two gigabytes for the first time in small pages
// takes as long as writing them to disk.
std::unique_ptr<std::byte[], StagingRing::Free> StagingRing::reserve(int64_t bytes) {
  const auto whole = static_cast<size_t>(divide_up(bytes, kHugePage) * kHugePage);
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kHugePage, whole));
  if (memory == nullptr) throw std::bad_alloc();
  // A failure does not matter: huge pages only make it faster.
  static_cast<void>(::madvise(memory, whole, MADV_HUGEPAGE));
  return std::unique_ptr<std::byte[], Free>(memory);
}

ByteSpan StagingRing::take_block() {
  MutexLock lock(mutex_);
  if (free_.empty()) {
    short_ = true;
    calm_.notify_all();
  }
  while (free_.empty()) one_free_.wait(mutex_);
  std::byte* const block = free_.back();
  free_.pop_back();
  return {block, static_cast<size_t>(block_)};
}

std::optional<ByteSpan> StagingRing::try_take_block() {
  MutexLock lock(mutex_);
  if (free_.empty()) return std::nullopt;
  std::byte* const block = free_.back();
  free_.pop_back();
  return ByteSpan(block, static_cast<size_t>(block_));
}

void StagingRing::give_back(ByteSpan block) {
  MutexLock lock(mutex_);
  free_.push_back(block.data());
  one_free_.notify_one();
}

void StagingRing::begin_rush() {
  MutexLock lock(mutex_);
  if (rushes_++ == 0) short_ = false;
}

void StagingRing::end_rush() {
  MutexLock lock(mutex_);
  --rushes_;
  calm_.notify_all();
}

void StagingRing::hold_off() {
  MutexLock lock(mutex_);
  while (rushes_ > 0 && !short_ && !free_.empty()) calm_.wait(mutex_);
}

}  // namespace holdfast
