#include "holdfast/roles/roles.h"

#include <algorithm>
#include <set>

#include "holdfast/roles/roles_internal.h"
#include "holdfast/state/tensor_names.h"

namespace holdfast {
namespace {

// The parameters that slots and masters of the collection belong to.
std::set<std::string_view> owners_in(const Collection& collection) {
  std::set<std::string_view> owners;
  for (const Tensor& tensor : collection.tensors()) {
    if (!tensor.of.empty()) owners.insert(tensor.of);
  }
  return owners;
}

// A Checkpointer records the tensors of other objects (an EMA, say) as parameters, too,
// because it does not know what they are for. It calls those of the model "model.".
bool is_recorded_parameter(const Tensor& tensor,
                           const std::set<std::string_view>& owners) {
  return tensor.name.starts_with("model.") || owners.contains(tensor.name);
}

TensorRole recorded_or_guessed(const Tensor& tensor, bool known) {
  return {.role = known ? tensor.role : role_of(tensor),
          .origin = known ? RoleOrigin::kFile : RoleOrigin::kGuessed,
          .of = tensor.of};
}

}  // namespace

std::string_view name_of(RoleOrigin origin) {
  switch (origin) {
    case RoleOrigin::kGuessed: return "guessed";
    case RoleOrigin::kFile: return "file";
    case RoleOrigin::kGiven: return "given";
  }
  return "";
}

void set_known(TensorRole& role, Role known) {
  if (role.origin != RoleOrigin::kGuessed) return;
  role.role = known;
  role.origin = RoleOrigin::kFile;
}

Role role_in_optimizer(const Tensor& tensor) {
  // Only the last part of the name counts: that all of it is an optimizer's is known.
  Tensor bare = tensor;
  const size_t layer = layer_of(tensor.name).size();
  if (layer > 0) bare.name.erase(0, layer + 1);
  const Role guess = role_of(bare);
  if (guess != Role::kParameter && guess != Role::kBuffer) return guess;
  return tensor.shape.rank() == 0 ? Role::kCounter : Role::kSlot;
}

Roles find_roles(const RoleEvidence& evidence) {
  Roles roles;
  const auto owners = owners_in(evidence.collection);
  for (const Tensor& tensor : evidence.collection.tensors()) {
    const bool known =
        tensor.role != Role::kParameter ||
        (evidence.recorded && is_recorded_parameter(tensor, owners));
    roles.push_back(recorded_or_guessed(tensor, known));
  }
  add_tensorflow_roles(evidence, roles);
  add_keras_roles(evidence, roles);
  add_torch_roles(evidence, roles);
  for (TensorId t = 0; t < roles.size(); ++t) {
    TensorRole& role = roles[t];
    if (!role.layer.empty()) continue;
    const auto of = evidence.collection.find(role.of);
    role.layer = of && !roles[*of].layer.empty()
                     ? roles[*of].layer
                     : std::string(layer_of(role.of.empty()
                                                ? evidence.collection.tensor(t).name
                                                : role.of));
  }
  return roles;
}

Roles find_roles(const Contents& contents, bool recorded) {
  return find_roles({.collection = contents.collection,
                     .objects = contents.objects,
                     .metadata = contents.metadata,
                     .recorded = recorded});
}

std::vector<std::string> layers_of(const Roles& roles) {
  std::set<std::string, NameOrder> layers;
  for (const TensorRole& role : roles) {
    if (role.role == Role::kParameter) layers.insert(role.layer);
  }
  return {layers.begin(), layers.end()};
}

}  // namespace holdfast
