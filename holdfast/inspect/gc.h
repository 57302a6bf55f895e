// Applies retention by hand, as `holdfast gc` does, to a run that no job writes to.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "holdfast/store/process.h"
#include "holdfast/store/retention.h"
#include "holdfast/shared_place/shared_place.h"

namespace holdfast {

struct GcOptions {
  // Only tells what would be removed. Takes no ownership and changes nothing.
  bool dry_run = false;
  // Where jobs leave their state in memory.
  Path memory{kSharedMemory};
  // The process that does it; this process if not set.
  std::optional<Identity> identity{};
};

struct GcResult {
  struct Removed {
    StepName name{};
    // The bytes that the removal of this step frees. A file that has other names, in a
    // step that stays or elsewhere, takes space until its last name is removed.
    int64_t bytes = 0;
  };
  std::vector<Removed> removed{};  // oldest first
  std::vector<StepName> kept{};    // newest first
  // Attempts and other things that crashes have left.
  std::vector<std::string> swept{};
  std::vector<std::string> failed{};  // what could not be removed, and why
  // Folders in shared memory that jobs have left: of this run, if its newest step is on
  // disk, and of runs and boots that are gone ((shared_place/shared_place.h)).
  std::vector<std::string> memory{};
  // Set by a dry run if a live owner has the run, so that gc would be refused. Attempts
  // then belong to that owner and are not in `swept`.
  std::optional<std::string> in_use_by{};
};

// Owns the run while it works and releases it at the end, also after a failure. Fails
// with kConflict, naming the owner, if a live job has the run, and with kNotFound if
// the folder is not a run. Fails with kInvalid, and changes nothing, if there are steps
// and none has the metric of the `best` rule.
Result<GcResult> collect_garbage(Env& env, const Path& run, const Keep& keep,
                                 const GcOptions& options = {});

}  // namespace holdfast
