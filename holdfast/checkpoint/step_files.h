// A committed step as a layout over its files. A restore makes its plan from it.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/shard/shard_index.h"
#include "holdfast/store/manifest.h"

namespace holdfast {

struct StepFiles {
  Path folder;
  Manifest manifest;
  // Every tensor of the step. Holder number f of the layout is files[f], and the layout
  // says at which offset each piece lies in it.
  Collection collection;
  std::vector<ShardFile> files;
  // The seal of each whole tensor: the sum of the seals that the indexes have for its
  // pieces.
  std::vector<Seal> seals;
  // The seals of the pieces of each file, by their offsets. A piece that was not sealed
  // has none.
  std::vector<std::unordered_map<int64_t, Seal>> piece_seals;
};

// Reads the manifest and the indexes, but not the shards. Fails with kCorrupt if a
// digest is wrong, two shards disagree on a tensor, or a part of a tensor is in no
// shard; with kNotFound if a file is missing.
Result<StepFiles> open_step(Env& env, const Path& folder);

// Reads the objects of a rank; None if none were saved. Without a rank it reads the
// objects that are the same on all ranks.
Result<Object> read_objects(Env& env, const StepFiles& step,
                            std::optional<int> rank = std::nullopt);

// The step as Contents, which all tools of this project read. Every chunk that is read
// is checked against its digest. `env` must outlive the contents.
Result<Contents> open_step_contents(Env& env, const Path& folder);

}  // namespace holdfast
