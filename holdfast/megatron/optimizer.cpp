#include "holdfast/megatron/optimizer.h"

#include <algorithm>
#include <map>
#include <optional>

#include "holdfast/base/json_text.h"
#include "holdfast/megatron/objects.h"

namespace holdfast::megatron {
namespace {

bool decays(const LocalParameter& parameter) {
  return parameter.shape.rank() > 1 && !parameter.name.ends_with(".bias");
}

const std::vector<Object>* list_at(const Object& dict, std::string_view key) {
  const Object* found = find_key(dict, key);
  const auto* list = found == nullptr ? nullptr : found->as<Object::List>();
  return list == nullptr ? nullptr : &list->items;
}

Object inner_of(Object& optimizer, const std::function<void(Object&)>& change) {
  Object* nested = find_key(optimizer, "optimizer");
  change(nested != nullptr ? *nested : optimizer);
  return optimizer;
}

// Carries out one call of name_state().
class Namer {
 public:
  Namer(const Object& optimizer, const std::vector<LocalParameter>& parameters,
        const Collection& file)
      : optimizer_(optimizer), parameters_(parameters), file_(file) {}

  Result<OptimizerState> run() {
    inner_ = inner_optimizer(optimizer_);
    if (inner_ == nullptr) {
      return unsupported(
          "optimizer: has no state and param_groups; expected those of one optimizer");
    }
    HOLDFAST_TRY(read_groups());
    HOLDFAST_TRY(read_states());
    HOLDFAST_TRY(read_masters());
    named_.common = common_part();
    return std::move(named_);
  }

 private:
  // Finds which parameter each number is.
  Result<void> read_groups() {
    const auto* groups = list_at(*inner_, kGroupsKey);
    if (groups == nullptr || groups->empty() || groups->size() > 2) {
      return unsupported(
          "optimizer.param_groups: has {} groups; expected one, or one with weight decay "
          "and one without",
          groups == nullptr ? 0 : groups->size());
    }
    groups_ = parameters_of_groups(parameters_, groups->size());
    for (size_t g = 0; g < groups->size(); ++g) {
      const auto* numbers = list_at((*groups)[g], kNumbersKey);
      if (numbers == nullptr || numbers->size() != groups_[g].size()) {
        return invalid(
            "optimizer.param_groups[{}]: has {} parameters; expected the {} {} of the "
            "model",
            g, numbers == nullptr ? 0 : numbers->size(), groups_[g].size(),
            groups->size() == 1 ? "parameters"
            : g == 0            ? "weights"
                                : "biases and norms");
      }
      for (size_t i = 0; i < numbers->size(); ++i) {
        const auto* number = (*numbers)[i].as<int64_t>();
        if (number == nullptr || !by_number_.emplace(*number, groups_[g][i]).second) {
          return invalid(
              "optimizer.param_groups[{}]: item {} is not a number of its own; expected "
              "each parameter once",
              g, i);
        }
      }
    }
    return {};
  }

  Result<void> read_states() {
    const Object* state = find_key(*inner_, kStateKey);
    const auto* dict = state == nullptr ? nullptr : state->as<Object::Dict>();
    if (dict == nullptr) return unsupported("optimizer.state: is no dict");
    for (const auto& [key, slots] : dict->items) {
      const auto* number = key.as<int64_t>();
      const auto found =
          number == nullptr ? by_number_.end() : by_number_.find(*number);
      if (found == by_number_.end()) {
        return invalid(
            "optimizer.state: has a key that no group lists; expected the numbers of "
            "param_groups");
      }
      HOLDFAST_TRY(read_slots(*number, found->second, slots));
    }
    return {};
  }

  Result<void> read_slots(int64_t number, size_t parameter, const Object& slots) {
    const auto* dict = slots.as<Object::Dict>();
    if (dict == nullptr) return unsupported("optimizer.state[{}]: is no dict", number);
    Object::List form;
    for (const auto& [key, value] : dict->items) {
      const auto* slot = key.as<std::string>();
      if (slot == nullptr || slot->empty() || *slot == kMasterSlot ||
          slot->find('.') != slot->npos) {
        return unsupported("optimizer.state[{}]: has a slot without a plain name",
                           number);
      }
      if (const auto* leaf = value.as<Object::TensorName>()) {
        HOLDFAST_TRY(add(leaf->name, parameter, *slot));
        form.items.emplace_back(*slot);
      } else {
        form.items.emplace_back(Object::Tuple{{Object(*slot), value}});
      }
    }
    if (!form_) form_ = form;
    if (*form_ == form) return {};
    return unsupported(
        "optimizer.state[{}]: has other slots than the parameters before it", number);
  }

  Result<void> add(const std::string& stored, size_t parameter,
                   const std::string& slot) {
    const auto id = file_.find(stored);
    if (!id) return corrupt("{}: is not in the file", shown(stored));
    const Shape& shape = file_.tensor(*id).shape;
    const LocalParameter& of = parameters_[parameter];
    if (shape != of.shape && shape.elements() != 1) {
      return invalid("{}: has the shape {}; expected that of {}, {}", shown(stored),
                     to_string(shape), shown(of.name), to_string(of.shape));
    }
    named_.tensors.push_back({.stored = stored, .parameter = parameter, .slot = slot});
    return {};
  }

  Result<void> read_masters() {
    const auto* groups = list_at(optimizer_, kMastersKey);
    if (groups == nullptr) return {};
    if (groups->size() != groups_.size()) {
      return invalid("optimizer.{}: has {} groups; expected {}", kMastersKey,
                     groups->size(), groups_.size());
    }
    for (size_t g = 0; g < groups->size(); ++g) {
      std::vector<size_t> expected;
      for (const size_t parameter : groups_[g]) {
        if (has_master(parameters_[parameter])) expected.push_back(parameter);
      }
      const auto* masters = (*groups)[g].as<Object::List>();
      const size_t count = masters == nullptr ? 0 : masters->items.size();
      if (count != expected.size()) {
        return invalid("optimizer.{}[{}]: has {} tensors; expected {}", kMastersKey, g,
                       count, expected.size());
      }
      for (size_t i = 0; i < count; ++i) {
        HOLDFAST_TRY(add_master(masters->items[i], expected[i]));
      }
    }
    return {};
  }

  Result<void> add_master(const Object& master, size_t parameter) {
    const auto* leaf = master.as<Object::TensorName>();
    if (leaf == nullptr) {
      return unsupported("optimizer.{}: has an item that is no tensor", kMastersKey);
    }
    return add(leaf->name, parameter, kMasterSlot);
  }

  Object common_part() const {
    Object common = optimizer_;
    if (find_key(common, kMastersKey) != nullptr) {
      set_key(common, kMastersKey, Object(Object::List{}));
    }
    return inner_of(common, [&](Object& inner) {
      set_key(inner, kStateKey, Object(form_.value_or(Object::List{})));
      auto* groups = std::get_if<Object::List>(&find_key(inner, kGroupsKey)->value());
      for (Object& group : groups->items) {
        set_key(group, kNumbersKey, Object(Object::List{}));
      }
    });
  }

  const Object& optimizer_;
  const std::vector<LocalParameter>& parameters_;
  const Collection& file_;
  const Object* inner_ = nullptr;
  std::vector<std::vector<size_t>> groups_;
  std::map<int64_t, size_t> by_number_;
  std::optional<Object::List> form_;
  OptimizerState named_;
};

// The slots of one parameter; nullopt if it has no state.
std::optional<Object> slots_of(const std::vector<Object>& form, size_t parameter,
                               const StateLeaf& leaf_of) {
  Object slots{Object::Dict{}};
  for (const Object& slot : form) {
    if (const auto* name = slot.as<std::string>()) {
      Object leaf = leaf_of(parameter, *name);
      if (leaf.none()) return std::nullopt;
      set_key(slots, *name, std::move(leaf));
    } else if (const auto* pair = slot.as<Object::Tuple>();
               pair != nullptr && pair->items.size() == 2 &&
               pair->items[0].as<std::string>() != nullptr) {
      set_key(slots, *pair->items[0].as<std::string>(), pair->items[1]);
    }
  }
  return slots;
}

}  // namespace

std::vector<std::vector<size_t>> parameters_of_groups(
    const std::vector<LocalParameter>& parameters, size_t groups) {
  std::vector<std::vector<size_t>> of(groups);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].buffer) continue;
    of[groups == 1 || decays(parameters[i]) ? 0 : 1].push_back(i);
  }
  return of;
}

bool has_master(const LocalParameter& parameter) {
  return parameter.dtype == Dtype::kF16 || parameter.dtype == Dtype::kBf16;
}

const Object* inner_optimizer(const Object& optimizer) {
  const Object* nested = find_key(optimizer, "optimizer");
  const Object* inner = nested != nullptr ? nested : &optimizer;
  const bool whole = find_key(*inner, kStateKey) != nullptr &&
                     list_at(*inner, kGroupsKey) != nullptr;
  return whole ? inner : nullptr;
}

Result<OptimizerState> name_state(const Object& optimizer,
                                  const std::vector<LocalParameter>& parameters,
                                  const Collection& file) {
  return Namer(optimizer, parameters, file).run();
}

Object number_state(const Object& common, const std::vector<LocalParameter>& parameters,
                    const StateLeaf& leaf_of) {
  Object optimizer = common;
  const Object* inner = inner_optimizer(common);
  if (inner == nullptr) return optimizer;
  const size_t groups = list_at(*inner, kGroupsKey)->size();
  const auto of_groups = parameters_of_groups(parameters, std::max<size_t>(groups, 1));
  const auto* form = list_at(*inner, kStateKey);
  Object::Dict states;
  Object::List masters;
  std::vector<Object::List> numbers(groups);
  int64_t next = 0;
  for (size_t g = 0; g < groups; ++g) {
    Object::List of_group;
    for (const size_t parameter : of_groups[g]) {
      numbers[g].items.emplace_back(next);
      auto slots = form == nullptr ? std::nullopt : slots_of(*form, parameter, leaf_of);
      if (slots) states.items.emplace_back(Object(next), *std::move(slots));
      if (has_master(parameters[parameter])) {
        of_group.items.push_back(leaf_of(parameter, kMasterSlot));
      }
      ++next;
    }
    masters.items.emplace_back(std::move(of_group));
  }
  if (find_key(optimizer, kMastersKey) != nullptr) {
    set_key(optimizer, kMastersKey, Object(std::move(masters)));
  }
  return inner_of(optimizer, [&](Object& own) {
    set_key(own, kStateKey, Object(std::move(states)));
    auto* list = std::get_if<Object::List>(&find_key(own, kGroupsKey)->value());
    for (size_t g = 0; g < groups; ++g) {
      set_key(list->items[g], kNumbersKey, Object(std::move(numbers[g])));
    }
  });
}

}  // namespace holdfast::megatron
