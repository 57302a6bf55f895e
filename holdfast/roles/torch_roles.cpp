// Roles by the nesting of torch's state dicts: a dict with "state" and "param_groups" is
// that of an optimizer, whatever it is called.
#include "holdfast/roles/roles_internal.h"

namespace holdfast {
namespace {

template <typename Visit>
void visit_items(const Object& object, const Visit& visit) {
  if (const auto* list = object.as<Object::List>()) {
    for (const Object& item : list->items) visit(item);
  } else if (const auto* tuple = object.as<Object::Tuple>()) {
    for (const Object& item : tuple->items) visit(item);
  } else if (const auto* dict = object.as<Object::Dict>()) {
    for (const auto& [key, item] : dict->items) visit(item);
  }
}

class TorchRoles {
 public:
  TorchRoles(const Collection& collection, Roles& roles)
      : collection_(collection), roles_(roles) {}

  void find_optimizers(const Object& object) {
    const Object* state = find_key(object, "state");
    const Object* groups = find_key(object, "param_groups");
    if (state != nullptr && groups != nullptr && groups->as<Object::List>()) {
      mark_slots(*state);
      return;
    }
    visit_items(object, [&](const Object& item) { find_optimizers(item); });
  }

 private:
  void mark_slots(const Object& object) {
    if (const auto* leaf = object.as<Object::TensorName>()) {
      const auto id = collection_.find(leaf->name);
      if (id) set_known(roles_[*id], role_in_optimizer(collection_.tensor(*id)));
      return;
    }
    visit_items(object, [&](const Object& item) { mark_slots(item); });
  }

  const Collection& collection_;
  Roles& roles_;
};

}  // namespace

void add_torch_roles(const RoleEvidence& evidence, Roles& roles) {
  TorchRoles(evidence.collection, roles).find_optimizers(evidence.objects);
}

}  // namespace holdfast
