// Steps that only other tiers have, brought back into the run directory.
#pragma once

#include <span>

#include "holdfast/base/event.h"
#include "holdfast/store/run.h"
#include "holdfast/store/tier.h"

namespace holdfast {

using Tiers = std::span<const std::shared_ptr<StorageTier>>;

// Copies a step of a tier into the run directory, made if there is none, checked on the
// way; a copy that is there already, whole, will do. Returns the step's folder there.
// `events` may be null.
Result<Path> fetch_step(Env& env, const Path& run, StorageTier& tier,
                        const TierStep& step, EventSink* events = nullptr);

struct Fetched {
  Path folder{};       // in the run directory; empty: no tier has a newer step
  std::string tier{};  // that it came from
  // Tiers that could not be asked or whose step could not be copied; events too.
  std::vector<SkippedStep> skipped{};
};

// Brings the newest step of the tiers here, unless the run directory has it, or a newer
// one, whole. To be called before the run directory is opened to save into: so a run that
// has lost its directory keeps its id, and counts on from where it was.
//
// Fails as a tier does only if no step is to be had anywhere: the job would begin anew
// beside a checkpoint that nobody could read. kInvalid if a tier is the run directory.
Result<Fetched> fetch_newest(Env& env, const Path& run, Tiers tiers,
                             EventSink* events = nullptr);

}  // namespace holdfast
