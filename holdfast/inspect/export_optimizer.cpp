// The state_dict() of an optimizer, made from what a Checkpointer has saved: slots as
// tensors "optimizer.<parameter>.<slot>", and by rank the options of parameter groups
// and the slots that are no tensors. In a state_dict() the parameters are numbers, in
// the order of the groups.
#include <map>

#include "holdfast/inspect/export_names.h"
#include "holdfast/inspect/packed_tree.h"

namespace holdfast {
namespace {

struct Group {
  std::vector<std::string> parameters;  // what the names of their slots begin with
  Object options;
};

// The groups of one optimizer. Ranks that hold other parameters in the same groups, as
// the stages of a pipeline do, add them to these groups.
void add_groups(std::vector<Group>& known, const std::vector<Group>& of_rank) {
  const bool alike =
      known.size() == of_rank.size() &&
      std::equal(known.begin(), known.end(), of_rank.begin(),
                 [](const Group& a, const Group& b) { return a.options == b.options; });
  std::set<std::string_view> there;
  for (const Group& group : known) {
    there.insert(group.parameters.begin(), group.parameters.end());
  }
  std::vector<Group> fresh;
  for (const Group& group : of_rank) {
    fresh.push_back({.parameters = {}, .options = group.options});
    for (const std::string& one : group.parameters) {
      if (!there.contains(one)) fresh.back().parameters.push_back(one);
    }
  }
  for (size_t i = 0; i < fresh.size(); ++i) {
    std::vector<std::string>& more = fresh[i].parameters;
    if (known.size() > i && alike) {
      auto& into = known[i].parameters;
      into.insert(into.end(), more.begin(), more.end());
    } else if (!more.empty() || there.empty()) {
      known.push_back(std::move(fresh[i]));
    }
  }
}

// The values of a key of every rank's "optimizer" dict, each once by its own keys; the
// first rank counts.
std::map<std::string, const Object*> merged(const TrainingObjects& training,
                                            std::string_view key) {
  std::map<std::string, const Object*> found;
  for (const Object& rank : training.ranks) {
    const Object* optimizer = find_key(rank, "optimizer");
    const Object* part = optimizer == nullptr ? nullptr : find_key(*optimizer, key);
    const auto* dict = part == nullptr ? nullptr : part->as<Object::Dict>();
    if (dict == nullptr) continue;
    for (const auto& [name, value] : dict->items) {
      if (const auto* text = name.as<std::string>()) found.emplace(*text, &value);
    }
  }
  return found;
}

class OptimizerChooser {
 public:
  OptimizerChooser(const Collection& collection, const TrainingObjects& training)
      : collection_(collection), training_(training) {}

  Result<Choice> choose() && {
    find_slots();
    HOLDFAST_TRY(find_groups());
    if (groups_.empty()) {
      return not_found(
          "there is no optimizer; expected a Checkpointer with optimizer=");
    }
    Object::Dict several;
    for (const auto& [key, groups] : groups_) {
      Object one = HOLDFAST_TRY(state_dict(key, groups));
      const std::string name = key.substr(std::min(kRoot.size() + 1, key.size()));
      several.items.emplace_back(Object(name), std::move(one));
    }
    choice_.objects = groups_.size() == 1 ? std::move(several.items.front().second)
                                          : Object(std::move(several));
    for (const TensorId id : used_) {
      const Tensor& tensor = collection_.tensor(id);
      choice_.picks.push_back(
          {.tensor = id, .name = tensor.name, .dtype = tensor.dtype});
    }
    return std::move(choice_);
  }

 private:
  static constexpr std::string_view kRoot = "optimizer";

  void find_slots() {
    for (TensorId id = 0; id < collection_.tensors().size(); ++id) {
      const RankName split = split_rank(collection_.tensor(id).name);
      const size_t dot = split.name.rfind('.');
      if (!split.name.starts_with(kRoot) || dot == split.name.npos) continue;
      if (split.rank.value_or(0) != 0) continue;
      slots_[std::string(split.name.substr(0, dot))].emplace(split.name.substr(dot + 1),
                                                             id);
    }
  }

  // The optimizer that a parameter's slots belong to: "optimizer", or "optimizer.<key>".
  std::string key_of(std::string_view prefix) const {
    const Object* kinds = find_key(training_.all, "optimizers");
    const auto* dict = kinds == nullptr ? nullptr : kinds->as<Object::Dict>();
    std::string best(kRoot);
    if (dict == nullptr) return best;
    for (const auto& [key, kind] : dict->items) {
      const auto* text = key.as<std::string>();
      if (text != nullptr && prefix.starts_with(*text + ".") &&
          text->size() > best.size()) {
        best = *text;
      }
    }
    return best;
  }

  Result<void> find_groups() {
    for (const Object& rank : training_.ranks) {
      const Object* optimizer = find_key(rank, kRoot);
      const Object* list =
          optimizer == nullptr ? nullptr : find_key(*optimizer, "groups");
      const auto* groups = list == nullptr ? nullptr : list->as<Object::List>();
      if (groups == nullptr) continue;
      std::map<std::string, std::vector<Group>> of_rank;
      for (const Object& one : groups->items) {
        Group group = HOLDFAST_TRY(read_group(one));
        if (group.parameters.empty()) continue;
        of_rank[key_of(group.parameters.front())].push_back(std::move(group));
      }
      for (const auto& [key, found] : of_rank) add_groups(groups_[key], found);
    }
    return {};
  }

  static Result<Group> read_group(const Object& object) {
    const Object* params = find_key(object, "params");
    const Object* options = find_key(object, "options");
    const auto* names = params == nullptr ? nullptr : params->as<Object::List>();
    if (names == nullptr || options == nullptr) {
      return corrupt("optimizer: a group without parameters or options");
    }
    Group group{.parameters = {},
                .options = HOLDFAST_TRY(plain_values(*options, "optimizer options"))};
    for (const Object& name : names->items) {
      const auto* text = name.as<std::string>();
      if (text == nullptr) return corrupt("optimizer: a parameter without a name");
      group.parameters.push_back(*text);
    }
    if (group.options.as<Object::Dict>() == nullptr) {
      return corrupt("optimizer: options that are no dict");
    }
    return group;
  }

  Result<Object> state_dict(const std::string& key, const std::vector<Group>& groups) {
    Object::Dict state;
    Object::List lists;
    int64_t number = 0;
    for (const Group& group : groups) {
      Object::Dict options = *group.options.as<Object::Dict>();
      Object::List numbers;
      for (const std::string& parameter : group.parameters) {
        Object slots = HOLDFAST_TRY(slots_of(parameter));
        if (!slots.as<Object::Dict>()->items.empty()) {
          state.items.emplace_back(Object(number), std::move(slots));
        }
        numbers.items.emplace_back(number++);
      }
      options.items.emplace_back(Object(std::string("params")),
                                 Object(std::move(numbers)));
      lists.items.emplace_back(std::move(options));
    }
    HOLDFAST_TRY(add_global_state(key, state));
    Object::Dict whole;
    whole.items.emplace_back(Object(std::string("state")), Object(std::move(state)));
    whole.items.emplace_back(Object(std::string("param_groups")),
                             Object(std::move(lists)));
    HOLDFAST_TRY(add_own_entries(key, whole));
    return Object(std::move(whole));
  }

  // The slots of a parameter: tensors, values that are no tensors, and those whose keys
  // are no simple names.
  Result<Object> slots_of(const std::string& parameter) {
    Object::Dict slots;
    if (const auto found = slots_.find(parameter); found != slots_.end()) {
      for (const auto& [slot, id] : found->second) {
        used_.insert(id);
        slots.items.emplace_back(
            Object(slot), Object(Object::TensorName{collection_.tensor(id).name}));
      }
    }
    for (const std::string_view part : {"slots", "odd"}) {
      const auto values = merged(training_, part);
      const auto found = values.find(parameter);
      if (found == values.end()) continue;
      const Object plain = HOLDFAST_TRY(read_plain(*found->second, parameter));
      const auto* dict = plain.as<Object::Dict>();
      if (dict == nullptr) return corrupt("{}: slots that are no dict", parameter);
      slots.items.insert(slots.items.end(), dict->items.begin(), dict->items.end());
    }
    return Object(std::move(slots));
  }

  // Plain values whose tensors are called as in the collection.
  Result<Object> read_plain(const Object& packed, std::string_view where) {
    Object plain = HOLDFAST_TRY(plain_values(packed, where));
    HOLDFAST_TRY(use_tensors(plain, where));
    return plain;
  }

  Result<void> use_tensors(Object& object, std::string_view where) {
    if (auto* leaf = std::get_if<Object::TensorName>(&object.value())) {
      auto id = collection_.find(leaf->name);
      if (!id) id = collection_.find(leaf->name + "@rank0");
      if (!id)
        return corrupt("{}: names the tensor {}, which is not there", where,
                       leaf->name);
      leaf->name = collection_.tensor(*id).name;
      used_.insert(*id);
    }
    if (auto* list = std::get_if<Object::List>(&object.value())) {
      for (Object& item : list->items) HOLDFAST_TRY(use_tensors(item, where));
    }
    if (auto* tuple = std::get_if<Object::Tuple>(&object.value())) {
      for (Object& item : tuple->items) HOLDFAST_TRY(use_tensors(item, where));
    }
    if (auto* dict = std::get_if<Object::Dict>(&object.value())) {
      for (auto& [key, value] : dict->items) HOLDFAST_TRY(use_tensors(value, where));
    }
    return {};
  }

  // What the optimizer keeps by keys that are no parameters, as (key, value) pairs.
  Result<void> add_global_state(const std::string& key, Object::Dict& state) {
    const auto values = merged(training_, "other");
    const auto found = values.find(key);
    if (found == values.end()) return {};
    const Object plain = HOLDFAST_TRY(read_plain(*found->second, key));
    const auto* list = plain.as<Object::List>();
    for (const Object& item : list != nullptr ? list->items : std::vector<Object>()) {
      const auto* pair = item.as<Object::Tuple>();
      if (pair == nullptr || pair->items.size() != 2) {
        return corrupt("{}: state without a key", key);
      }
      state.items.emplace_back(pair->items[0], pair->items[1]);
    }
    return {};
  }

  // What the optimizer's own state_dict() adds, which is saved as an object.
  Result<void> add_own_entries(const std::string& key, Object::Dict& whole) {
    const Object* things = find_key(training_.all, "things");
    const Object* added =
        things == nullptr ? nullptr : find_key(*things, key + ".state_dict");
    if (added == nullptr) return {};
    const Object plain = HOLDFAST_TRY(read_plain(*added, key));
    if (const auto* dict = plain.as<Object::Dict>()) {
      whole.items.insert(whole.items.end(), dict->items.begin(), dict->items.end());
    }
    return {};
  }

  const Collection& collection_;
  const TrainingObjects& training_;
  std::map<std::string, std::map<std::string, TensorId>> slots_;
  std::map<std::string, std::vector<Group>> groups_;  // by optimizer
  std::set<TensorId> used_;
  Choice choice_;
};

}  // namespace

Result<Choice> choose_optimizer(const Collection& tensors,
                                const TrainingObjects& training) {
  return OptimizerChooser(tensors, training).choose();
}

}  // namespace holdfast
