#include "holdfast/models/named_model.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "holdfast/base/checked.h"
#include "holdfast/models/rules.h"
#include "holdfast/models/tensor_tables.h"
#include "holdfast/models/transformers.h"

namespace holdfast {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 50;

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

// Sets how the parameter is cut, and gives fused weights an axis for their components.
class Cutter {
 public:
  explicit Cutter(HeadCounts heads) : heads_(heads) {}

  void cut(Parameter& parameter, const NamedTensor& named,
           const NameParts& parts) const {
    const Rule rule = named.words.empty()
                          ? rule_of_module(parameter.tensor.name).value_or(Rule())
                          : parse_words(named.words).value();
    const bool transposed = named.words.empty() ? named.transposed : rule.transposed;
    const bool stacked = is_expert(parameter, parts);
    const int rank = parameter.tensor.shape.rank() - (stacked ? 1 : 0);
    if (rule.cut == Cut::kReplicated || rank < 1 || rank > 2) return;
    if (rank == 1 && !parts.bias) return;  // a norm of that name
    // The axes of the outputs and of the inputs, after the axis of experts.
    const int first = stacked ? 1 : 0;
    const int outputs = rank == 2 && transposed ? first + 1 : first;
    const int inputs = rank == 2 ? 2 * first + 1 - outputs : -1;
    parameter.expert = stacked;
    const bool by_outputs = (rule.axis == 0) != rule.transposed;
    set(parameter, rule, by_outputs ? outputs : inputs);
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
    if (rule.is_fused_qkv()) return cut_qkv(parameter, axis);
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
  return site_of_module(name) == Site::kLast;
}

// The place of a tensor that is in no layer.
Site site_outside(std::string_view name, bool seen_layer, TensorOrder order) {
  const std::optional<Site> known = site_of_module(name);
  if (known == Site::kLast) return Site::kLast;
  const bool first = known == Site::kFirst || name.find("emb") != name.npos;
  if (order == TensorOrder::kAny && first) return Site::kFirst;
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
