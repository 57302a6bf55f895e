// What each tensor of a file is for, which layer it belongs to, and how that is known.
//
// Few formats record roles. But many files say more than names do: the graph of objects
// in a checkpoint of TensorFlow, the groups and the config of a file of Keras, and the
// nesting of a state dict of a torch optimizer. What they say comes first. A role that
// only the name of a tensor suggests (state/tensor_names.h) is marked as guessed. The
// user's own map comes before all of that.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "holdfast/contents/contents.h"
#include "holdfast/state/tensor.h"

namespace holdfast {

// How a role is known.
enum class RoleOrigin : uint8_t {
  kGuessed,  // only the name of the tensor suggests it
  kFile,     // the file records it, or its structure tells it
  kGiven,    // the user said so
};
std::string_view name_of(RoleOrigin origin);  // "guessed", "file", "given"

struct TensorRole {
  Role role = Role::kParameter;
  RoleOrigin origin = RoleOrigin::kGuessed;
  std::string of{};  // the tensor that a slot or master belongs to, if that is known
  // The layer that the tensor, or the one that it belongs to, is in. The same model has
  // the same layers in the formats of Keras and TensorFlow, as far as files name them.
  std::string layer{};
};

// One for each tensor of a collection.
using Roles = std::vector<TensorRole>;

// What find_roles() looks at.
struct RoleEvidence {
  const Collection& collection;
  const Object& objects;
  const std::map<std::string, std::string>& metadata;
  // Whether the writer recorded the role of every tensor, as in a step of a run.
  bool recorded = false;
};

Roles find_roles(const RoleEvidence& evidence);
Roles find_roles(const Contents& contents, bool recorded);

// The layers of the parameters, each once, in the order of their names, with numbers as
// numbers (state/tensor_names.h).
std::vector<std::string> layers_of(const Roles& roles);

// The user's map of roles to patterns of names (state/tensor_names.h), as in
//   {"parameter": ["model/*"], "slot": ["optimizer/*", "ema"]}
struct RoleMap {
  std::vector<std::pair<std::string, Role>> patterns{};

  bool empty() const { return patterns.empty(); }
  // A text by which equal maps are known.
  std::string text() const;
};

// Fails with kInvalid, naming `where`, for anything else than a map.
Result<RoleMap> parse_role_map(std::string_view json, const std::string& where);

// Gives tensors the roles of the map. A tensor that no pattern selects keeps its role.
// Fails with kNotFound for a pattern that selects no tensor, and with kInvalid if two
// patterns give a tensor different roles.
Result<void> give_roles(const RoleMap& map, const Collection& collection, Roles& roles);

}  // namespace holdfast
