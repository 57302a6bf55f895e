// How far a rank is in an exchange. Its threads wait here for each other: receivers wait
// until their lot (own_moves.h) has memory, which is called that it comes up; senders
// wait for boxes that they pass on; and the thread that makes memory waits until earlier
// lots are done. When one thread fails, all waits end.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/env/env.h"

namespace holdfast {

class ExchangeProgress {
 public:
  // All waits end with kTimeout at the deadline.
  ExchangeProgress(Env& env, Instant deadline, uint32_t lots, uint32_t arrivals)
      : env_(env), deadline_(deadline), open_(lots), arrived_(arrivals) {}

  // Keeps the error if it is more likely the cause than the one that is kept so far.
  void fail(const Error& error);
  // The error that is kept; success if nothing failed.
  Result<void> outcome() const;
  const std::atomic<bool>& failed() const { return failed_; }

  // The lots below `lots` have memory.
  void come_up(uint32_t lots);
  uint32_t up() const;
  Result<void> wait_until_up(uint32_t lot);

  // So many bytes of the box have arrived.
  void arrive(uint32_t arrival, int64_t bytes);
  Result<void> wait_for_arrival(uint32_t arrival, int64_t bytes);

  // A lot is open from when it gets memory until all its work is done.
  void add_work(uint32_t lot, int64_t count);
  void finish_work(uint32_t lot, int64_t count = 1);
  // Opens the lot. Waits until it and all open lots together have at most `limit` bytes
  // of new memory, or no lot is open.
  Result<void> open(uint32_t lot, int64_t bytes, int64_t limit);

 private:
  struct Lot {
    int64_t work = 0;
    int64_t bytes = 0;  // if it is open
  };

  // Fails if anything has failed, or at the deadline.
  Result<void> wait_for_change(std::string_view what) HOLDFAST_REQUIRES(mutex_);

  Env& env_;
  const Instant deadline_;
  std::atomic<bool> failed_ = false;
  mutable Mutex mutex_;
  Condition changed_;
  std::optional<Error> error_ HOLDFAST_GUARDED_BY(mutex_);
  uint32_t up_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  std::vector<Lot> open_ HOLDFAST_GUARDED_BY(mutex_);
  int64_t open_bytes_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  std::vector<int64_t> arrived_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
