// Checkpoints of Megatron-LM, which have a file for each rank of tensor and pipeline
// parallelism:
//
//   DIR/latest_checkpointed_iteration.txt               the text "400"
//   DIR/iter_0000400/mp_rank_00_000/model_optim_rng.pt  tensor rank 0, stage 0
//   DIR/iter_0000400/mp_rank_00/model_optim_rng.pt      the same name without stages
//
// open_megatron() reads all files as one state, as if one rank had the whole model:
//
//   model.language_model.encoder.layers.7.mlp.dense_h_to_4h.weight
//       A tensor of the model. Layers are numbered through all stages. Its boxes are the
//       parts that the ranks have (models/rules.h says how they are cut).
//   optimizer.language_model.encoder.layers.7.mlp.dense_h_to_4h.weight.exp_avg
//       Optimizer state by the name of its parameter, and not by a number. The fp32 copy of
//       a weight ends in ".master".
//
// The rows of a fused QKV are ordered by head, as checkpoint_version 2 and newer order
// them, also if the files have an older version. An output layer that is tied to the
// embedding is no tensor of its own: the last stage is one more holder of the embedding, and
// of its optimizer state. The rows of the vocabulary include the pad rows.
//
// Contents::objects is what rank 0 has saved, with these differences: "model" has the
// names above; "optimizer" has no numbers of parameters; and "ranks" has, for each rank, the
// states of its generators. Nothing is ever executed: "args" (a Namespace) is data with the
// key "__class__" (formats/torch_zip.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/env/env.h"
#include "holdfast/models/rules.h"

namespace holdfast {

inline constexpr std::string_view kMegatronFormat = "megatron";
inline constexpr const char* kMegatronFile = "model_optim_rng.pt";

// The folders of the ranks of one iteration.
struct MegatronFolder {
  Path path{};  // such as DIR/iter_0000400
  int64_t tp = 1;
  int64_t pp = 1;
  bool staged = false;  // the names of the ranks have a stage

  // The name of a rank's folder: "mp_rank_01_003".
  std::string rank_name(int64_t tensor, int64_t stage) const;
};

// Finds the newest iteration in a folder, or the iteration whose folder the path is.
// Returns nullopt if the path is something else. Fails with kNotFound, naming the folder,
// if a rank or the newest iteration is missing, and with kUnsupported for files of the
// distributed optimizer and for ranks of experts.
Result<std::optional<MegatronFolder>> find_megatron(Env& env, const Path& path);

struct OpenedMegatron {
  MegatronFolder folder{};
  Contents contents;
  RuleSet rules{};  // those that were given, as with_gates() changes them
  // What is not as in the files, such as the order of rows. For people.
  std::vector<std::string> notes{};
};

// Reads the headers of all files, small objects, and a few values of each master weight,
// which show whether the numbers of the optimizer's state were understood. Failures:
//   kInvalid      a tensor has no rule, or another shape or dtype than on another rank; the
//                 numbers of the optimizer's state leave a doubt about their parameters
//   kUnsupported  interleaved stages, or state of a kind that is not known
//   kCorrupt      as open_torch()
Result<OpenedMegatron> open_megatron(Env& env, const MegatronFolder& folder,
                                     const RuleSet& rules);

// The rules, changed where `args` say that a gate is stored with the weight that it gates.
RuleSet with_gates(RuleSet rules, const Object& objects);

// The version of a checkpoint and the iteration that it was saved after, if it has them.
// Megatron takes a checkpoint without a version for one of version 0.
std::optional<double> megatron_version(const Object& objects);
std::optional<int64_t> megatron_iteration(const Object& objects);
// Whether these are objects of a checkpoint of Megatron, as open_megatron() makes them.
bool is_megatron_objects(const Object& objects);

// Fails with kInvalid unless `tp` divides the attention heads and the query groups that
// `args` tell. More ranks would cut a head.
Result<void> check_megatron_heads(const Object& objects, int64_t tp);

}  // namespace holdfast
