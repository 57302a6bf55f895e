// Makes a model from the names and shapes of a framework's tensors. How tensor
// parallelism cuts a tensor follows from its name: the rules know the names that
// transformers, torch, timm and torchtitan use for the projections of attention and of
// MLPs, for embeddings and for heads. So they serve any model, and the configurations of
// hf_config.h too. A tensor that no rule names is not cut.
//
// Layers are found by the numbers in names, such as layers.3. If one list of numbered
// modules has at least half of what all lists have, its members are the layers;
// otherwise the members of all lists are, in order. Within a list they are ordered by
// their numbers. A model without numbers has one layer for each of its outermost modules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holdfast/models/model.h"

namespace holdfast {

struct NamedTensor {
  // With the framework's shape. Other names of the same tensor are its aliases.
  Tensor tensor{};
  bool transposed = false;  // a weight of [inputs, outputs], as in GPT-2's Conv1D
  // How it is cut, in the words of rules.h; if empty, that follows from its name.
  std::string_view words{};
};

// The heads of all attention layers; 0 if they are not known. Then tensor parallelism
// cuts the projections of attention without regard to heads.
struct HeadCounts {
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
};

// kAny is for files, which often have their tensors sorted by name. Then what is called an
// embedding is before the layers, wherever it is listed.
enum class TensorOrder : uint8_t { kOfModel, kAny };

// Fused weights get an axis for their
// components (docs/layouts.md). Fails with kInvalid without parameters, on more than 2^50
// elements, and on a name that is used twice.
Result<Model> model_of_tensors(std::string name, std::vector<NamedTensor> tensors,
                               HeadCounts heads,
                               TensorOrder order = TensorOrder::kOfModel);

}  // namespace holdfast
