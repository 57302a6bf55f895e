#include "holdfast/base/number_text.h"
#include "holdfast/hdf5/stored_value_internal.h"

#include <algorithm>
#include <bit>

#include "holdfast/base/json_text.h"

namespace holdfast::hdf5 {
namespace {

using Kind = NativeValue::Kind;

// The number of a text in its heap has 16 bits.
constexpr size_t kMostTexts = 60000;

std::optional<uint64_t> unsigned_of(const Object& object) {
  if (const auto* small = object.as<int64_t>()) {
    return *small < 0 ? std::nullopt : std::optional(static_cast<uint64_t>(*small));
  }
  const auto* large = object.as<Object::BigInteger>();
  return large == nullptr ? std::nullopt : number_in<uint64_t>(large->decimal);
}

// Bytes are read again as bytes only if they are no text, and up to the first zero.
bool is_odd_text(const Bytes& bytes) {
  return !bytes.empty() && !is_utf8(text_of(bytes)) &&
         std::ranges::find(bytes, std::byte{0}) == bytes.end();
}

std::optional<Kind> kind_of(const Object& element) {
  if (element.as<std::string>() != nullptr) return Kind::kText;
  if (element.as<bool>() != nullptr) return Kind::kBool;
  if (element.as<int64_t>() != nullptr) return Kind::kInteger;
  if (element.as<double>() != nullptr) return Kind::kFloat;
  if (unsigned_of(element)) return Kind::kUnsigned;
  const auto* bytes = element.as<Bytes>();
  return bytes != nullptr && is_odd_text(*bytes) ? std::optional(Kind::kBytes)
                                                 : std::nullopt;
}

// Collects the elements of nested lists that have the same sizes everywhere.
bool collect(const Object& object, size_t depth, NativeValue& value) {
  const auto* list = object.as<Object::List>();
  if (list == nullptr) {
    value.elements.push_back(&object);
    return depth == value.sizes.size();
  }
  if (depth >= value.sizes.size() || std::ssize(list->items) != value.sizes[depth]) {
    return false;
  }
  return std::ranges::all_of(list->items, [&](const Object& item) {
    return collect(item, depth + 1, value);
  });
}

// The kind that all elements have. Integers of which some are large are unsigned.
std::optional<Kind> common_kind(const NativeValue& value) {
  std::optional<Kind> common = kind_of(*value.elements.front());
  for (const Object* element : value.elements) {
    const auto kind = kind_of(*element);
    if (kind == common) continue;
    const bool integers = unsigned_of(*element) && unsigned_of(*value.elements.front());
    if (!integers) return std::nullopt;
    common = Kind::kUnsigned;
  }
  if (common != Kind::kUnsigned) return common;
  const bool all = std::ranges::all_of(
      value.elements, [](const Object* one) { return unsigned_of(*one).has_value(); });
  return all ? common : std::nullopt;
}

size_t longest(const NativeValue& value) {
  size_t most = 1;
  for (const Object* element : value.elements) {
    most = std::max(most, element->as<Bytes>()->size());
  }
  return most;
}

Bytes type_of_value(const NativeValue& value) {
  switch (value.kind) {
    case Kind::kNone: return type_of(Dtype::kF32);
    case Kind::kText: return heap_text_type();
    case Kind::kBytes: return text_type(longest(value));
    case Kind::kBool: return type_of(Dtype::kBool);
    case Kind::kInteger: return type_of(Dtype::kI64);
    case Kind::kUnsigned: return type_of(Dtype::kU64);
    case Kind::kFloat: break;
  }
  return type_of(Dtype::kF64);
}

void append_text(Fields& fields, const std::string& text, TextHeaps& texts) {
  // HDF5 takes the address 0 for an empty text.
  const HeapText place = text.empty() ? HeapText{.heap = 0} : texts.use(text);
  fields.number(text.size(), 4).number(place.heap, 8).number(place.number, 4);
}

}  // namespace

void TextHeaps::announce(std::string_view text) {
  if (!text.empty()) texts_.emplace_back(text);
}

void TextHeaps::write(Encoder& encoder) {
  for (size_t first = 0; first < texts_.size(); first += kMostTexts) {
    const size_t count = std::min(kMostTexts, texts_.size() - first);
    const std::vector<std::string_view> part(
        texts_.begin() + static_cast<int64_t>(first),
        texts_.begin() + static_cast<int64_t>(first + count));
    const uint64_t heap = encoder.add_texts(part);
    for (size_t i = 0; i < count; ++i) {
      places_[texts_[first + i]].push_back({.heap = heap, .number = i + 1});
    }
  }
}

HeapText TextHeaps::use(std::string_view text) {
  const auto found = places_.find(text);
  HOLDFAST_CHECK(found != places_.end() && !found->second.empty(),
                 "a text of {} bytes was not announced", text.size());
  const HeapText place = found->second.back();
  found->second.pop_back();
  return place;
}

size_t NativeValue::stored_bytes() const {
  if (as_it_was != nullptr) return as_it_was->type.size() + as_it_was->data.size();
  switch (kind) {
    case Kind::kText: return elements.size() * kHeapTextBytes;
    case Kind::kBytes: return elements.size() * longest(*this);
    case Kind::kBool: return elements.size();
    default: return elements.size() * 8;
  }
}

std::optional<NativeValue> native_value(const Object& object) {
  NativeValue value;
  if (object.none()) return value;
  const Object* inner = &object;
  while (const auto* list = inner->as<Object::List>()) {
    value.sizes.push_back(std::ssize(list->items));
    if (list->items.empty()) {
      value.kind = Kind::kFloat;  // as numpy has an empty list
      return value.sizes.size() == 1 ? std::optional(value) : std::nullopt;
    }
    if (std::ssize(value.sizes) > kMaxRank) return std::nullopt;
    inner = &list->items.front();
  }
  if (!collect(object, 0, value)) return std::nullopt;
  const auto kind = common_kind(value);
  if (!kind) return std::nullopt;
  value.kind = *kind;
  return value;
}

std::optional<NativeValue> native_value(const Object& object, const Hdf5Value* before) {
  if (before == nullptr || !(before->value == object)) return native_value(object);
  return NativeValue{.as_it_was = before};
}

void announce_texts(const NativeValue& value, TextHeaps& texts) {
  if (value.kind != Kind::kText) return;
  for (const Object* element : value.elements) {
    texts.announce(*element->as<std::string>());
  }
}

StoredValue stored_value(const NativeValue& value, TextHeaps& texts) {
  if (const Hdf5Value* was = value.as_it_was) {
    return {.type = was->type,
            .space = was->null ? null_space() : space_of(was->sizes),
            .data = was->data};
  }
  StoredValue stored{.type = type_of_value(value), .space = space_of(value.sizes)};
  if (value.kind == Kind::kNone) stored.space = null_space();
  Fields fields;
  for (const Object* element : value.elements) {
    switch (value.kind) {
      case Kind::kNone: break;
      case Kind::kText: append_text(fields, *element->as<std::string>(), texts); break;
      case Kind::kBytes:
        fields.text(text_of(*element->as<Bytes>()), longest(value));
        break;
      case Kind::kBool: fields.number(*element->as<bool>() ? 1 : 0, 1); break;
      case Kind::kInteger:
        fields.number(static_cast<uint64_t>(*element->as<int64_t>()), 8);
        break;
      case Kind::kUnsigned: fields.number(unsigned_of(*element).value(), 8); break;
      case Kind::kFloat:
        fields.number(std::bit_cast<uint64_t>(*element->as<double>()), 8);
        break;
    }
  }
  stored.data = fields.take();
  return stored;
}

}  // namespace holdfast::hdf5
