// Models of the GPT and Llama kinds in any size, as Megatron-LM trains them: with its names
// (megatron_rows() of tensor_tables.h) and its fused weights. If the head is tied to the
// embedding, they are one tensor, and output_layer.weight is its alias.
#pragma once

#include <string>

#include "holdfast/models/model.h"

namespace holdfast {

// Megatron pads a vocabulary to a multiple of this, unless told otherwise.
inline constexpr int64_t kVocabularyPad = 128;

// GPT-2 and GPT-3: learned positions, biases everywhere, multi-head attention.
struct GptDims {
  std::string name = "gpt";
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;  // divides hidden
  int64_t vocabulary = 0;
  int64_t positions = 0;
  int64_t inner = 0;  // the inner size of the MLP; 0 means 4 * hidden
  bool tied = true;
};

// Llama and, with experts, Mixtral: RMS norms, grouped-query attention, SwiGLU.
struct LlamaDims {
  std::string name = "llama";
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head = 0;      // size of a head; 0 means hidden / heads
  int64_t inner = 0;     // the inner size of the MLP, or of one expert
  int64_t vocabulary = 0;
  int64_t experts = 0;  // in each layer; 0 for a dense MLP
  bool tied = false;
  bool attention_bias = false;
  bool mlp_bias = false;  // a dense MLP has biases
};

// Both abort on sizes that are not positive or do not divide. Sizes from outside must
// be checked first, as hf_config.h does.
Model make_gpt(const GptDims& dims);
Model make_llama(const LlamaDims& dims);

}  // namespace holdfast
