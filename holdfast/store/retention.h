// Retention: which steps are kept, and how the others are removed.
//
// A step is kept if any rule of the Keep keeps it. The newest whole step is always
// kept. A step that is not whole does not count for any rule, so it never takes the
// place of a whole one. A step is removed only after all steps that are kept were found
// whole.
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

// A step as retention sees it.
struct KeptStep {
  StepName name{};
  std::pair<int64_t, int64_t> age{};  // epoch and sequence
  bool whole = true;
  bool pinned = false;
  bool temporary = false;
  std::map<std::string, double> metrics{};
};

// Names of the steps to remove, oldest first. A pure function. A step that is not whole
// is removed if it is older than the newest `last` whole steps and is not pinned.
std::vector<StepName> what_to_remove(std::span<const KeptStep> steps, const Keep& keep);

// A pin is a file beside the step that keeps the step from retention. pin() fails with
// kNotFound if the step is not there. unpin() succeeds if the step is not pinned.
Result<void> pin(const Run& run, const StepName& step);
Result<void> unpin(const Run& run, const StepName& step);
Result<std::set<StepName>> pinned_steps(const Run& run);

// What retention would remove now, oldest first: what_to_remove() after a fast check of
// the steps that would stay. Removes nothing and needs no ownership.
Result<std::vector<StepName>> plan_retention(const Run& run, const Keep& keep);

// Carries retention out. Remembers which steps it has found whole, because committed
// steps do not change. Only one thread at a time may use it.
class Retention {
 public:
  Retention(const Run& run, const Owner& owner, Keep keep, EventSink* events = nullptr)
      : run_(run), owner_(owner), keep_(std::move(keep)), events_(events) {}

  // Removes the steps that the rules do not keep, except `busy`: the steps that this
  // process reads from or links to. Returns the names of the removed steps. Checks the
  // ownership first and fails with kConflict if it is lost. If a step cannot be
  // removed, an event says so, and the next call tries again.
  Result<std::vector<StepName>> run(const std::set<StepName>& busy = {});
  // The same for a disk that is full before the next step is saved: removes the steps
  // that the rules will not keep once that step is there. The newest whole step stays
  // in any case.
  Result<std::vector<StepName>> run_ahead(const std::set<StepName>& busy = {});

 private:
  Result<std::vector<StepName>> remove_unkept(const Keep& keep,
                                              const std::set<StepName>& busy);
  Result<bool> is_whole(const StepName& step);
  // Whether no pin mark stands beside the step. If that cannot be told, reports it and
  // returns false, so that the step stays.
  bool has_no_pin(const StepName& step);
  bool move_to_trash(const StepName& step, Path& trash);
  void tell_failure(const StepName& step, const Error& error);

  Run run_;
  Owner owner_;
  Keep keep_;
  EventSink* events_;
  std::map<StepName, bool> whole_{};
};

}  // namespace holdfast
