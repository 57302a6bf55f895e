#include "holdfast/models/rules.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "holdfast/models/rule_match.h"
#include "holdfast/models/tensor_tables.h"
#include "holdfast/models/transformers.h"

namespace holdfast {
namespace {

using TensorsByName = std::map<std::string_view, const Tensor*>;

// The weight of the module with that name beside the module of the tensor, if both are
// matrices.
const Tensor* matrix_beside(const Tensor& tensor, std::string_view module,
                            const TensorsByName& named) {
  constexpr std::string_view kWeight = ".weight";
  std::string_view name = tensor.name;
  if (module.empty() || !name.ends_with(kWeight)) return nullptr;
  name.remove_suffix(kWeight.size());
  const size_t outer = name.rfind('.') + 1;  // 0 without a dot
  const auto found =
      named.find(fmt::format("{}{}{}", name.substr(0, outer), module, kWeight));
  if (found == named.end() || tensor.shape.rank() != 2) return nullptr;
  return found->second->shape.rank() == 2 ? found->second : nullptr;
}

// Gives queries, keys and values in one weight the shape of Cut::kQkv. The columns of
// `output`, the projection of the attention's output, are as many as the queries are rows.
// Without the size of a head, each row of the keys counts as a head.
Result<StoredTensor> separate_queries(const Tensor& output, int64_t head,
                                      Parameter& parameter) {
  Tensor& tensor = parameter.tensor;
  const int64_t queries = output.shape[1];
  const int64_t keys = (tensor.shape[0] - queries) / 2;
  if (keys <= 0 || queries + 2 * keys != tensor.shape[0] || queries % keys != 0) {
    return invalid(
        "{}: has {} rows, and {} has {} columns; expected that many rows of queries, and "
        "as many or a divisor of them for each of keys and values",
        tensor.name, tensor.shape[0], output.name, queries);
  }
  const int64_t size = head > 0 && keys % head == 0 ? head : 1;
  parameter.cut = Cut::kQkv;
  parameter.groups = keys / size;
  parameter.queries = queries / keys;
  parameter.rows = 3;
  tensor.shape = Shape{parameter.groups, parameter.queries + 2, size, tensor.shape[1]};
  return StoredTensor{.parts = 3, .queries = parameter.queries};
}

// The parameter of a rule, and how the tensor is stored.
Result<std::pair<Parameter, StoredTensor>> make_parameter(const Rule& rule,
                                                          const Tensor& tensor,
                                                          const TensorsByName& named,
                                                          int64_t head) {
  const int first = rule.stacked ? 1 : 0;
  const int axis = rule.axis + first;
  const bool cut = rule.cut != Cut::kReplicated;
  if (tensor.shape.rank() <= (cut ? axis : first - 1)) {
    return invalid(
        "{}: has the shape {}; expected at least {} dimensions by the rule {}",
        tensor.name, to_string(tensor.shape), axis + 1, rule.pattern);
  }
  Parameter parameter{.tensor = tensor, .site = rule.site, .expert = rule.stacked};
  parameter.tensor.role = rule.buffer ? Role::kBuffer : Role::kParameter;
  parameter.cut = rule.cut;
  parameter.axis = axis;
  if (rule.cut == Cut::kVocabulary) parameter.tensor.pad_multiple = kVocabularyPad;
  if (rule.parts == 1) return std::pair(std::move(parameter), StoredTensor{});
  const Tensor* output =
      rule.parts == 3 ? matrix_beside(tensor, rule.with, named) : nullptr;
  if (output != nullptr) {
    const StoredTensor stored =
        HOLDFAST_TRY(separate_queries(*output, head, parameter));
    return std::pair(std::move(parameter), stored);
  }
  if (tensor.shape[axis] % rule.parts != 0) {
    return invalid(
        "{}: has the shape {}; expected {} equal components along dimension {}",
        tensor.name, to_string(tensor.shape), rule.parts, axis);
  }
  const auto stored = tensor.shape.sizes();
  std::vector<int64_t> sizes(stored.begin(), stored.end());
  sizes[static_cast<size_t>(axis)] /= rule.parts;
  sizes.insert(sizes.begin() + axis, rule.parts);
  parameter.tensor.shape = HOLDFAST_TRY(Shape::create(sizes).within(tensor.name));
  parameter.axis = axis + 1;
  if (axis == 0) parameter.rows = 2;
  return std::pair(std::move(parameter),
                   StoredTensor{.axis = axis, .parts = rule.parts});
}

// Refuses a gate that is stored in one tensor with the weight it gates (SwiGLU), if the
// rules do not say so, and rules that say so where there is none. Only the shapes show it:
// the first weight has twice the rows that the second has columns. Cut as plain rows, one
// rank would get all of the gate and another one none.
Result<void> check_gate(const RuleSet& set, const Tensor& up,
                        const TensorsByName& named) {
  const auto found = find_rule(set, up.name);
  if (!found) return {};
  const Rule& rule = set.rules[found->rule];
  // Rules of users need not tell the partner of a weight whose name is known.
  const Rule known = rule_of_module(up.name).value_or(rule);
  if (rule.parts == 3 || known.is_fused_qkv()) return {};
  const Tensor* down =
      matrix_beside(up, rule.with.empty() ? known.with : rule.with, named);
  if (down == nullptr) return {};
  const bool gated = up.shape[0] == 2 * down->shape[1];
  if (gated ? rule.parts != 1 : rule.parts != 2) return {};
  if (!gated) {
    return invalid(
        "{}: has {} rows, and {} has {} columns; expected twice as many rows by rules "
        "or args that tell of a gate",
        up.name, up.shape[0], down->name, down->shape[1]);
  }
  return invalid(
      "{}: has {} rows, twice the columns of {}, so it holds a gate, too; expected "
      "--rules with a file that says \"rows/2\" for it",
      up.name, up.shape[0], down->name);
}

// Carries out one call of apply_rules().
class Applied {
 public:
  Applied(const RuleSet& set, std::span<const Tensor> tensors, int64_t head)
      : set_(set), tensors_(tensors), head_(head) {
    for (const Tensor& tensor : tensors) named_[tensor.name] = &tensor;
  }

  Result<RuledModel> run() {
    for (const Tensor& tensor : tensors_) {
      HOLDFAST_TRY(check_gate(set_, tensor, named_));
    }
    for (TensorId t = 0; t < tensors_.size(); ++t) HOLDFAST_TRY(add(t));
    HOLDFAST_TRY(check_any());
    HOLDFAST_TRY(check_biases());
    HOLDFAST_TRY(add_states());
    HOLDFAST_TRY(check_complete());
    return finish();
  }

 private:
  struct Entry {
    // Entries are sorted by these, so that the order of the files does not matter.
    std::tuple<Site, int64_t, size_t, int64_t, std::string> order;
    Parameter parameter;
    std::vector<StoredTensor> states;
    int64_t unit = 1;
  };

  Result<void> add(TensorId t) {
    const auto found = find_rule(set_, tensors_[t]);
    if (!found) {
      others_.push_back(t);
      return {};
    }
    const Rule& rule = set_.rules[found->rule];
    auto made = HOLDFAST_TRY(make_parameter(rule, tensors_[t], named_, head_));
    made.second.tensor = t;
    auto& [parameter, stored] = made;
    const Numbers& at = found->numbers;
    parameter.layer = at.layer;
    if (at.expert >= 0) {
      parameter.expert = true;
      parameter.only = ExpertNumber{.number = at.expert};
    }
    model_.layers = std::max(model_.layers, at.layer + 1);
    model_.experts = std::max(
        {model_.experts, at.expert + 1, rule.stacked ? parameter.tensor.shape[0] : 0});
    seen_[found->rule].insert(at);
    by_name_.emplace(found->bare, entries_.size());
    entries_.push_back({{rule.site, at.layer, found->rule, at.expert, tensors_[t].name},
                        std::move(parameter),
                        {stored},
                        unit_of(rule)});
    return {};
  }

  int64_t unit_of(const Rule& rule) const {
    const bool known = head_ > 0 && rule.heads != HeadKind::kNone &&
                       rule.heads != HeadKind::kGroups &&
                       rule.heads != HeadKind::kOtherSize;
    return known ? head_ * rule.in_head : rule.unit;
  }

  Result<void> check_any() const {
    if (!entries_.empty()) return {};
    return invalid(
        "rules {}: none of {} tensors has a rule, so they are another model's; "
        "expected "
        "names such as {}",
        set_.name, tensors_.size(), name_at(set_.rules.front().pattern, {}));
  }

  const Rule& rule_of(const Entry& entry) const {
    return set_.rules[std::get<2>(entry.order)];
  }
  const Tensor& tensor_of(const Entry& entry) const {
    return tensors_[entry.states.front().tensor];
  }

  // A bias that is cut has a value for each output of its weight, so it shows which
  // dimension of the weight has the outputs. nanoGPT has the names of transformers' GPT-2
  // and the other order of dimensions.
  Result<void> check_biases() const {
    for (const auto& [name, entry] : by_name_) {
      if (!name.ends_with(".weight")) continue;
      const std::string stem(name.substr(0, name.rfind('.')));
      const auto bias = by_name_.find(stem + ".bias");
      if (bias != by_name_.end()) {
        HOLDFAST_TRY(check_bias(entries_[entry], entries_[bias->second]));
      }
    }
    return {};
  }

  Result<void> check_bias(const Entry& of_weight, const Entry& of_bias) const {
    const Tensor& weight = tensor_of(of_weight);
    const Shape& bias = tensor_of(of_bias).shape;
    const Rule& rule = rule_of(of_weight);
    if (rule.cut != Cut::kAxis || rule_of(of_bias).cut != Cut::kAxis) return {};
    if (rule.stacked || weight.shape.rank() != 2 || bias.rank() != 1) return {};
    if (weight.shape[rule.axis] == bias[0]) return {};
    return invalid(
        "{}: has the shape {}, but its bias has {} values; expected {}, or --rules "
        "with a file",
        weight.name, to_string(weight.shape), bias[0],
        rule.axis == 1 ? "[inputs, outputs], as Conv1D has them" : "[outputs, inputs]");
  }

  Result<void> add_states() {
    for (const TensorId t : others_) HOLDFAST_TRY(add_state(t));
    return {};
  }

  // Adds optimizer state to its parameter. A count of steps and other single numbers are
  // a parameter of their own, on the same stage.
  Result<void> add_state(TensorId t) {
    const Tensor& tensor = tensors_[t];
    const std::string_view name = tensor.name;
    const auto found = find_rule(set_, name.substr(0, name.rfind('.')));
    const auto of = found ? by_name_.find(found->bare) : by_name_.end();
    if (of == by_name_.end()) {
      return invalid("{}: has no rule in {}; expected rules for every tensor", name,
                     set_.name);
    }
    Entry& entry = entries_[of->second];
    const TensorId own = entry.states.front().tensor;
    if (tensor.shape == tensors_[own].shape) {
      StoredTensor stored = entry.states.front();
      stored.tensor = t;
      entry.states.push_back(stored);
      return {};
    }
    if (tensor.shape.elements() != 1) {
      return invalid("{}: has the shape {}; expected that of its parameter, {}", name,
                     to_string(tensor.shape), to_string(tensors_[own].shape));
    }
    Entry single{
        .order = entry.order, .parameter = {.tensor = tensor}, .states = {{t}}};
    std::get<4>(single.order) = name;
    single.parameter.tensor.role = Role::kCounter;
    single.parameter.site = entry.parameter.site;
    single.parameter.layer = entry.parameter.layer;
    entries_.push_back(std::move(single));
    return {};
  }

  Result<void> check_complete() const {
    for (size_t i = 0; i < set_.rules.size(); ++i) {
      const Rule& rule = set_.rules[i];
      const auto seen = seen_.find(i);
      if (rule.some || (seen == seen_.end() && !rule.required)) continue;
      HOLDFAST_TRY(
          check_rule(rule, seen == seen_.end() ? std::set<Numbers>() : seen->second));
    }
    return {};
  }

  Result<void> check_rule(const Rule& rule, const std::set<Numbers>& seen) const {
    const bool by_expert = rule.pattern.find('%') != std::string::npos;
    const int64_t layers = rule.site == Site::kLayer ? model_.layers : 1;
    for (int64_t layer = 0; layer < layers; ++layer) {
      for (int64_t e = 0; e < (by_expert ? model_.experts : 1); ++e) {
        const Numbers at{layer, by_expert ? e : -1};
        if (seen.contains(at)) continue;
        return invalid("{}: is missing; expected it in a checkpoint of {}",
                       name_at(rule.pattern, at), set_.name);
      }
    }
    return {};
  }

  RuledModel finish() {
    std::ranges::sort(entries_, {}, &Entry::order);
    model_.name = set_.name;
    model_.layers = std::max<int64_t>(model_.layers, 1);
    const bool head = std::ranges::any_of(entries_, [](const Entry& entry) {
      return entry.parameter.site == Site::kLast &&
             entry.parameter.cut == Cut::kVocabulary &&
             entry.parameter.tensor.shape.rank() > 1;  // not its bias
    });
    RuledModel ruled{.rules = set_.name};
    for (Entry& entry : entries_) {
      Parameter& parameter = entry.parameter;
      if (parameter.only) parameter.only->count = model_.experts;
      const Rule& rule = rule_of(entry);
      parameter.also_last =
          rule.tied && !head && parameter.tensor.role == Role::kParameter &&
          (rule.tied_with.empty() || by_name_.contains(rule.tied_with));
      std::ranges::sort(entry.states.begin() + 1, entry.states.end(), {},
                        [&](const StoredTensor& s) { return tensors_[s.tensor].name; });
      model_.parameters.push_back(std::move(parameter));
      ruled.states.push_back(std::move(entry.states));
      ruled.units.push_back(entry.unit);
    }
    ruled.model = std::move(model_);
    return ruled;
  }

  const RuleSet& set_;
  const std::span<const Tensor> tensors_;
  const int64_t head_;
  TensorsByName named_;
  Model model_;
  std::vector<Entry> entries_;
  std::map<std::string_view, size_t> by_name_;  // entry of a name without wrappers
  std::map<size_t, std::set<Numbers>> seen_;    // by rule
  std::vector<TensorId> others_;
};

}  // namespace

Result<RuledModel> apply_rules(const RuleSet& rules, std::span<const Tensor> tensors,
                               int64_t head) {
  return Applied(rules, tensors, head).run();
}

}  // namespace holdfast
