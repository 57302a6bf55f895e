// A model as the layout builders see it: its tensors in canonical shape, where each
// stands along the pipeline, and how tensor and expert parallelism cut it. No values,
// no placement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "holdfast/state/tensor.h"

namespace holdfast {

// Where along the pipeline a parameter belongs.
enum class Site : uint8_t {
  kFirst,  // before the layers: embeddings, a stem; on the first stage
  kLayer,  // in Parameter::layer
  kLast,   // after the layers: final norm, head; on the last stage
};

// How T tensor-parallel ranks cut a parameter (for an expert's: the T of expert TP).
enum class Cut : uint8_t {
  kReplicated,  // everybody has all of it
  // Along dimension `axis`. A fused GLU [2, F, H] is cut along 1: a rank has the box
  // [0:2, a:b, 0:H], which in its memory is gate_t followed by up_t.
  kAxis,
  // Rows, after padding them to a multiple of pad_multiple * T. A rank may have padding
  // only, and then holds nothing.
  kVocabulary,
  // Dimension `axis` is the query heads side by side: what reads the attention's
  // output. Follows the query heads of kQkv where those are cut whole.
  kHeads,
  // A fused projection [groups, queries + 2, head, ...]: component c of a group is
  // query head c for c < queries, then the key, then the value. Parallel::qkv says how
  // ranks lay it out.
  kQkv,
};

struct Parameter {
  // Role kParameter, or a buffer or counter, which gets no optimizer state and is never
  // sharded. A parameter's dtype is replaced by that of the training.
  Tensor tensor;
  Site site = Site::kLayer;
  int64_t layer = 0;       // for kLayer, from 0
  bool also_last = false;  // tied to the head: the last stage holds it too
  bool expert = false;  // dimension 0 is the experts, cut by expert parallelism first
  Cut cut = Cut::kReplicated;
  int axis = 0;         // for kAxis and kHeads
  int64_t groups = 0;   // for kHeads and kQkv: KV heads
  int64_t queries = 0;  // for kHeads and kQkv: query heads of a group
  // Leading canonical dimensions that are one dimension, the rows, in a rank's memory:
  // 3 for a fused QKV, 2 for a fused GLU.
  int rows = 1;
};

struct Model {
  std::string name;
  int64_t layers = 0;   // what pipeline stages divide: blocks
  int64_t experts = 0;  // a layer; 0 for a dense model
  std::vector<Parameter> parameters;

  // Elements of role kParameter; tied ones count once, buffers not at all.
  int64_t parameter_count() const;
  // True if some parameter can be cut by tensor parallelism.
  bool can_cut() const;
};

}  // namespace holdfast
