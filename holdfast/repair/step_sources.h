// Opens what a step is mended from. For repair.cpp.
#pragma once

#include "holdfast/repair/repair.h"

namespace holdfast {

class StepSources {
 public:
  // Opens the other checkpoint. A tier that cannot be opened says so when it is asked.
  // `run` is the run directory in which other steps are looked for.
  static Result<std::shared_ptr<const StepSources>> open(Env& env, const Path& run,
                                                         const RepairSources& from);

  CopySources list() const { return sources_; }

 private:
  // Shared, as open_tier() gives it.
  std::vector<std::shared_ptr<StorageTier>> tiers_;
  std::optional<OpenedAny> other_;
  std::vector<std::unique_ptr<CopySource>> sources_;
};

}  // namespace holdfast
