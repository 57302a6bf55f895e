// Roles by the graph of objects in a checkpoint of TensorFlow.
//
// A variable is stored under the shortest path to it, which may lead through the
// optimizer: Keras 3 stores the weights of a model as optimizer/_trainable_variables/N.
// So the path says nothing, and the graph says all:
//
// 1. An optimizer is an object with slots (TensorFlow, Keras 2), or with the lists
//    _variables and _iterations (Keras 2.11 and later).
// 2. The variables that it trains are those that have slots, and those in its list
//    _trainable_variables. They are parameters.
// 3. A variable that is reached only through an optimizer is the optimizer's own.
// 4. A variable beside trained ones in the same layer, which is not trained itself, is a
//    buffer: a moving average of BatchNorm.
#include <algorithm>
#include <deque>
#include <unordered_map>
#include <unordered_set>

#include "holdfast/base/number_text.h"
#include "holdfast/roles/roles_internal.h"
#include "holdfast/state/tensor_names.h"
#include "holdfast/tensorflow/object_graph.h"

namespace holdfast {
namespace {

constexpr size_t kNowhere = SIZE_MAX;
constexpr size_t kMostLevels = 100;
constexpr size_t kLongestPath = 4096;

size_t child_of(const TrackedObject& object, std::string_view name) {
  const auto found = std::ranges::find(object.children, name, &TrackedObject::Child::name);
  return found == object.children.end() ? kNowhere : found->node;
}

bool is_optimizer(const TrackedObject& object) {
  return !object.slots.empty() || (child_of(object, "_variables") != kNowhere &&
                                   child_of(object, "_iterations") != kNowhere);
}

// The nodes of a list of TensorFlow, whose children are called by their places. Empty if
// the object is no list.
std::vector<size_t> items_of(const TrackedObject& object) {
  std::vector<size_t> items(object.children.size(), kNowhere);
  for (const TrackedObject::Child& child : object.children) {
    const auto place = number_in<size_t>(child.name);
    if (!place || *place >= items.size()) return {};
    items[*place] = child.node;
  }
  if (std::ranges::count(items, kNowhere) > 0) return {};
  return items;
}

class GraphRoles {
 public:
  GraphRoles(const ObjectGraph& graph, const Collection& collection, Roles& roles)
      : nodes_(graph.nodes),
        collection_(collection),
        roles_(roles),
        parents_(nodes_.size()),
        owners_(nodes_.size(), kNowhere) {}

  void add() {
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (is_optimizer(nodes_[n])) read_optimizer(nodes_[n]);
    }
    walk_outside();
    for (size_t n = 0; n < nodes_.size(); ++n) {
      if (const auto id = tensor_of(n)) set_role(n, *id);
    }
    set_layers();
  }

 private:
  // The object through which an object is reached first, and its name there.
  struct Parent {
    size_t node = kNowhere;
    const std::string* name = nullptr;
  };

  std::optional<TensorId> tensor_of(size_t node) const {
    const std::string& key = nodes_[node].key;
    return key.empty() ? std::nullopt : collection_.find(key);
  }

  void read_optimizer(const TrackedObject& optimizer) {
    for (const TrackedObject::Slot& slot : optimizer.slots) {
      trained_.insert(slot.original);
      owners_[slot.slot] = slot.original;
    }
    const size_t list = child_of(optimizer, "_trainable_variables");
    if (list == kNowhere) return;
    const std::vector<size_t>& variables = items_in(list);
    for (const TrackedObject::Child& child : optimizer.children) {
      if (child.node == list || !matched_.insert(child.node).second) continue;
      match_slots(items_of(nodes_[child.node]), variables);
    }
  }

  // The items of a list of trained variables. A hostile graph may name one list often, so
  // it is read once.
  const std::vector<size_t>& items_in(size_t list) {
    const auto [entry, added] = lists_.try_emplace(list);
    if (added) {
      entry->second = items_of(nodes_[list]);
      trained_.insert(entry->second.begin(), entry->second.end());
    }
    return entry->second;
  }

  // A list such as _momentums has a slot for each variable, in their order.
  void match_slots(const std::vector<size_t>& slots,
                   const std::vector<size_t>& variables) {
    if (slots.size() != variables.size()) return;
    for (size_t i = 0; i < slots.size(); ++i) {
      const auto slot = tensor_of(slots[i]), variable = tensor_of(variables[i]);
      if (slot && variable &&
          collection_.tensor(*slot).shape == collection_.tensor(*variable).shape) {
        owners_[slots[i]] = variables[i];
      }
    }
  }

  // Visits all objects that are reached without going through an optimizer, the nearest
  // ones first.
  void walk_outside() {
    std::deque<size_t> waiting{0};
    parents_[0].node = 0;
    while (!waiting.empty()) {
      const size_t node = waiting.front();
      waiting.pop_front();
      if (is_optimizer(nodes_[node])) continue;
      for (const TrackedObject::Child& child : nodes_[node].children) {
        if (parents_[child.node].node != kNowhere) continue;
        parents_[child.node] = {node, &child.name};
        waiting.push_back(child.node);
        if (trained_.contains(child.node)) trained_layers_.insert(node);
      }
    }
  }

  void set_role(size_t node, TensorId id) {
    const Tensor& tensor = collection_.tensor(id);
    const size_t parent = parents_[node].node;
    if (trained_.contains(node)) {
      set_known(roles_[id], Role::kParameter);
    } else if (parent == kNowhere && owners_[node] != kNowhere) {
      set_known(roles_[id], Role::kSlot);
      roles_[id].of = nodes_[owners_[node]].key;
    } else if (parent == kNowhere) {
      set_known(roles_[id], role_in_optimizer(tensor));
    } else if (trained_layers_.contains(parent)) {
      set_known(roles_[id], tensor.shape.elements() == 1 ? Role::kCounter : Role::kBuffer);
    }
  }

  // The path of an object; empty for one that lies too deep.
  std::string path_of(size_t node) const {
    std::vector<std::string_view> parts;
    size_t length = 0;
    for (; node != 0; node = parents_[node].node) {
      parts.push_back(*parents_[node].name);
      length += parts.back().size();
      if (parts.size() > kMostLevels || length > kLongestPath) return "";
    }
    std::string path;
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      path += (path.empty() ? "" : "/") + std::string(*part);
    }
    return path;
  }

  // Whether no two objects hold variables of a layer of the same name.
  bool has_unique_names() const {
    std::unordered_map<std::string_view, size_t> named;
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const std::string_view name = layer_of(nodes_[n].full_name);
      const size_t parent = parents_[n].node;
      if (name.empty() || parent == kNowhere || !tensor_of(n)) continue;
      if (named.emplace(name, parent).first->second != parent) return false;
    }
    return true;
  }

  // Layers are called as the program called them ("sequential/dense"), because other
  // formats of Keras call them so, too. If two layers have the same name, all are called
  // by their paths.
  void set_layers() {
    const bool unique = has_unique_names();
    for (size_t n = 0; n < nodes_.size(); ++n) {
      const auto id = tensor_of(n);
      const bool outside = parents_[n].node != kNowhere;
      if (!id || (!outside && !trained_.contains(n))) continue;
      const std::string_view name = layer_of(nodes_[n].full_name);
      if (unique && !name.empty() && name.size() <= kLongestPath) {
        roles_[*id].layer = name;
      } else if (outside) {
        roles_[*id].layer = path_of(parents_[n].node);
      }
    }
  }

  const std::vector<TrackedObject>& nodes_;
  const Collection& collection_;
  Roles& roles_;
  std::vector<Parent> parents_;
  std::vector<size_t> owners_;  // the variable that a slot belongs to
  std::unordered_set<size_t> trained_;
  std::unordered_map<size_t, std::vector<size_t>> lists_;  // of trained variables
  std::unordered_set<size_t> matched_;  // lists of slots that were matched already
  std::unordered_set<size_t> trained_layers_;  // objects that hold a trained variable
};

}  // namespace

void add_tensorflow_roles(const RoleEvidence& evidence, Roles& roles) {
  const Object* object = find_key(evidence.objects, kObjectGraphKey);
  if (object == nullptr || object->as<Bytes>() == nullptr) return;
  const auto graph = parse_object_graph(*object->as<Bytes>());
  if (graph) GraphRoles(*graph, evidence.collection, roles).add();
}

}  // namespace holdfast
