#include "holdfast/models/named_model.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_set>

#include "holdfast/base/checked.h"
#include "holdfast/models/rules.h"
#include "holdfast/models/transformers.h"

namespace holdfast {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 50;

// What a module is called in models that no table knows (tensor_tables.h).
struct NameRule {
  std::string_view leaf;    // the name of the module
  std::string_view parent;  // a name among the modules around it; empty for any
  std::string_view words;   // about its weight: rows are outputs
};

// The first rule that fits counts.
constexpr std::array kRules{
    NameRule{"q_proj", "", "rows heads"},
    NameRule{"q_b_proj", "", "rows heads"},
    NameRule{"kv_b_proj", "", "rows heads"},  // latent attention: a part of each head
    NameRule{"query", "", "rows heads"},
    NameRule{"to_q", "", "rows heads"},
    NameRule{"wq", "", "rows heads"},
    NameRule{"q", "SelfAttention", "rows heads"},
    NameRule{"q", "EncDecAttention", "rows heads"},
    NameRule{"k_proj", "", "rows kv_heads"},
    NameRule{"v_proj", "", "rows kv_heads"},
    NameRule{"key", "", "rows kv_heads"},
    NameRule{"value", "", "rows kv_heads"},
    NameRule{"to_k", "", "rows kv_heads"},
    NameRule{"to_v", "", "rows kv_heads"},
    NameRule{"wk", "", "rows kv_heads"},
    NameRule{"wv", "", "rows kv_heads"},
    NameRule{"k", "SelfAttention", "rows kv_heads"},
    NameRule{"k", "EncDecAttention", "rows kv_heads"},
    NameRule{"v", "SelfAttention", "rows kv_heads"},
    NameRule{"v", "EncDecAttention", "rows kv_heads"},
    NameRule{"qkv_proj", "", "rows/3 heads"},
    NameRule{"query_key_value", "", "rows/3 heads"},
    NameRule{"qkv", "", "rows/3 heads"},
    NameRule{"Wqkv", "", "rows/3 heads"},
    NameRule{"in_proj", "", "rows/3 heads"},
    NameRule{"c_attn", "", "rows/3 heads"},
    NameRule{"o_proj", "", "columns heads"},
    NameRule{"out_proj", "", "columns heads"},
    NameRule{"wo", "attention", "columns heads"},
    NameRule{"o", "SelfAttention", "columns heads"},
    NameRule{"o", "EncDecAttention", "columns heads"},
    NameRule{"c_proj", "attn", "columns heads"},
    NameRule{"proj", "attn", "columns heads"},
    NameRule{"dense", "attention", "columns heads"},  // also attention.output.dense
    NameRule{"dense", "self_attention", "columns heads"},
    NameRule{"gate_up_proj", "", "rows/2"},
    NameRule{"gate_proj", "", "rows"},
    NameRule{"up_proj", "", "rows"},
    NameRule{"fc1", "", "rows"},
    NameRule{"c_fc", "", "rows"},
    NameRule{"dense_h_to_4h", "", "rows"},
    NameRule{"dense", "intermediate", "rows"},
    NameRule{"linear1", "", "rows"},
    NameRule{"w1", "", "rows"},
    NameRule{"w3", "", "rows"},
    NameRule{"wi", "", "rows"},
    NameRule{"wi_0", "", "rows"},
    NameRule{"wi_1", "", "rows"},
    NameRule{"down_proj", "", "columns"},
    NameRule{"fc2", "", "columns"},
    NameRule{"c_proj", "", "columns"},
    NameRule{"dense_4h_to_h", "", "columns"},
    NameRule{"dense", "output", "columns"},
    NameRule{"linear2", "", "columns"},
    NameRule{"w2", "", "columns"},
    NameRule{"wo", "", "columns"},
    NameRule{"embed_tokens", "", "vocabulary"},
    NameRule{"embed_in", "", "vocabulary"},
    NameRule{"embed_out", "", "vocabulary"},
    NameRule{"word_embeddings", "", "vocabulary"},
    NameRule{"tok_embeddings", "", "vocabulary"},
    NameRule{"wte", "", "vocabulary"},
    NameRule{"lm_head", "", "vocabulary"},
    NameRule{"decoder", "predictions", "vocabulary"},
    NameRule{"predictions", "cls", "vocabulary"},  // the bias of its decoder
};

// Modules that come after the layers, though some models list them before.
constexpr std::array<std::string_view, 14> kAfterLayers{"lm_head",
                                                        "embed_out",
                                                        "head",
                                                        "classifier",
                                                        "score",
                                                        "pooler",
                                                        "norm",
                                                        "ln_f",
                                                        "cls",
                                                        "project_out",
                                                        "layernorm",
                                                        "final_layer_norm",
                                                        "final_layernorm",
                                                        "output"};

// A name such as model.layers.3.mlp.down_proj.weight in its parts.
struct NameParts {
  std::vector<std::string_view> modules;  // model, layers, 3, mlp, down_proj
  bool bias = false;
};

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

// The words about a module of that name; "" if there are none.
std::string_view words_of(const NameParts& parts) {
  const auto& modules = parts.modules;
  for (const NameRule& rule : kRules) {
    if (modules.back() != rule.leaf) continue;
    if (rule.parent.empty()) return rule.words;
    if (std::count(modules.begin(), modules.end() - 1, rule.parent) > 0) {
      return rule.words;
    }
  }
  return "";
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

// Sets how the parameter is cut, and gives fused weights an axis for their components.
class Cutter {
 public:
  explicit Cutter(HeadCounts heads) : heads_(heads) {}

  void cut(Parameter& parameter, const NamedTensor& named,
           const NameParts& parts) const {
    const std::string_view words = named.words.empty() ? words_of(parts) : named.words;
    const Rule rule = parse_words(words).value();
    const bool stacked = is_expert(parameter, parts);
    const int rank = parameter.tensor.shape.rank() - (stacked ? 1 : 0);
    if (rule.cut == Cut::kReplicated || rank < 1 || rank > 2) return;
    if (rank == 1 && !parts.bias) return;  // a norm of that name
    // The axes of the outputs and of the inputs, after the axis of experts.
    const int first = stacked ? 1 : 0;
    const int outputs = rank == 2 && named.transposed ? first + 1 : first;
    const int inputs = rank == 2 ? 2 * first + 1 - outputs : -1;
    parameter.expert = stacked;
    set(parameter, rule, rule.axis == 0 ? outputs : inputs);
  }

 private:
  // Experts are one tensor with an axis for the expert: mlp.experts.down_proj.
  static bool is_expert(const Parameter& parameter, const NameParts& parts) {
    const auto& modules = parts.modules;
    return modules.size() > 1 && modules[modules.size() - 2] == "experts" &&
           parameter.tensor.shape.rank() == (parts.bias ? 2 : 3);
  }

  // `axis` is -1 for a bias that is added once.
  void set(Parameter& parameter, const Rule& rule, int axis) const {
    if (rule.cut == Cut::kVocabulary) {
      parameter.cut = Cut::kVocabulary;
      parameter.tensor.pad_multiple = kVocabularyPad;
      return;
    }
    if (axis < 0) return;
    const bool fused = rule.heads == HeadKind::kQueries && rule.parts * rule.in_head == 3;
    if (fused) return cut_qkv(parameter, axis);
    if (rule.parts > 1) return cut_fused(parameter, axis, rule.parts);
    if (rule.heads == HeadKind::kNone) return cut_axis(parameter, axis);
    const bool shared = rule.heads == HeadKind::kKeyValues;
    cut_heads(parameter, axis, shared ? Cut::kKvHeads : Cut::kHeads);
  }

  static std::vector<int64_t> sizes_of(const Parameter& parameter) {
    const auto sizes = parameter.tensor.shape.sizes();
    return {sizes.begin(), sizes.end()};
  }

  static void cut_axis(Parameter& parameter, int axis) {
    parameter.cut = Cut::kAxis;
    parameter.axis = axis;
  }

  void cut_heads(Parameter& parameter, int axis, Cut cut) const {
    const int64_t heads = cut == Cut::kHeads ? heads_.heads : heads_.kv_heads;
    cut_axis(parameter, axis);
    if (heads == 0 || parameter.tensor.shape[axis] % heads != 0) return;
    parameter.cut = cut;
    parameter.groups = heads_.kv_heads;
    parameter.queries = heads_.heads / heads_.kv_heads;
  }

  // Replaces the axis by one of `count` components and one of their size, which is cut.
  static void cut_fused(Parameter& parameter, int axis, int64_t count) {
    std::vector<int64_t> sizes = sizes_of(parameter);
    cut_axis(parameter, axis);
    const auto at = static_cast<size_t>(axis);
    if (count == 1 || sizes[at] % count != 0) return;
    sizes[at] /= count;
    sizes.insert(sizes.begin() + axis, count);
    parameter.tensor.shape = Shape::create(sizes).value();
    parameter.axis = axis + 1;
    if (axis == 0) parameter.rows = 2;
  }

  // With known heads the components are [group, query heads + key + value, head, ...].
  // Otherwise three components of equal size are assumed if the other axis says so, and
  // equal parts of the rows if it does not.
  void cut_qkv(Parameter& parameter, int axis) const {
    std::vector<int64_t> sizes = sizes_of(parameter);
    const int64_t outputs = sizes[static_cast<size_t>(axis)];
    const int64_t parts = heads_.heads + 2 * heads_.kv_heads;
    if (axis == 0 && parts > 0 && outputs % parts == 0 && !parameter.expert) {
      const int64_t queries = heads_.heads / heads_.kv_heads;
      sizes.erase(sizes.begin());
      sizes.insert(sizes.begin(), {heads_.kv_heads, queries + 2, outputs / parts});
      parameter.tensor.shape = Shape::create(sizes).value();
      parameter.cut = Cut::kQkv;
      parameter.groups = heads_.kv_heads;
      parameter.queries = queries;
      parameter.rows = 3;
      return;
    }
    const bool square = sizes.size() < 2 || std::ranges::min(sizes) * 3 == outputs;
    return cut_fused(parameter, axis, square ? 3 : 1);
  }

  HeadCounts heads_;
};

// Finds the layer of each tensor by the numbers in names.
class Layers {
 public:
  explicit Layers(const std::vector<NamedTensor>& tensors) {
    std::map<std::string, int64_t> elements;  // in each list of numbered modules
    int64_t all = 0;
    for (const NamedTensor& each : tensors) {
      const auto list = list_of(each.tensor.name);
      if (!list) continue;
      elements[list->first] += each.tensor.shape.elements();
      all += each.tensor.shape.elements();
    }
    numbered_ = !elements.empty();
    for (const auto& [list, size] : elements) {
      if (size >= all - size) only_ = list;
    }
    for (const NamedTensor& each : tensors) {
      const auto key = key_of(each.tensor.name);
      if (key) number_.emplace(*key, std::ssize(number_));
    }
    sort_lists();
  }

  int64_t count() const { return std::max<int64_t>(std::ssize(number_), 1); }

  std::optional<int64_t> of(std::string_view name) const {
    const auto key = key_of(name);
    if (!key) return std::nullopt;
    return number_.at(*key);
  }

 private:
  // A layer. The shorter of two numbers is the smaller one.
  struct Key {
    std::string list{};
    size_t digits = 0;
    std::string number{};
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  // The name of the list and the number in it: model.layers and 3.
  static std::optional<std::pair<std::string, std::string>> list_of(
      std::string_view name) {
    for (size_t begin = 0; begin < name.size();) {
      const size_t end = std::min(name.find('.', begin), name.size());
      if (is_number(name.substr(begin, end - begin))) {
        return std::pair(std::string(name.substr(0, begin)),
                         std::string(name.substr(begin, end - begin)));
      }
      begin = end + 1;
    }
    return std::nullopt;
  }

  std::optional<Key> key_of(std::string_view name) const {
    if (!numbered_) return Key{.list = std::string(name.substr(0, name.find('.')))};
    const auto list = list_of(name);
    if (!list || (only_ && list->first != *only_)) return std::nullopt;
    return Key{list->first, list->second.size(), list->second};
  }

  // Orders the members of each list by their numbers, on the places that the list has.
  // In files that are sorted by name, member 10 comes before member 2.
  void sort_lists() {
    for (auto first = number_.begin(); first != number_.end();) {
      std::vector<int64_t> places;
      for (auto each = first; each != number_.end(); ++each) {
        if (each->first.list != first->first.list) break;
        places.push_back(each->second);
      }
      std::ranges::sort(places);
      for (const int64_t place : places) (first++)->second = place;
    }
  }

  bool numbered_ = false;
  std::optional<std::string> only_;
  std::map<Key, int64_t> number_;
};

bool is_after_layers(std::string_view name) {
  const NameParts parts = parts_of(name);
  if (std::ranges::count(parts.modules, "embeddings") > 0) return false;
  return std::ranges::any_of(parts.modules, [](std::string_view module) {
    return std::ranges::count(kAfterLayers, module) > 0;
  });
}

bool is_embedding(std::string_view name) {
  const NameParts parts = parts_of(name);
  return std::ranges::any_of(parts.modules, [](std::string_view module) {
    return module == "wte" || module == "wpe" || module.find("emb") != module.npos;
  });
}

// The place of a tensor that is in no layer.
Site site_outside(std::string_view name, bool seen_layer, TensorOrder order) {
  if (is_after_layers(name)) return Site::kLast;
  if (order == TensorOrder::kAny && is_embedding(name)) return Site::kFirst;
  return seen_layer ? Site::kLast : Site::kFirst;
}

Result<void> check_tensors(const std::string& name,
                           const std::vector<NamedTensor>& tensors) {
  std::unordered_set<std::string_view> names;
  int64_t all = 0;
  for (const NamedTensor& each : tensors) {
    const Tensor& tensor = each.tensor;
    if (!names.insert(tensor.name).second) {
      return invalid("{}: {} is listed twice", name, tensor.name);
    }
    const auto sum = checked_add(all, tensor.shape.elements());
    if (!sum || *sum > kMaxElements) {
      return invalid("{}: its tensors have more than 2^50 elements", name);
    }
    all = *sum;
  }
  if (all == 0) return invalid("{}: has no parameters; expected a model", name);
  return {};
}

}  // namespace

Result<Model> model_of_tensors(std::string name, std::vector<NamedTensor> tensors,
                               HeadCounts heads, TensorOrder order) {
  HOLDFAST_TRY(check_tensors(name, tensors));
  const Layers layers(tensors);
  const Cutter cutter(heads);
  Model model;
  model.name = std::move(name);
  model.layers = layers.count();
  bool seen_layer = false;
  for (NamedTensor& each : tensors) {
    Parameter parameter;
    parameter.tensor = std::move(each.tensor);
    const std::string& own = parameter.tensor.name;
    const std::optional<int64_t> layer = layers.of(own);
    seen_layer |= layer.has_value();
    parameter.layer = layer.value_or(0);
    parameter.site = layer ? Site::kLayer : site_outside(own, seen_layer, order);
    parameter.also_last =
        parameter.site == Site::kFirst &&
        std::ranges::any_of(parameter.tensor.aliases, is_after_layers);
    if (parameter.tensor.role == Role::kParameter) {
      cutter.cut(parameter, each, parts_of(own));
    }
    if (parameter.expert) {
      model.experts = std::max(model.experts, parameter.tensor.shape[0]);
    }
    model.parameters.push_back(std::move(parameter));
  }
  return model;
}

}  // namespace holdfast
