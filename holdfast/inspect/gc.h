// Retention by hand: what `holdfast gc` does, for a run that nobody writes to.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "holdfast/store/process.h"
#include "holdfast/store/retention.h"

namespace holdfast {

struct GcOptions {
  bool dry_run = false;  // say what would go; takes no ownership and changes nothing
  std::optional<Identity> identity{};  // who does it; this process if not set
};

struct GcResult {
  struct Removed {
    StepName name{};
    // That its removal frees: a file with other names, in a step that stays or anywhere
    // else, takes its room until the last of them goes.
    int64_t bytes = 0;
  };
  std::vector<Removed> removed{};     // oldest first
  std::vector<StepName> kept{};       // newest first
  std::vector<std::string> swept{};   // attempts and the like that crashes left
  std::vector<std::string> failed{};  // what could not be removed, and why
  // Of a dry run: who has the run, so that gc would be refused. What lies beside the
  // steps is then his and not in `swept`.
  std::optional<std::string> in_use_by{};
};

// Owns the run meanwhile: kConflict, with the owner's name, if a live job has it. Lets go
// in the end, also after a failure. kNotFound if it is no run; kInvalid, and nothing is
// changed, if there are steps and none has the metric that the best are chosen by.
Result<GcResult> collect_garbage(Env& env, const Path& run, const Keep& keep,
                                 const GcOptions& options = {});

}  // namespace holdfast
