// Objects: what a checkpoint holds that is no tensor, such as learning rates, step
// counts, random generators and the nesting of a state dict. An Object is plain data in
// a tree, never code. Its leaves may name tensors.
//
// It has the types of Python, because training programs hold those, and it keeps them
// apart: a tuple comes back as a tuple, 1 as an integer and 1.0 as a float, a float
// with all its bits, a dict with its order and with keys that are not strings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "holdfast/base/bytes.h"

namespace holdfast {

class Object {
 public:
  struct None {
    friend bool operator==(const None&, const None&) = default;
  };
  // An integer outside int64_t: an optional '-', then decimal digits without leading
  // zeros.
  struct BigInteger {
    std::string decimal;
    friend bool operator==(const BigInteger&, const BigInteger&) = default;
  };
  struct List {
    std::vector<Object> items;
    friend bool operator==(const List&, const List&);
  };
  struct Tuple {
    std::vector<Object> items;
    friend bool operator==(const Tuple&, const Tuple&);
  };
  // Items in order of insertion. Keys are distinct. No key is a list or dict, or has
  // one in it.
  struct Dict {
    std::vector<std::pair<Object, Object>> items;
    friend bool operator==(const Dict&, const Dict&);
  };
  // A tensor of the collection that the object belongs to, by its name.
  struct TensorName {
    std::string name;
    friend bool operator==(const TensorName&, const TensorName&) = default;
  };
  using Value = std::variant<None, bool, int64_t, BigInteger, double, std::string,
                             Bytes, List, Tuple, Dict, TensorName>;

  Object() = default;  // None
  // Not explicit, so that code can write a plain value where an Object is expected.
  Object(Value value) : value_(std::move(value)) {}

  const Value& value() const { return value_; }
  Value& value() { return value_; }
  template <typename T>
  const T* as() const {
    return std::get_if<T>(&value_);
  }
  bool none() const { return as<None>() != nullptr; }

  // Floats are compared by their bits, so that a NaN equals itself and 0.0 is not -0.0.
  friend bool operator==(const Object& a, const Object& b);

 private:
  Value value_;
};

// The value of a key that is a text. Null if the object is no dict or lacks the key.
const Object* find_key(const Object::Dict& dict, std::string_view key);
const Object* find_key(const Object& dict, std::string_view key);
Object* find_key(Object& dict, std::string_view key);

// How deep containers may be nested, in memory and in files. A deeper tree in a file is
// taken for an attack.
inline constexpr int kMaxObjectDepth = 100;

}  // namespace holdfast
