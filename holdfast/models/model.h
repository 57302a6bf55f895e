// A model as build.h needs it: its tensors in canonical shape, on which pipeline stage
// each belongs, and how tensor and expert parallelism cut each. It has no values, and
// says nothing about devices.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/state/tensor.h"

namespace holdfast {

// Where along the pipeline a parameter belongs.
enum class Site : uint8_t {
  kFirst,  // before the layers, on the first stage: embeddings, the first convolution
  kLayer,  // in the layer Parameter::layer
  kLast,   // after the layers, on the last stage: final norm, head
};

// How T tensor-parallel ranks cut a parameter. For an expert's parameter, T is the
// degree of expert tensor parallelism.
enum class Cut : uint8_t {
  kReplicated,  // not cut: every rank has all of it
  // Cut along dimension `axis`. A fused GLU [2, F, H] is cut along dimension 1: a rank
  // has the box [0:2, a:b, 0:H], which in its memory is its part of gate, then its part
  // of up.
  kAxis,
  // Cut by rows, after padding them to a multiple of pad_multiple * T. A rank may get
  // only padding; it then holds nothing.
  kVocabulary,
  // Cut along dimension `axis`, which has the query heads side by side, as in the
  // projection of the attention's output. If ranks have whole heads (see QkvLayout), a
  // rank has the columns of its query heads.
  kHeads,
  // Cut along dimension `axis`, which has the KV heads side by side, as in a projection
  // of keys or values. If ranks have whole heads, a rank has the KV heads that its query
  // heads use.
  kKvHeads,
  // A fused projection [groups, queries + 2, head, ...]: component c of a group is
  // query head c for c < queries, then the key, then the value. Parallel::qkv says how
  // ranks cut and store it.
  kQkv,
};

// One of the experts of a layer, if each of them has a tensor of its own.
struct ExpertNumber {
  int64_t number = 0;
  int64_t count = 1;  // of all experts of the layer
};

struct Parameter {
  // A tensor of role kParameter, or a buffer or counter, which has no optimizer state
  // and is never sharded. The training's dtype replaces the dtype of a parameter.
  Tensor tensor;
  Site site = Site::kLayer;
  int64_t layer = 0;       // for kLayer, from 0
  bool also_last = false;  // the head is an alias of it, so the last stage holds it too
  bool expert = false;  // dimension 0 counts experts; expert parallelism cuts it first
  // If it is set, the tensor is only this expert, and dimension 0 does not count experts.
  std::optional<ExpertNumber> only{};
  Cut cut = Cut::kReplicated;
  int axis = 0;         // for kAxis, kHeads and kKvHeads
  int64_t groups = 0;   // for kHeads, kKvHeads and kQkv: the number of KV heads
  int64_t queries = 0;  // for the same: query heads for each KV head
  // How many leading canonical dimensions are one dimension, the rows, in the
  // framework's tensor: 3 for a fused QKV, 2 for a fused GLU.
  int rows = 1;
};

struct Model {
  std::string name;
  int64_t layers = 0;   // the blocks that pipeline stages divide
  int64_t experts = 0;  // in each layer; 0 for a dense model
  std::vector<Parameter> parameters;

  // True if some parameter can be cut by tensor parallelism.
  bool can_cut() const;
};

}  // namespace holdfast
