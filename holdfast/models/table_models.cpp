// Makes the tensors of a configuration, and the built-in rule sets, from the tables.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "holdfast/models/rules.h"
#include "holdfast/models/tensor_tables.h"

namespace holdfast {
namespace {

// A rule set: the rows of a table that a kind of checkpoint has.
struct Set {
  std::string_view name;
  std::span<const TensorRow> rows;
  std::string_view always = "";  // flags that are set in every such checkpoint
  std::string_view maybe = "";   // flags that are set in some of them
  std::string_view some = "";    // flags of which each layer has some
  bool in_files = false;         // whether TensorRow::in_files counts
};

// The first set that fits a checkpoint counts.
const std::array kSets{
    Set{"hf-gpt2", gpt2_rows()},
    Set{"hf-llama", decoder_rows(), "q kv dense",
        "tied qkv_bias o_bias mlp_bias qk_norm four_norms stored"},
    Set{"hf-mixtral", decoder_rows(), "q kv", "tied qk_norm sparse mixtral stored"},
    Set{"hf-qwen-moe", decoder_rows(), "q kv",
        "tied qkv_bias o_bias qk_norm shared_one stored", "sparse dense one_each"},
    Set{"hf-phi3", decoder_rows(), "fused dense", "tied stored"},
    Set{"hf-deepseek", decoder_rows(), "latent",
        "tied q q_lora latent_bias o_bias mlp_bias score_bias stored",
        "sparse dense one_each shared"},
    Set{"hf-gpt-neox", neox_rows(), "", "tied qkv_bias stored"},
    Set{"hf-opt", opt_rows(), "", "tied bias affine final_norm project"},
    Set{"hf-bert", bert_rows(), "", "tied words pooler sentences labels stored"},
    Set{"hf-vit", vit_rows(), "", "qkv_bias pooler labels"},
    Set{"hf-vit-of-files", vit_rows(), "", "qkv_bias pooler labels", "", true},
    Set{"megatron-gpt", megatron_rows()},
};

// Calls `visit` with each part of a text that is cut at `separator`.
void for_each_part(std::string_view text, char separator, auto visit) {
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

bool has_word(std::string_view words, std::string_view word) {
  bool found = false;
  for_each_part(words, ' ', [&](std::string_view each) { found |= each == word; });
  return found;
}

// The word about the presence of a row in the checkpoints of a set: "" if all of them
// have it, "optional" or "some". Returns nullopt if none has it.
std::optional<std::string_view> presence_of(const TensorRow& row, const Set& set) {
  bool never = false, maybe = false, some = false;
  for_each_part(row.when, ' ', [&](std::string_view flag) {
    const bool expected = !flag.starts_with('!');
    if (!expected) flag.remove_prefix(1);
    const bool open = has_word(set.maybe, flag), in_layers = has_word(set.some, flag);
    maybe |= open;
    some |= in_layers;
    never |= !open && !in_layers && has_word(set.always, flag) != expected;
  });
  if (never) return std::nullopt;
  return some ? "some" : maybe ? "optional" : "";
}

bool applies(const TensorRow& row, const TableValues& values, bool sparse) {
  bool all = true;
  for_each_part(row.when, ' ', [&](std::string_view flag) {
    const bool expected = !flag.starts_with('!');
    if (!expected) flag.remove_prefix(1);
    const bool set = flag == "sparse"  ? sparse
                     : flag == "dense" ? !sparse
                                       : values.flags.contains(flag);
    all &= set == expected;
  });
  return all;
}

// "H" is the size of that name, "2F" is twice a size, and "1" is the number.
int64_t size_of(std::string_view symbol, const TableValues& values) {
  const bool has_factor = '0' <= symbol.front() && symbol.front() <= '9';
  const int64_t factor = has_factor ? symbol.front() - '0' : 1;
  if (has_factor) symbol.remove_prefix(1);
  if (symbol.empty()) return factor;
  const auto found = values.sizes.find(symbol);
  HOLDFAST_CHECK(found != values.sizes.end(), "no size {}", symbol);
  return factor * found->second;
}

Result<Shape> shape_of(const TensorRow& row, const TableValues& values) {
  std::vector<int64_t> sizes;
  for_each_part(row.shape, ',', [&](std::string_view symbol) {
    sizes.push_back(size_of(symbol, values));
  });
  return Shape::create(sizes).within(std::string(row.name));
}

// The name of the tensor: the number of the layer for "#", and the prefix of the table
// unless the name begins with "/".
std::string name_of(const TensorRow& row, int64_t layer, const std::string& prefix) {
  const bool outside = row.name.starts_with('/');
  std::string name = outside ? "" : prefix;
  for (const char c : row.name.substr(outside ? 1 : 0)) {
    name += c == '#' ? std::to_string(layer) : std::string(1, c);
  }
  return name;
}

}  // namespace

std::vector<std::string> rule_set_names() {
  std::vector<std::string> names;
  for (const Set& set : kSets) names.emplace_back(set.name);
  return names;
}

Result<RuleSet> find_rule_set(std::string_view name) {
  const auto found = std::ranges::find(kSets, name, &Set::name);
  if (found == kSets.end()) {
    return not_found("rules \"{}\": not known; expected {}, as-cut or a JSON file",
                     name.substr(0, 80), fmt::join(rule_set_names(), ", "));
  }
  RuleSet set{.name = std::string(name)};
  for (const TensorRow& row : found->rows) {
    const auto presence = presence_of(row, *found);
    if (!presence) continue;
    std::string_view pattern =
        found->in_files && !row.in_files.empty() ? row.in_files : row.name;
    if (pattern.starts_with('/')) pattern.remove_prefix(1);
    const std::string words = std::string(row.words) + " " + std::string(*presence);
    set.rules.push_back(HOLDFAST_TRY(parse_rule(pattern, words)));
  }
  return set;
}

Result<std::vector<NamedTensor>> expand_table(std::span<const TensorRow> rows,
                                              const TableValues& values) {
  std::vector<NamedTensor> tensors;
  const auto add = [&](const TensorRow& row, int64_t layer) -> Result<void> {
    const bool sparse = values.sparse && values.sparse(layer);
    if (row.shape.empty() || !applies(row, values, sparse)) return {};
    NamedTensor each;
    each.tensor.name = name_of(row, layer, values.prefix);
    each.tensor.shape = HOLDFAST_TRY(shape_of(row, values));
    each.words = row.words;
    if (has_word(row.words, "buffer")) each.tensor.role = Role::kBuffer;
    const auto tie = values.ties.find(each.tensor.name);
    if (tie != values.ties.end()) each.tensor.aliases = {tie->second};
    tensors.push_back(std::move(each));
    return {};
  };
  const auto repeated = [](const TensorRow& row) {
    return row.name.find('#') != row.name.npos;
  };
  for (size_t i = 0; i < rows.size();) {
    size_t end = i + 1;
    if (!repeated(rows[i])) {
      HOLDFAST_TRY(add(rows[i], 0));
    } else {
      while (end < rows.size() && repeated(rows[end])) ++end;
      for (int64_t layer = 0; layer < values.layers; ++layer) {
        for (size_t k = i; k < end; ++k) HOLDFAST_TRY(add(rows[k], layer));
      }
    }
    i = end;
  }
  return tensors;
}

}  // namespace holdfast
