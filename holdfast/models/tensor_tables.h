// What is known of models by the names of their tensors, in one place: a row says how a
// tensor is called, which shape it has, how tensor parallelism cuts it, which tensor
// belongs to it, and how save_pretrained() calls it. A family of models has a table of
// rows. A configuration of transformers (version 5) gives the sizes that the rows name,
// and says which rows apply (hf_config.h). From the same rows come the built-in models
// (transformers.h), the rule sets for checkpoints (rules.h), what is assumed of modules
// that no table has (named_model.h), and the names in exported files.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/models/named_model.h"
#include "holdfast/models/rules.h"

namespace holdfast {

struct TensorRow {
  // A pattern of rules.h. Rows with "#" are repeated for each layer. The prefix of
  // TableValues stands before the name, unless the name begins with "/".
  std::string name;
  // Sizes that the configuration gives, such as "V,H". "2F" is twice a size. Empty for a
  // tensor that models do not have, and checkpoints do.
  std::string shape;
  std::string words;  // of rules.h: what the tensor is, and how it is cut
  // The flags that must be set, separated by spaces; "!tied" must not be set. The flags
  // "dense" and "sparse" belong to a layer.
  std::string when{};
  // The name that save_pretrained() writes, if it is another one. With "%" each expert has
  // a tensor there, and with two names each of two components has one.
  std::string in_files{};
};

// Decoders of the Llama kind: Mistral, Qwen, Phi-3, Gemma and DeepSeek.
std::span<const TensorRow> decoder_rows();
std::span<const TensorRow> neox_rows();
std::span<const TensorRow> opt_rows();
std::span<const TensorRow> bert_rows();
std::span<const TensorRow> vit_rows();
std::span<const TensorRow> gpt2_rows();
// "classic", "older" and "core" say which of its names apply.
std::span<const TensorRow> megatron_rows();
// The ends of names in models without a table. They have no shapes.
std::span<const TensorRow> module_rows();

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

// Calls `visit` with each word of a text.
void for_each_word(std::string_view text, auto visit, char separator = ' ') {
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    if (end > 0) visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// What all rows agree about that end like this name, as many modules as possible: how a
// module of this name is cut in a model without a table. The axes are those of
// [outputs, inputs]. Nullopt if no row ends like it, or if rows contradict each other.
std::optional<Rule> rule_of_module(std::string_view name);
// Whether the tables have the first of its modules that they know before the layers or
// behind them. For names of tensors outside the layers; nullopt if they know none.
std::optional<Site> site_of_module(std::string_view name);

// The modules of a name: {model, layers, 3, mlp, down_proj}, and whether it is a bias.
struct NameParts {
  std::vector<std::string_view> modules;
  bool bias = false;
};
NameParts parts_of(std::string_view name);

}  // namespace holdfast
