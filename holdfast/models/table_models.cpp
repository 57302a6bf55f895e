// Makes the tensors of a configuration, and the built-in rule sets, from the tables.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <ranges>
#include <set>

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
  // Whether tensors that all such checkpoints have are called as in TensorRow::in_files.
  // Tensors that only some of them have may have either name.
  bool in_files = false;
};

// The first set that fits a checkpoint counts.
const std::array kSets{
    Set{"hf-gpt2", gpt2_rows(), "", "tied stored"},
    Set{"hf-llama", decoder_rows(), "q kv dense",
        "tied qkv_bias o_bias mlp_bias qk_norm four_norms stored"},
    Set{"hf-mixtral", decoder_rows(), "q kv mixtral", "tied qk_norm sparse stored"},
    Set{"hf-qwen-moe", decoder_rows(), "q kv",
        "tied qkv_bias o_bias qk_norm shared_one stored", "sparse dense"},
    Set{"hf-phi3", decoder_rows(), "fused dense", "tied stored"},
    Set{"hf-deepseek", decoder_rows(), "latent",
        "tied q q_lora latent_bias o_bias mlp_bias score_bias stored",
        "sparse dense shared"},
    Set{"hf-gpt-neox", neox_rows(), "", "tied qkv_bias stored"},
    Set{"hf-opt", opt_rows(), "", "tied bias affine final_norm project"},
    Set{"hf-bert", bert_rows(), "", "tied words pooler sentences labels stored"},
    Set{"hf-vit", vit_rows(), "", "qkv_bias pooler labels"},
    Set{"hf-vit-of-files", vit_rows(), "", "qkv_bias pooler labels", "", true},
    Set{"megatron-gpt", megatron_rows(), "dense",
        "classic older core norm_bias attention_bias mlp_bias positions tied"},
};

bool has_word(std::string_view words, std::string_view word) {
  bool found = false;
  for_each_word(words, [&](std::string_view each) { found |= each == word; });
  return found;
}

// The word about the presence of a row in the checkpoints of a set: "" if all of them
// have it, "optional" or "some". Returns nullopt if none has it.
std::optional<std::string_view> presence_of(const TensorRow& row, const Set& set) {
  bool never = false, maybe = false, some = false;
  for_each_word(row.when, [&](std::string_view flag) {
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
  for_each_word(row.when, [&](std::string_view flag) {
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
  for_each_word(
      row.shape,
      [&](std::string_view symbol) { sizes.push_back(size_of(symbol, values)); }, ',');
  return Shape::create(sizes).within(row.name);
}

std::string_view without_slash(std::string_view name) {
  return name.substr(name.starts_with('/') ? 1 : 0);
}

// The name of the tensor: the number of the layer for "#", and the prefix of the table
// unless the name begins with "/".
std::string name_of(const TensorRow& row, int64_t layer, const std::string& prefix) {
  std::string name = row.name.starts_with('/') ? "" : prefix;
  for (const char c : without_slash(row.name)) {
    name += c == '#' ? std::to_string(layer) : std::string(1, c);
  }
  return name;
}

// Adds the rules of a row for its own name and for those in files.
Result<void> add_rules(const TensorRow& row, const Set& kind, RuleSet& set) {
  const auto presence = presence_of(row, kind);
  if (!presence) return {};
  const Rule rule = HOLDFAST_TRY(parse_rule(without_slash(row.name),
                                            fmt::format("{} {}", row.words, *presence)));
  const bool either = !rule.required;
  if (row.in_files.empty() || either || !kind.in_files) {
    set.rules.push_back(rule);
    for_each_word(row.in_files, [&](std::string_view name) {
      std::string& names = set.rules.back().in_files;
      names += fmt::format("{}{}", names.empty() ? "" : " ", without_slash(name));
    });
  }
  if (!either && !kind.in_files) return {};
  for_each_word(row.in_files, [&](std::string_view name) {
    Rule& stored = set.rules.emplace_back(rule);
    stored.pattern = without_slash(name);
    if (stored.pattern.find('%') == stored.pattern.npos) return;
    stored.stacked = false;
    stored.parts = 1;
  });
  return {};
}

auto all_tables() {
  return std::array{decoder_rows(), neox_rows(), opt_rows(),  bert_rows(),
                    vit_rows(),     gpt2_rows(), megatron_rows()};
}

// What both rules say. Nullopt if they cut along different axes.
std::optional<Rule> common_rule(Rule a, const Rule& b) {
  if (a.cut != b.cut || a.axis != b.axis) return std::nullopt;
  if (a.with.empty()) a.with = b.with;
  if (a.is_fused_qkv() && b.is_fused_qkv()) return a;
  a.parts = std::min(a.parts, b.parts);
  if (a.heads == HeadKind::kOtherSize) a.heads = b.heads;
  if (b.heads != HeadKind::kOtherSize && a.heads != b.heads) a.heads = HeadKind::kNone;
  return a;
}

// Rules by the ends of names, such as "self_attn.q_proj" and "q_proj". A number is "#".
using ModuleRules = std::map<std::string, std::optional<Rule>, std::less<>>;

void add_module(const Rule& rule, const std::string& end, ModuleRules& rules) {
  const auto [known, is_new] = rules.emplace(end, rule);
  if (!is_new && known->second) known->second = common_rule(*known->second, rule);
}

// The ends of a name, the longest first.
std::vector<std::string> ends_of(const NameParts& parts) {
  std::vector<std::string> ends;
  std::string end;
  for (const std::string_view module : std::views::reverse(parts.modules)) {
    const bool number = module.find_first_not_of("0123456789") == module.npos;
    end = (number ? "#" : std::string(module)) + (end.empty() ? "" : "." + end);
    ends.insert(ends.begin(), end);
  }
  return ends;
}

void add_modules(const TensorRow& row, std::string_view name, ModuleRules& rules) {
  const NameParts parts = parts_of(without_slash(name));
  Rule rule = parse_words(row.words).value();
  if (rule.transposed) rule.axis = 1 - rule.axis;
  rule.transposed = false;
  // The bias of a module is cut as its weight says.
  const std::vector<std::string> ends = ends_of(parts);
  if (parts.bias && rules.contains(ends.front())) return;
  const bool whole = name.starts_with('/');
  for (const std::string& end : ends) {
    if (!whole || end == ends.front()) add_module(rule, end, rules);
  }
}

ModuleRules make_module_rules() {
  ModuleRules rules;
  for (const auto& table : all_tables()) {
    for (const TensorRow& row : table) {
      add_modules(row, row.name, rules);
      for_each_word(row.in_files,
                    [&](std::string_view name) { add_modules(row, name, rules); });
    }
  }
  for (const TensorRow& row : module_rows()) {
    add_module(parse_words(row.words).value(), row.name, rules);
  }
  return rules;
}

std::map<std::string, Site, std::less<>> make_outer_modules() {
  std::map<std::string, Site, std::less<>> sites;
  const auto add = [&](std::span<const TensorRow> table) {
    for (const TensorRow& row : table) {
      const Site site = parse_words(row.words).value().site;
      const NameParts parts = parts_of(without_slash(row.name));
      if (site != Site::kLayer) sites.emplace(parts.modules.front(), site);
    }
  };
  for (const auto& table : all_tables()) add(table);
  add(module_rows());
  return sites;
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
  for (const TensorRow& row : found->rows) HOLDFAST_TRY(add_rules(row, *found, set));
  return set;
}

NameParts parts_of(std::string_view name) {
  NameParts parts;
  while (true) {
    const size_t dot = name.find('.');
    parts.modules.push_back(name.substr(0, dot));
    if (dot == name.npos) break;
    name.remove_prefix(dot + 1);
  }
  std::string_view& last = parts.modules.back();
  parts.bias = last == "bias" || last.ends_with("_bias");
  if ((last == "weight" || last == "bias") && parts.modules.size() > 1) {
    parts.modules.pop_back();
  } else if (last.ends_with("_weight") || last.ends_with("_bias")) {
    last.remove_suffix(last.size() - last.rfind('_'));  // in_proj_weight
  }
  return parts;
}

std::optional<Rule> rule_of_module(std::string_view name) {
  static const ModuleRules rules = make_module_rules();
  for (const std::string& end : ends_of(parts_of(name))) {
    const auto found = rules.find(end);
    if (found != rules.end()) return found->second;
  }
  return std::nullopt;
}

std::optional<Site> site_of_module(std::string_view name) {
  static const auto sites = make_outer_modules();
  for (const std::string_view module : parts_of(name).modules) {
    const auto found = sites.find(module);
    if (found != sites.end()) return found->second;
  }
  return std::nullopt;
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
