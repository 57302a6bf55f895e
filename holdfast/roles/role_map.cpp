// The user's map of roles.
#include <algorithm>

#include "holdfast/base/json.h"
#include "holdfast/base/json_text.h"
#include "holdfast/roles/roles.h"
#include "holdfast/state/tensor_names.h"

namespace holdfast {
namespace {

Result<void> add_pattern(const Json& json, Role role, const std::string& where,
                         RoleMap& map) {
  if (!json.is_string()) {
    return invalid("{}: is no pattern; expected names in quotes, such as \"model/*\"",
                   where);
  }
  map.patterns.emplace_back(json.get<std::string>(), role);
  return {};
}

bool selects_tensor(const std::string& pattern, const Tensor& tensor) {
  return selects(pattern, tensor.name) ||
         std::ranges::any_of(tensor.aliases, [&](const std::string& alias) {
           return selects(pattern, alias);
         });
}

}  // namespace

std::string RoleMap::text() const {
  OrderedJson json = OrderedJson::object();
  for (const auto& [pattern, role] : patterns) json[std::string(name_of(role))] = {};
  for (const auto& [pattern, role] : patterns) {
    json[std::string(name_of(role))].push_back(pattern);
  }
  return json.dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
}

Result<RoleMap> parse_role_map(std::string_view json, const std::string& where) {
  const Result<Json> parsed = parse_json(json, where);
  if (!parsed.ok()) return parsed.error().as(ErrorCode::kInvalid);
  RoleMap map;
  if (parsed->is_object()) {
    for (const auto& [name, patterns] : parsed->items()) {
      const std::string at = fmt::format("{}: {}", where, shown(name));
      const Role role = HOLDFAST_TRY(parse_role(name).within(where));
      if (!patterns.is_array()) {
        HOLDFAST_TRY(add_pattern(patterns, role, at, map));
        continue;
      }
      for (const Json& one : patterns) HOLDFAST_TRY(add_pattern(one, role, at, map));
    }
  }
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
