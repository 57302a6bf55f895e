// Objects as HDF5 stores them: attributes, and datasets of texts.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/hdf5/encode_internal.h"
#include "holdfast/state/object.h"

namespace holdfast::hdf5 {

// The texts of a file, in global heaps. All texts are announced first, because the heaps
// come before the structures that use them. Each use has a text of its own: programs that
// change an attribute free its text.
class TextHeaps {
 public:
  void announce(std::string_view text);
  void write(Encoder& encoder);
  // The place of a text that was announced. Each announcement is used once.
  HeapText use(std::string_view text);

 private:
  std::vector<std::string> texts_;
  std::map<std::string, std::vector<HeapText>, std::less<>> places_;
};

// A value that HDF5 can hold, and that is the same Object when it is read again.
struct NativeValue {
  enum class Kind { kNone, kText, kBytes, kBool, kInteger, kUnsigned, kFloat };
  Kind kind = Kind::kNone;
  std::vector<int64_t> sizes{};           // of nested lists
  std::vector<const Object*> elements{};  // of the object that was given
  // The value as it lay in a file of HDF5, if it did. Then the fields above say nothing.
  const Hdf5Value* as_it_was = nullptr;

  // How many bytes it takes in the file, without texts in heaps.
  size_t stored_bytes() const;
};
// nullopt if HDF5 has no such value: a dict, or a list of different things.
std::optional<NativeValue> native_value(const Object& object);

// The same value, with the type that it had in the file that it was read from. `before`
// may be null, or of another value.
std::optional<NativeValue> native_value(const Object& object, const Hdf5Value* before);

void announce_texts(const NativeValue& value, TextHeaps& texts);
StoredValue stored_value(const NativeValue& value, TextHeaps& texts);

}  // namespace holdfast::hdf5
