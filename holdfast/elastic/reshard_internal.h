// The writing of the native target of reshard().
#pragma once

#include "holdfast/elastic/reshard.h"

namespace holdfast {

// The seal of each tensor of the source, by the source's numbers. A step has recorded them;
// those of other sources are computed from their bytes.
Result<std::vector<Seal>> source_seals(const ReshardPlan& plan);

// Writes the run directory of the target, except for its name.
Result<Resharded> write_native(Env& env, const ReshardPlan& plan, const Path& to,
                               const ReshardOptions& options);

// Fails, naming the tensor, unless target and source have the same seals. `of_target` has
// the seals by the numbers of plan.files. Returns how many were compared.
Result<int64_t> compare_seals(const ReshardPlan& plan, std::span<const Seal> of_target);

// Where the files of a target are until it is whole.
struct WorkFolder {
  Path run;    // the run while it is written
  Path files;  // its finished shards
};
WorkFolder work_folder(const Path& to);

// The number of the target's tensor in the source.
TensorId source_tensor(const ReshardPlan& plan, TensorId of_target);

}  // namespace holdfast
