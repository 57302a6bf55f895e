// One file of a checkpoint of Megatron: what a rank has saved.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/env/env.h"
#include "holdfast/megatron/objects.h"
#include "holdfast/megatron/optimizer.h"
#include "holdfast/models/rules.h"

namespace holdfast::megatron {

// A value of a rank's model. `path` has the numbers of layers that the rank has.
struct ModelLeaf {
  Leaf leaf{};
  std::optional<TensorId> tensor{};  // in the file; nullopt for an object
};

struct RankFile {
  std::string name{};  // for messages: the path
  Contents contents;
  std::vector<ModelLeaf> model{};
  std::vector<size_t> parameters{};  // the leaves that are tensors
  std::vector<LocalParameter> local{};  // the same ones
  OptimizerState optimizer{};
  bool has_optimizer = false;
  int64_t layers = 0;
};

// Reads headers and the pickle. The rules say which tensors are buffers. Fails like open_torch(), with kUnsupported if the file has
// no model or has interleaved stages, and like name_state().
Result<RankFile> open_rank_file(Env& env, const Path& path, const RuleSet& rules);

// Compares the first values of each weight with those of its master, rounded. They are
// equal unless the numbers of the optimizer mean other parameters. Fails with kInvalid,
// naming the parameter, if they differ.
Result<void> check_masters(const RankFile& file);

}  // namespace holdfast::megatron
