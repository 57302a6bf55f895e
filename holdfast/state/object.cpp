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

const Object* find_key(const Object::Dict& dict, std::string_view key) {
  for (const auto& [name, value] : dict.items) {
    const auto* text = name.as<std::string>();
    if (text != nullptr && *text == key) return &value;
  }
  return nullptr;
}

const Object* find_key(const Object& dict, std::string_view key) {
  const auto* items = dict.as<Object::Dict>();
  return items == nullptr ? nullptr : find_key(*items, key);
}

Object* find_key(Object& dict, std::string_view key) {
  return const_cast<Object*>(find_key(std::as_const(dict), key));
}

}  // namespace holdfast
