// A committed step as a layout over its files: what a restore plans from.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "holdfast/formats/contents.h"
#include "holdfast/shard/shard_index.h"
#include "holdfast/store/manifest.h"

namespace holdfast {

struct StepFiles {
  Path folder;
  Manifest manifest;
  // Every tensor of the step; holder f is files[f], whose pieces lie at their offsets.
  Collection collection;
  std::vector<ShardFile> files;
  // The seal of each whole tensor, as its writers summed it up.
  std::vector<Seal> seals;
};

// Reads manifest and indexes; shards are not touched. kCorrupt if a digest is wrong, two
// shards disagree on a tensor, or a part of one is in no shard; kNotFound if a file is
// missing.
Result<StepFiles> open_step(Env& env, const Path& folder);

// What was saved beside the tensors; None if nothing was. `rank` -1 is what is the same
// for all ranks.
Result<Object> read_objects(Env& env, const StepFiles& step, int rank = -1);

// The step as contents that any tool here reads; every byte that is read is checked
// against its chunk's digest. `env` must outlive them.
Result<Contents> open_step_contents(Env& env, const Path& folder);

}  // namespace holdfast
