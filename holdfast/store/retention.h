// Which steps are kept, and the removal of the others.
//
// Kept is the union of the rules of a Keep. Whatever they say, the newest whole step
// stays; a step that is not whole counts for no rule and so makes no whole one
// superfluous. A step goes only after all that are kept were found whole.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "holdfast/env/event.h"
#include "holdfast/store/owner.h"
#include "holdfast/store/run.h"

namespace holdfast {

enum class Best { kMin, kMax };

struct Keep {
  int64_t last = 3;   // newest ones; at least one is always kept
  int64_t every = 0;  // steps whose number is a multiple, each as last saved; 0: none
  // Those with the best metric, the newer of equals. Of a step that has no such metric
  // nobody knows how good it is: as many of those, the newest, are kept beside them.
  int64_t best = 0;
  std::string metric{};
  Best order = Best::kMin;
};

// A step as retention sees it.
struct KeptStep {
  StepName name{};
  std::pair<int64_t, int64_t> age{};  // epoch and sequence
  bool whole = true;
  bool pinned = false;
  std::map<std::string, double> metrics{};
};

// Names of the steps to remove, oldest first. Pure. Of steps that are not whole, those
// go that are older than the newest `last` whole ones and not pinned.
std::vector<StepName> what_to_remove(std::span<const KeptStep> steps, const Keep& keep);

// Marks of steps that retention leaves alone, files beside them. kNotFound to pin what
// is not there; unpinning what is not pinned is success.
Result<void> pin(const Run& run, const StepName& step);
Result<void> unpin(const Run& run, const StepName& step);
Result<std::set<StepName>> pinned_steps(const Run& run);

// What retention would remove now, oldest first: what_to_remove with a fast look at those
// steps that would stay. Removes nothing and needs no ownership.
Result<std::vector<StepName>> plan_retention(const Run& run, const Keep& keep);

// Carries retention out. Remembers which steps it has found whole, for they do not
// change. One thread at a time.
class Retention {
 public:
  Retention(const Run& run, const Owner& owner, Keep keep, EventSink* events = nullptr)
      : run_(run), owner_(owner), keep_(std::move(keep)), events_(events) {}

  // Removes what the rules do not keep, except `busy`: what this process reads from or
  // links to. Names of what is gone. Checks ownership first: kConflict if it is lost. A
  // step that cannot be removed is an event and is tried again next time.
  Result<std::vector<StepName>> run(const std::set<StepName>& busy = {});
  // The same for a disk that is full before the next step is saved: removes what the rules
  // will not keep once that step is there. The newest whole step stays in any case.
  Result<std::vector<StepName>> run_ahead(const std::set<StepName>& busy = {});

 private:
  Result<std::vector<StepName>> carry_out(const Keep& keep,
                                          const std::set<StepName>& busy);
  bool is_whole(const StepName& step);
  bool may_go(const StepName& step);
  bool move_away(const StepName& step, Path& trash);
  void tell_failure(const StepName& step, const Error& error);

  Run run_;
  Owner owner_;
  Keep keep_;
  EventSink* events_;
  std::map<StepName, bool> whole_{};
};

}  // namespace holdfast
