#include "holdfast/inspect/export_names.h"

#include <algorithm>
#include <map>

#include "holdfast/inspect/packed_tree.h"

namespace holdfast {
namespace {

constexpr std::string_view kModel = "model.", kAverage = "ema.";

std::string without(std::string_view name, std::string_view prefix) {
  return std::string(name.substr(name.starts_with(prefix) ? prefix.size() : 0));
}

// Calls `use` with the names of all tensors in the tree.
template <typename Use>
void each_tensor_name(const Object& object, const Use& use) {
  if (const auto* leaf = object.as<Object::TensorName>()) use(leaf->name);
  if (const auto* list = object.as<Object::List>()) {
    for (const Object& item : list->items) each_tensor_name(item, use);
  }
  if (const auto* tuple = object.as<Object::Tuple>()) {
    for (const Object& item : tuple->items) each_tensor_name(item, use);
  }
  if (const auto* dict = object.as<Object::Dict>()) {
    for (const auto& [key, value] : dict->items) each_tensor_name(value, use);
  }
}

// The tensors of a training, by the names that the program knows. Of tensors that each
// rank saved for itself, that of the lowest rank counts.
class NamedTensors {
 public:
  explicit NamedTensors(const Collection& collection) {
    for (TensorId id = 0; id < collection.tensors().size(); ++id) {
      const RankName split = split_rank(collection.tensor(id).name);
      const auto known = by_name_.find(split.name);
      const int rank = split.rank.value_or(-1);
      if (known == by_name_.end()) {
        by_name_.emplace(split.name, std::pair(rank, id));
      } else if (rank < known->second.first) {
        known->second = {rank, id};
      }
      if (rank > 0) of_ranks_.insert(std::string(split.name));
    }
  }

  std::optional<TensorId> find(std::string_view name) const {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return std::nullopt;
    return found->second.second;
  }
  // Names of which several ranks saved their own.
  const std::set<std::string, std::less<>>& of_ranks() const { return of_ranks_; }

 private:
  std::map<std::string, std::pair<int, TensorId>, std::less<>> by_name_;
  std::set<std::string, std::less<>> of_ranks_;
};

// The names of buffers that a state_dict() leaves out, which the checkpoint has.
std::set<std::string, std::less<>> transient_names(const TrainingObjects& training,
                                                   Choice& choice) {
  std::set<std::string, std::less<>> names;
  bool known = false;
  for (const Object& rank : training.ranks) {
    const Object* list = find_key(rank, "transient");
    if (list == nullptr || list->as<Object::List>() == nullptr) continue;
    known = true;
    for (const Object& name : list->as<Object::List>()->items) {
      if (const auto* text = name.as<std::string>()) names.insert(*text);
    }
  }
  if (!known) {
    choice.notes.emplace_back(
        "the checkpoint does not say which buffers a state_dict() leaves out: all are "
        "exported");
  }
  return names;
}

// What modules keep beside parameters and buffers. The first rank that has a module
// counts.
std::map<std::string, const Object*> extra_states(const TrainingObjects& training) {
  std::map<std::string, const Object*> states;
  for (const Object& rank : training.ranks) {
    const Object* extra = find_key(rank, "extra");
    const auto* dict = extra == nullptr ? nullptr : extra->as<Object::Dict>();
    if (dict == nullptr) continue;
    for (const auto& [key, value] : dict->items) {
      if (const auto* name = key.as<std::string>()) states.emplace(*name, &value);
    }
  }
  return states;
}

class WeightChooser {
 public:
  WeightChooser(const Collection& collection, const TrainingObjects& training)
      : collection_(collection), training_(training), tensors_(collection) {}

  Result<Choice> choose() && {
    for (const auto& [name, state] : extra_states(training_)) {
      HOLDFAST_TRY(add_extra(name, *state));
    }
    left_out_.merge(transient_names(training_, choice_));
    for (const Tensor& tensor : collection_.tensors()) add_tensor(tensor);
    note_ranks();
    if (!entries_.items.empty()) choice_.objects = Object(std::move(entries_));
    if (choice_.picks.empty()) return not_found("there is no tensor of a model");
    return std::move(choice_);
  }

 private:
  // "<module>._extra_state" is an entry of the state_dict() itself, and
  // "<module>._state_dict" has the entries that the module adds.
  Result<void> add_extra(const std::string& name, const Object& packed) {
    constexpr std::string_view kAdded = "_state_dict";
    const Object value = HOLDFAST_TRY(plain_values(packed, name));
    if (!name.ends_with(kAdded)) return add_entry(name, value);
    const std::string module = name.substr(0, name.size() - kAdded.size());
    const auto* dict = value.as<Object::Dict>();
    for (const auto& [key, item] : dict != nullptr ? dict->items : no_items_) {
      const auto* text = key.as<std::string>();
      if (text != nullptr) HOLDFAST_TRY(add_entry(module + *text, item));
    }
    return {};
  }

  // A tensor becomes a tensor of that name, and any other value an object.
  Result<void> add_entry(const std::string& name, const Object& value) {
    Result<void> done;
    each_tensor_name(value, [&](const std::string& inside) {
      left_out_.insert(inside);
      const auto id = tensors_.find(inside);
      if (!id)
        done = corrupt("{}: names the tensor {}, which is not there", name, inside);
      if (!id) return;
      const bool alone = value.as<Object::TensorName>() != nullptr;
      choice_.picks.push_back({.tensor = *id,
                               .name = alone ? name : inside,
                               .dtype = collection_.tensor(*id).dtype});
    });
    HOLDFAST_TRY(std::move(done));
    if (value.as<Object::TensorName>() == nullptr) {
      entries_.items.emplace_back(Object(name), value);
    }
    return {};
  }

  void add_tensor(const Tensor& tensor) {
    const std::string_view name = split_rank(tensor.name).name;
    const auto id = tensors_.find(name);
    const bool other_rank = &collection_.tensor(*id) != &tensor;
    if (other_rank || !name.starts_with(kModel)) return;
    std::vector<std::string> names;
    for (const std::string_view one : names_of(tensor)) {
      if (!left_out_.contains(one)) names.push_back(without(one, kModel));
    }
    if (names.empty()) return;
    Pick pick{.tensor = *id, .name = names.front(), .dtype = tensor.dtype};
    pick.aliases.assign(names.begin() + 1, names.end());
    choice_.picks.push_back(std::move(pick));
  }

  static std::vector<std::string_view> names_of(const Tensor& tensor) {
    std::vector<std::string_view> names{split_rank(tensor.name).name};
    for (const std::string& alias : tensor.aliases) {
      names.push_back(split_rank(alias).name);
    }
    return names;
  }

  void note_ranks() {
    for (const std::string& name : tensors_.of_ranks()) {
      if (!name.starts_with(kModel) || left_out_.contains(name)) continue;
      choice_.notes.push_back(
          fmt::format("{}: each rank has its own; that of the first is exported",
                      without(name, kModel)));
    }
  }

  const Collection& collection_;
  const TrainingObjects& training_;
  const NamedTensors tensors_;
  const std::vector<std::pair<Object, Object>> no_items_{};
  std::set<std::string, std::less<>> left_out_;  // names of tensors
  Object::Dict entries_;
  Choice choice_;
};

bool selected(std::string_view name, std::string_view patterns) {
  if (patterns.empty()) return true;
  while (!patterns.empty()) {
    const size_t comma = std::min(patterns.find(','), patterns.size());
    if (matches_pattern(name, patterns.substr(0, comma))) return true;
    patterns.remove_prefix(std::min(comma + 1, patterns.size()));
  }
  return false;
}

// The names of a pick that remain, and what becomes of them. Empty if none remains.
std::optional<Pick> rename_pick(const Pick& pick, const Rename& rename) {
  std::vector<std::string> names;
  if (auto name = rename(pick.name)) names.push_back(*std::move(name));
  for (const std::string& alias : pick.aliases) {
    if (auto name = rename(alias)) names.push_back(*std::move(name));
  }
  if (names.empty()) return std::nullopt;
  Pick renamed{.tensor = pick.tensor, .name = names.front(), .dtype = pick.dtype};
  renamed.aliases.assign(names.begin() + 1, names.end());
  return renamed;
}

// The model's tensor that a tensor of an average belongs to: words are removed from the
// front until the rest is a name of the model, as in "ema.module.fc.weight".
std::optional<std::string> name_in_model(
    std::string_view name, const std::map<std::string, size_t, std::less<>>& model) {
  std::string_view rest = name.substr(kAverage.size());
  while (true) {
    if (model.contains(rest)) return std::string(rest);
    const size_t dot = rest.find('.');
    if (dot == rest.npos) return std::nullopt;
    rest.remove_prefix(dot + 1);
  }
}

std::map<std::string, size_t, std::less<>> picks_by_name(const Choice& choice) {
  std::map<std::string, size_t, std::less<>> by_name;
  for (size_t i = 0; i < choice.picks.size(); ++i) {
    by_name.emplace(choice.picks[i].name, i);
    for (const std::string& alias : choice.picks[i].aliases) by_name.emplace(alias, i);
  }
  return by_name;
}

}  // namespace

void rename_picks(Choice& choice, const Rename& rename) {
  std::vector<Pick> picks;
  for (const Pick& pick : choice.picks) {
    if (auto renamed = rename_pick(pick, rename)) picks.push_back(*std::move(renamed));
  }
  choice.picks = std::move(picks);
}

bool matches_pattern(std::string_view text, std::string_view pattern) {
  size_t t = 0, p = 0, star = pattern.npos, after_star = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++t, ++p;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      after_star = t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++after_star;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == pattern.npos;
}

Choice choose_all(const Collection& tensors) {
  Choice choice;
  for (TensorId id = 0; id < tensors.tensors().size(); ++id) {
    const Tensor& tensor = tensors.tensor(id);
    choice.picks.push_back({.tensor = id,
                            .name = tensor.name,
                            .aliases = tensor.aliases,
                            .dtype = tensor.dtype});
  }
  return choice;
}

Result<Choice> choose_weights(const Collection& tensors,
                              const TrainingObjects& training) {
  return WeightChooser(tensors, training).choose();
}

Result<Choice> choose_average(const Collection& tensors,
                              const TrainingObjects& training) {
  Choice choice = HOLDFAST_TRY(choose_weights(tensors, training));
  const auto model = picks_by_name(choice);
  std::vector<bool> averaged(choice.picks.size());
  for (TensorId id = 0; id < tensors.tensors().size(); ++id) {
    const Tensor& tensor = tensors.tensor(id);
    const RankName split = split_rank(tensor.name);
    if (!split.name.starts_with(kAverage) || split.rank.value_or(0) != 0) continue;
    const auto name = name_in_model(split.name, model);
    if (!name) continue;
    Pick& pick = choice.picks[model.at(*name)];
    if (tensors.tensor(pick.tensor).shape != tensor.shape) continue;
    if (averaged[model.at(*name)]) {
      return unsupported("{}: there are several averages of it; expected one", *name);
    }
    averaged[model.at(*name)] = true;
    pick.tensor = id;
    pick.dtype = tensor.dtype;
  }
  const auto count = std::ranges::count(averaged, true);
  if (count == 0) {
    return not_found(
        "there is no average with the names of the model; expected a Checkpointer with "
        "ema=");
  }
  if (const auto rest = std::ssize(averaged) - count; rest > 0) {
    choice.notes.push_back(fmt::format(
        "{} tensors are the model's, because the average lacks them", rest));
  }
  return choice;
}

Result<void> select_names(Choice& choice, std::string_view patterns,
                          std::string_view strip) {
  bool stripped = false;
  rename_picks(choice, [&](const std::string& name) -> std::optional<std::string> {
    if (!selected(name, patterns)) return std::nullopt;
    stripped |= name.starts_with(strip);
    return without(name, strip);
  });
  if (!patterns.empty()) choice.objects = Object();
  if (choice.picks.empty()) return not_found("no tensor matches {}", patterns);
  if (!strip.empty() && !stripped) {
    return not_found("--strip {}: no name begins with it", strip);
  }
  std::set<std::string, std::less<>> names;
  for (const Pick& pick : choice.picks) {
    if (pick.name.empty() || !names.insert(pick.name).second) {
      return invalid("--strip {}: two tensors would be called \"{}\"", strip,
                     pick.name);
    }
  }
  return {};
}

}  // namespace holdfast
