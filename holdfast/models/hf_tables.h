// The tensors of transformers' models, by the names and shapes that its classes have
// (version 5). A family has a table of rows; its configuration gives the sizes that the
// rows name, and says which rows apply.
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
  // "#" stands for the number of the layer. Such rows are repeated for each layer. The
  // prefix of TableValues stands before the name, unless the name begins with "/".
  std::string_view name;
  // Sizes that the configuration gives, such as "V,H". "2F" is twice a size.
  std::string_view shape;
  // The flags that must be set, separated by spaces; "!tied" must not be set. The flags
  // "dense" and "sparse" belong to a layer.
  std::string_view when = "";
  Role role = Role::kParameter;
};

// Decoders of the Llama kind: Mistral, Qwen, Phi-3, Gemma and DeepSeek.
std::span<const TensorRow> decoder_rows();
std::span<const TensorRow> neox_rows();
std::span<const TensorRow> opt_rows();
std::span<const TensorRow> bert_rows();
std::span<const TensorRow> vit_rows();

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
