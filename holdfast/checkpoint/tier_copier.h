// Copies committed steps to further tiers, on a thread of its own on rank 0. Each tier
// gets the step that is newest when the tier's turn comes; a slow tier misses the steps
// in between. A copy that fails emits an event, and the next step is tried as usual.
// The checkpoint in the run directory does not depend on the copies. When the thread
// begins, it removes what killed processes left in the tiers.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/env/event.h"
#include "holdfast/store/tier.h"

namespace holdfast {

// Safe from several threads. The destructor waits for the copies that are due.
class TierCopier {
 public:
  // Without `background`, committed() itself makes the copies.
  TierCopier(Env& env, const Path& run, std::vector<TierCopy> tiers, EventSink* events,
             bool background);
  ~TierCopier();

  // To be called after each commit.
  void committed();
  // The name of the step that is being copied, which retention must not remove; empty
  // if there is none.
  std::string reading() const;
  // False if copies are still under way at the deadline.
  bool wait_idle(Instant deadline);

 private:
  void sweep();
  void work();
  // Copies the newest step to each tier for which a copy became due among the commits
  // number `before` + 1 to `count`.
  void copy_newest(int64_t before, int64_t count);
  void tell_failure(int64_t step, const std::string& tier, const Error& error);
  // Removes the steps that the tier's `keep` does not keep, and emits an event for
  // each.
  void retain_in(const TierCopy& to);

  Env& env_;
  const Path path_;
  const std::unique_ptr<StorageTier> run_;
  const std::vector<TierCopy> tiers_;
  EventSink* const events_;

  mutable Mutex mutex_;
  Condition changed_;
  int64_t committed_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  // How many of the commits have been handled, copied or not.
  int64_t copied_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  std::string reading_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::jthread thread_;  // the last member, because it uses all others
};

}  // namespace holdfast
