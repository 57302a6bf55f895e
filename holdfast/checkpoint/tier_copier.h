// Copies committed steps to further tiers, on a thread of its own on rank 0. Each tier
// gets the step that is newest when the tier's turn comes; a slow tier misses the steps
// in between. If copies to a tier may be under way only for a share of the time, the
// tier pauses after a copy, and misses the steps until then. A copy that fails emits an
// event, and the next step is tried as usual.
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
  // Without `background`, committed() itself makes the copies. `duty` is the share of
  // the time in which a copy to each tier may be under way.
  TierCopier(Env& env, const Path& run, std::vector<TierCopy> tiers, EventSink* events,
             bool background, double duty = 1);
  ~TierCopier();

  // To be called after each commit.
  void committed();
  // The name of the step that is being copied, which retention must not remove; empty
  // if there is none.
  std::string reading() const;
  // Makes the copies that are due without further pauses. False if some are still under
  // way at the deadline.
  bool wait_idle(Instant deadline);

 private:
  // Whether a tier is to get a copy, and when it may begin.
  struct Turn {
    bool due = false;
    Instant not_before{};
  };

  void sweep();
  void work();
  bool any_due() const HOLDFAST_REQUIRES(mutex_);
  // Whether a copy is due and need not wait.
  bool any_ready() const HOLDFAST_REQUIRES(mutex_);
  bool is_ready(const Turn& turn) const HOLDFAST_REQUIRES(mutex_);
  void wait_for_turn() HOLDFAST_REQUIRES(mutex_);
  // The tiers to copy to now, as places in tiers_.
  std::vector<size_t> take_turns();
  void end_turn(size_t tier, Duration took);
  void copy_newest();
  void copy_to(const TierCopy& to, const TierStep& newest);
  void tell_failure(int64_t step, const std::string& tier, const Error& error);
  // Removes the steps that the tier's `keep` does not keep, and emits an event for
  // each.
  void retain_in(const TierCopy& to);

  Env& env_;
  const Path path_;
  const std::unique_ptr<StorageTier> run_;
  const std::vector<TierCopy> tiers_;
  EventSink* const events_;
  const double duty_;

  mutable Mutex mutex_;
  Condition changed_;
  int64_t committed_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  // For how many of the commits the turns of the tiers were set.
  int64_t noted_ HOLDFAST_GUARDED_BY(mutex_) = 0;
  std::vector<Turn> turns_ HOLDFAST_GUARDED_BY(mutex_);  // one for each tier
  bool hurries_ HOLDFAST_GUARDED_BY(mutex_) = false;     // no more pauses
  std::string reading_ HOLDFAST_GUARDED_BY(mutex_);
  bool stopping_ HOLDFAST_GUARDED_BY(mutex_) = false;
  std::jthread thread_;  // the last member, because it uses all others
};

}  // namespace holdfast
