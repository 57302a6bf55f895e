#include "holdfast/state/tensor.h"

#include <array>

namespace holdfast {
namespace {

constexpr std::array<std::string_view, 5> kRoleNames{"parameter", "slot", "master",
                                                     "buffer", "counter"};

}  // namespace

std::string_view name_of(Role role) { return kRoleNames[static_cast<size_t>(role)]; }

Result<Role> parse_role(std::string_view name) {
  for (size_t i = 0; i < kRoleNames.size(); ++i) {
    if (kRoleNames[i] == name) return static_cast<Role>(i);
  }
  return invalid(
      "role \"{}\": not known; expected parameter, slot, master, buffer or counter",
      name);
}

}  // namespace holdfast
