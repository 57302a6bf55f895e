#include "holdfast/state/object.h"

#include <bit>

namespace holdfast {

bool operator==(const Object::List& a, const Object::List& b) {
  return a.items == b.items;
}
bool operator==(const Object::Tuple& a, const Object::Tuple& b) {
  return a.items == b.items;
}
bool operator==(const Object::Dict& a, const Object::Dict& b) {
  return a.items == b.items;
}

bool operator==(const Object& a, const Object& b) {
  const auto* x = a.as<double>();
  const auto* y = b.as<double>();
  if (x != nullptr && y != nullptr) {
    return std::bit_cast<uint64_t>(*x) == std::bit_cast<uint64_t>(*y);
  }
  return a.value_ == b.value_;
}

}  // namespace holdfast
