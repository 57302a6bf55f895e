// Copies committed steps to further tiers, on a thread of its own: rank 0's. Each tier
// gets the newest step there is when its turn comes; what it cannot keep up with is left
// out, and a copy that fails is an event and is tried again with the next step. The
// checkpoint in the run directory does not depend on it. What killed processes left in the
// tiers is swept when the thread begins.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/env/event.h"
#include "holdfast/store/tier.h"

namespace holdfast {

struct TierCopy {
  std::shared_ptr<StorageTier> tier;  // shared with whoever restores from it
  int64_t every = 1;                  // every n-th committed step
  // Which of the tier's steps are kept; without a value all are. Steps that are pinned in
  // the run directory stay in any case.
  std::optional<Keep> keep{};
};

// Calls from any threads. The destructor finishes what is due.
class TierCopier {
 public:
  // With `background` off a copy is made inside committed().
  TierCopier(Env& env, const Path& run, std::vector<TierCopy> tiers, EventSink* events,
             bool background);
  ~TierCopier();

  // A step was committed.
  void committed();
  // The step that is being copied, which retention must spare; or empty.
  std::string reading() const;
  // False if copies are still under way at the deadline.
  bool wait_idle(Instant deadline);

 private:
  void sweep();
  void work();
  // Of all commits up to number `count`, of which those up to `before` were looked at.
  void copy_newest(int64_t before, int64_t count);
  void tell_failure(int64_t step, const std::string& tier, const Error& error);
  // Removes what the tier's rules do not keep, and says so.
  void retain_in(const TierCopy& to);

  Env& env_;
  const Path path_;
  const std::unique_ptr<StorageTier> run_;
  const std::vector<TierCopy> tiers_;
  EventSink* const events_;

  mutable Mutex mutex_;
  Condition changed_;
  int64_t committed_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  int64_t copied_ HOLDFAST_GUARDED_BY(mutex_) = 0;  // commits that were looked at
  std::string reading_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace holdfast
