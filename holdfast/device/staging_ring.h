// The staging ring: the memory that a save passes through on its way to the disk, in
// blocks of equal size. It is all that a save holds besides the state itself.
//
// Blocks are taken in any order and given back in any order; who finds none waits until
// one comes back, which is how a slow disk slows down what fills the ring and nothing
// else. Memory is reserved when the ring is made and touched when a block is first used.
//
// Touched ahead, most blocks join the ring only when a thread of its own has touched
// them. Where the system is slow to find and clear pages, a first save then goes on with
// blocks that came back, and is as fast as the disk.
//
// A ring with a pinner is pinned, so that devices fill its blocks by themselves: a block
// joins the ring when the ring's thread has touched and pinned it, one at a time, because
// pinning keeps others from the driver. Where the system does not let it pin more, the rest
// stays as it is, and is slower.
//
// In a rush, when somebody waits for the ring to be filled, those who empty it hold off:
// they would take memory bandwidth and time from who fills it. Unless no block is free.
//
// Threads: all calls are safe at once. The ring must outlive its blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "holdfast/base/bytes.h"
#include "holdfast/base/mutex.h"

namespace holdfast {

// Makes host memory one that a device reads and writes by itself.
class HostPinner {
 public:
  virtual ~HostPinner() = default;
  virtual Result<void> pin(ByteSpan memory) = 0;
  virtual void unpin(ByteSpan memory) = 0;
};

enum class Touch {
  kWhenUsed,
  kAheadIdly,  // with time that nobody else wants
  kAhead,      // soon, because nobody fills the ring yet
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

  // A block, aligned for direct transfers, with any contents. Waits for one.
  ByteSpan take();
  // One that is free now.
  std::optional<ByteSpan> try_take();
  void give_back(ByteSpan block);

  // From one call to the other; they nest.
  void begin_rush();
  void end_rush();
  // Waits while there is a rush and a block is free. For who empties the ring.
  void hold_off();

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  static std::unique_ptr<std::byte[], Free> reserve(int64_t bytes);
  ByteSpan block(int64_t i) const;
  int64_t there_at_once(const RingOptions& options) const;
  void touch_from(int64_t first, Touch touch, const std::stop_token& stop);
  void pin(ByteSpan block);

  const int64_t block_;
  const int64_t count_;
  const std::unique_ptr<std::byte[], Free> memory_;
  HostPinner* const pinner_;
  int64_t pinned_ = 0;  // blocks, the first ones; the thread's
  bool pins_ = true;
  Mutex mutex_;
  Condition one_free_;
  std::vector<std::byte*> free_ HOLDFAST_GUARDED_BY(mutex_);  // the last used is on top
  Condition calm_;
  int rushes_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  bool short_ HOLDFAST_GUARDED_BY(mutex_) = false;  // of blocks, in this rush
  std::jthread toucher_;                            // last: it uses the memory
};

}  // namespace holdfast
