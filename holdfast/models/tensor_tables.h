// What is known of models by the names of their tensors, in one place: a row says how a
// tensor is called, which shape it has, and how tensor parallelism cuts it. A family of
// models has a table of rows. A configuration of transformers (version 5) gives the sizes
// that the rows name, and says which rows apply (hf_families.h). The rule sets of rules.h
// are made from the same rows, for checkpoints.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/models/named_model.h"

namespace holdfast {

struct TensorRow {
  // A pattern of rules.h. Rows with "#" are repeated for each layer. The prefix of
  // TableValues stands before the name, unless the name begins with "/".
  std::string_view name;
  // Sizes that the configuration gives, such as "V,H". "2F" is twice a size. Empty for a
  // tensor that models of transformers do not have, and checkpoints do.
  std::string_view shape;
  std::string_view words;  // of rules.h: what the tensor is, and how it is cut
  // The flags that must be set, separated by spaces; "!tied" must not be set. The flags
  // "dense" and "sparse" belong to a layer.
  std::string_view when = "";
  // The name in checkpoints, if files keep another one than the models have today.
  std::string_view in_files = "";
};

// Decoders of the Llama kind: Mistral, Qwen, Phi-3, Gemma and DeepSeek.
std::span<const TensorRow> decoder_rows();
std::span<const TensorRow> neox_rows();
std::span<const TensorRow> opt_rows();
std::span<const TensorRow> bert_rows();
std::span<const TensorRow> vit_rows();
std::span<const TensorRow> gpt2_rows();
std::span<const TensorRow> megatron_rows();

// What a configuration says about a table.
struct TableValues {
  int64_t layers = 0;
  std::string prefix{};  // such as "bert.", of a model inside one with a head
  std::map<std::string, int64_t, std::less<>> sizes{};
  std::set<std::string, std::less<>> flags{};
  // True for the layers that have experts.
  std::function<bool(int64_t)> sparse{};
  // The tensor that has another name, too, and that name.
  std::map<std::string, std::string> ties{};
};

// The tensors of the table. Fails with kInvalid on sizes whose product is too large.
Result<std::vector<NamedTensor>> expand_table(std::span<const TensorRow> rows,
                                              const TableValues& values);

}  // namespace holdfast
