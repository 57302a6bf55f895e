// Each function reads one kind of structure, and fills the roles that it tells. None of
// them changes a role that the file records.
#pragma once

#include "holdfast/roles/roles.h"

namespace holdfast {

void add_tensorflow_roles(const RoleEvidence& evidence, Roles& roles);
void add_keras_roles(const RoleEvidence& evidence, Roles& roles);
void add_torch_roles(const RoleEvidence& evidence, Roles& roles);

// Sets a role that the structure of the file tells.
void set_known(TensorRole& role, Role known);
// The role of a tensor of an optimizer: numbers without dimensions count, unless they are
// called as slots are; the rest are slots or masters.
Role role_in_optimizer(const Tensor& tensor);

}  // namespace holdfast
