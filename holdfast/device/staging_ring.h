// The staging ring: memory in blocks of equal size, through which the bytes of a save
// pass on their way to the disk. A save uses no other memory besides the state itself.
//
// Threads take blocks and give them back in any order. A thread that finds no free
// block waits until one comes back. So a slow disk slows down the threads that fill the
// ring, and nothing else. The memory is reserved when the ring is created; the system
// provides its pages when they are first written to ("touched").
//
// A block can be touched when it is first used, or ahead of its use. If touched ahead,
// most blocks join the ring only after a thread of the ring has touched them. Where the
// system is slow to provide pages, the first save then works with the blocks that came
// back, and is as fast as the disk.
//
// A ring with a pinner is pinned, so that devices fill its blocks by themselves. A
// block joins the ring when the ring's thread has touched and pinned it. Blocks are
// pinned one at a time, because pinning blocks other threads' calls of the driver. If
// the system refuses to pin more, the other blocks stay unpinned and are slower.
//
// A rush is a time in which somebody waits for the ring to be filled. During a rush the
// threads that empty the ring pause, because they would take memory bandwidth and
// processor time from the thread that fills it. They do not pause if no block is free.
//
// Threads: all calls are safe from several threads at once. The ring must outlive the
// use of its blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/base/mutex.h"

namespace holdfast {

// Pins host memory, so that a device reads and writes it by itself.
class HostPinner {
 public:
  virtual ~HostPinner() = default;
  virtual Result<void> pin(ByteSpan memory) = 0;
  virtual void unpin(ByteSpan memory) = 0;
};

enum class Touch {
  kWhenUsed,
  kAheadIdly,  // ahead, by a thread that runs only when the processor is idle
  kAhead,      // ahead, as soon as possible
};

struct RingOptions {
  int64_t bytes = int64_t{256} << 20;  // rounded up to whole blocks, two at least
  int64_t block = int64_t{4} << 20;    // a multiple of kDirectAlignment
  Touch touch = Touch::kWhenUsed;
  HostPinner* pinner = nullptr;  // must outlive the ring
};

class StagingRing {
 public:
  explicit StagingRing(RingOptions options);
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  int64_t block_bytes() const { return block_; }
  int64_t blocks() const { return count_; }
  int64_t bytes() const { return block_ * count_; }

  // Takes a block out of the ring, and waits for one if none is free. It is aligned for
  // direct transfers and has any contents.
  ByteSpan take_block();
  // The same without waiting: nothing if no block is free.
  std::optional<ByteSpan> try_take_block();
  void give_back(ByteSpan block);

  // A rush lasts from begin_rush() to end_rush(). Rushes may nest.
  void begin_rush();
  void end_rush();
  // Called by the threads that empty the ring: waits while there is a rush and a block
  // is free.
  void hold_off();

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  static std::unique_ptr<std::byte[], Free> reserve(int64_t bytes);
  ByteSpan block(int64_t i) const;
  int64_t blocks_at_start(const RingOptions& options) const;
  void touch_from(int64_t first, Touch touch, const std::stop_token& stop);
  void pin(ByteSpan block);

  const int64_t block_;
  const int64_t count_;
  const std::unique_ptr<std::byte[], Free> memory_;
  HostPinner* const pinner_;
  int64_t pinned_ = 0;  // the first so many blocks are pinned; only toucher_ changes it
  bool pins_ = true;    // false once the system refused to pin
  Mutex mutex_;
  Condition one_free_;
  std::vector<std::byte*> free_ HOLDFAST_GUARDED_BY(mutex_);  // the last used is last
  Condition calm_;
  int rushes_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  bool short_ HOLDFAST_GUARDED_BY(mutex_) = false;  // no block was free in this rush
  std::jthread toucher_;  // the last member: the thread uses those above
};

}  // namespace holdfast
