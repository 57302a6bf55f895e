// The user's map of roles.
#include <algorithm>

#include "holdfast/base/json_fields.h"
#include "holdfast/base/json_text.h"
#include "holdfast/roles/roles.h"
#include "holdfast/state/tensor_names.h"

namespace holdfast {
namespace {

Result<void> add_pattern(const JsonPlace& at, Role role, const std::string& where,
                         RoleMap& map) {
  if (const auto pattern = at.as<std::string>()) {
    map.patterns.emplace_back(*pattern, role);
    return {};
  }
  return invalid("{}: is no pattern; expected names in quotes, such as \"model/*\"",
                 where);
}

bool selects_tensor(const std::string& pattern, const Tensor& tensor) {
  return selects(pattern, tensor.name) ||
         std::ranges::any_of(tensor.aliases, [&](const std::string& alias) {
           return selects(pattern, alias);
         });
}

}  // namespace

std::string RoleMap::text() const {
  std::vector<std::pair<std::string, std::vector<std::string>>> by_role;
  for (const auto& [pattern, role] : patterns) {
    const std::string name(name_of(role));
    auto found = std::ranges::find(by_role, name, [](const auto& one) { return one.first; });
    if (found == by_role.end()) found = by_role.insert(found, {name, {}});
    found->second.push_back(pattern);
  }
  return to_json_text(by_role, {.ascii = true});
}

Result<RoleMap> parse_role_map(std::string_view json, const std::string& where) {
  const auto parsed = HOLDFAST_TRY(JsonDocument::parse(json, where));
  const JsonPlace root = parsed.root();
  RoleMap map;
  const auto add = [&](const std::string& name, const JsonPlace& at) -> Result<void> {
    const std::string place = fmt::format("{}: {}", where, shown(name));
    const Role role = HOLDFAST_TRY(parse_role(name).within(where));
    if (!at.is_list()) return add_pattern(at, role, place, map);
    for (size_t i = 0; i < *at.length(); ++i) {
      HOLDFAST_TRY(add_pattern(at.item(i), role, place, map));
    }
    return {};
  };
  if (root.is_object()) HOLDFAST_TRY(root.for_each(add));
  if (!map.empty()) return map;
  return invalid(
      "{}: names no pattern; expected an object of roles and patterns, such as "
      "{{\"parameter\": [\"model/*\"]}}",
      where);
}

Result<void> give_roles(const RoleMap& map, const Collection& collection,
                        Roles& roles) {
  std::vector<const std::string*> by(roles.size());  // the pattern that gave the role
  for (const auto& [pattern, role] : map.patterns) {
    bool used = false;
    for (TensorId t = 0; t < roles.size(); ++t) {
      const Tensor& tensor = collection.tensor(t);
      if (!selects_tensor(pattern, tensor)) continue;
      used = true;
      if (by[t] != nullptr && roles[t].role != role) {
        return invalid("{}: is a {} by \"{}\" and a {} by \"{}\"; expected one role",
                       tensor.name, name_of(roles[t].role), *by[t], name_of(role),
                       pattern);
      }
      by[t] = &pattern;
      roles[t].role = role;
      roles[t].origin = RoleOrigin::kGiven;
    }
    if (!used) return not_found("{}: no tensor has such a name", pattern);
  }
  return {};
}

}  // namespace holdfast
