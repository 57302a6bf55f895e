#include "holdfast/store/staging_ring.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "holdfast/base/check.h"
#include "holdfast/base/checked.h"

namespace holdfast {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;

}  // namespace

StagingRing::StagingRing(RingOptions options)
    : block_(options.block),
      count_(std::max<int64_t>(divide_up(options.bytes, options.block), 2)),
      memory_(reserve(block_ * count_)) {
  HOLDFAST_CHECK(block_ > 0 && block_ % kDirectAlignment == 0, "block of {} bytes",
                 block_);
  for (int64_t i = count_; i-- > 0;) free_.push_back(memory_.get() + i * block_);
}

void StagingRing::Free::operator()(std::byte* memory) const { std::free(memory); }

// Huge pages, because touching two gigabytes for the first time page by page takes as
// long as writing them.
std::unique_ptr<std::byte[], StagingRing::Free> StagingRing::reserve(int64_t bytes) {
  const auto whole = static_cast<size_t>(divide_up(bytes, kHugePage) * kHugePage);
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kHugePage, whole));
  if (memory == nullptr) throw std::bad_alloc();
  static_cast<void>(::madvise(memory, whole, MADV_HUGEPAGE));  // only makes it faster
  return std::unique_ptr<std::byte[], Free>(memory);
}

ByteSpan StagingRing::take() {
  MutexLock lock(mutex_);
  while (free_.empty()) one_free_.wait(mutex_);
  std::byte* const block = free_.back();
  free_.pop_back();
  return {block, static_cast<size_t>(block_)};
}

void StagingRing::give_back(ByteSpan block) {
  MutexLock lock(mutex_);
  free_.push_back(block.data());
  one_free_.notify_one();
}

}  // namespace holdfast
