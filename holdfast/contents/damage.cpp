#include "holdfast/contents/damage.h"

#include <fmt/format.h>

namespace holdfast {

std::string to_string(const Damage& damage) {
  if (damage.chunk < 0) return fmt::format("{}: {}", damage.file, damage.what);
  std::string names;
  for (const std::string& name : damage.tensors) {
    names += (names.empty() ? "; " : ", ") + name;
  }
  return fmt::format("{}: chunk {} (bytes {} to {}{}) {}", damage.file, damage.chunk,
                     damage.offset, damage.offset + damage.bytes, names, damage.what);
}

}  // namespace holdfast
