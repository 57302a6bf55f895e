#include "holdfast/tensorflow/bundle_strings.h"

#include <algorithm>
#include <array>

#include "holdfast/tensorflow/masked_crc.h"
#include "holdfast/tensorflow/wire_format.h"

namespace holdfast::bundle {
namespace {

constexpr const char* kShapeKey = "shape";

// Extends a CRC by a length as the machine that wrote it held the length in memory, in this
// many bytes.
Crc32c extend_by_length(Crc32c crc, uint64_t length, size_t width, bool big_endian) {
  std::array<std::byte, 8> bytes{};
  store_little_endian(length, bytes);
  const ByteSpan used = ByteSpan(bytes).first(width);
  if (big_endian) std::ranges::reverse(used);
  return crc32c_extend(crc, used);
}

// How many bytes hold the length of a string.
size_t width_of(uint64_t length) { return length <= UINT32_MAX ? 4 : 8; }

// Removes the lengths from the front of the bytes.
Result<std::vector<uint64_t>> take_lengths(ByteView& bytes, int64_t count,
                                           bool big_endian, Crc32c& crc) {
  if (count > std::ssize(bytes)) {
    return corrupt("has {} bytes for {} strings; expected at least 1 for each",
                   bytes.size(), count);
  }
  std::vector<uint64_t> lengths;
  lengths.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto length = take_varint(bytes);
    if (!length) return corrupt("string {} has no length; expected one", i);
    crc = extend_by_length(crc, *length, width_of(*length), big_endian);
    lengths.push_back(*length);
  }
  return lengths;
}

// Removes the masked CRC of all that is before it. `what` is that, in words.
Result<void> take_crc(ByteView& bytes, std::string_view what, bool big_endian,
                      Crc32c& crc) {
  if (bytes.size() < 4) return corrupt("has no checksum of {}", what);
  std::array<std::byte, 4> masked{};
  std::copy_n(bytes.begin(), 4, masked.begin());
  if (big_endian) std::ranges::reverse(masked);
  const Crc32c expected = unmask_crc(load_little_endian<uint32_t>(masked));
  if (expected != crc) {
    return corrupt("{} have crc32c {:08x}; expected {:08x}", what, crc, expected);
  }
  crc = crc32c_extend(crc, bytes.first(4));
  bytes = bytes.subspan(4);
  return {};
}

// Makes the nested lists of dimensions k and more, and moves `next` on.
Object nested(const StringTensor& tensor, int k, size_t& next) {
  if (k == tensor.shape.rank()) return Object(copy_of(tensor.strings[next++]));
  Object::List list;
  list.items.reserve(static_cast<size_t>(tensor.shape[k]));
  for (int64_t i = 0; i < tensor.shape[k]; ++i) {
    list.items.push_back(nested(tensor, k + 1, next));
  }
  return Object(std::move(list));
}

// Whether lists of this shape say what the shape is.
bool lists_tell_shape(const Shape& shape) {
  return shape.elements() > 0 || shape == Shape{0};
}

// Follows the first items of nested lists to find the only shape that they can have.
std::optional<Shape> shape_in(const Object& object) {
  std::vector<int64_t> sizes;
  const Object* at = &object;
  while (const auto* list = at->as<Object::List>()) {
    sizes.push_back(std::ssize(list->items));
    if (list->items.empty()) break;
    at = &list->items.front();
  }
  if (std::ssize(sizes) > kMaxRank) return std::nullopt;
  const Result<Shape> shape = Shape::create(sizes);
  if (!shape.ok() || !lists_tell_shape(*shape)) return std::nullopt;
  return *shape;
}

bool collect(const Object& object, const Shape& shape, int k,
             std::vector<ByteView>& strings) {
  if (k == shape.rank()) {
    const auto* bytes = object.as<Bytes>();
    if (bytes != nullptr) strings.push_back(*bytes);
    return bytes != nullptr;
  }
  const auto* list = object.as<Object::List>();
  return list != nullptr && std::ssize(list->items) == shape[k] &&
         std::ranges::all_of(list->items, [&](const Object& item) {
           return collect(item, shape, k + 1, strings);
         });
}

// Reads the dict that stands for a shape without strings.
std::optional<StringTensor> empty_strings_in(const Object::Dict& dict) {
  if (dict.items.size() != 1) return std::nullopt;
  const auto& [key, value] = dict.items.front();
  const auto* list = value.as<Object::List>();
  if (!(key == Object(std::string(kShapeKey))) || list == nullptr) return std::nullopt;
  std::vector<int64_t> sizes;
  for (const Object& item : list->items) {
    const auto* size = item.as<int64_t>();
    if (size == nullptr) return std::nullopt;
    sizes.push_back(*size);
  }
  const Result<Shape> shape = Shape::create(sizes);
  if (!shape.ok() || shape->elements() != 0 || lists_tell_shape(*shape)) {
    return std::nullopt;
  }
  return StringTensor{*shape, {}};
}

}  // namespace

Result<DecodedStrings> decode_strings(ByteView bytes, int64_t count, bool big_endian) {
  DecodedStrings decoded;
  // TensorFlow reads an entry without bytes as empty strings.
  if (bytes.empty() && count == 0) return decoded;
  const auto lengths =
      HOLDFAST_TRY(take_lengths(bytes, count, big_endian, decoded.crc));
  HOLDFAST_TRY(
      take_crc(bytes, "the lengths of its strings", big_endian, decoded.crc));
  decoded.crc = crc32c_extend(decoded.crc, bytes);
  for (const uint64_t length : lengths) {
    if (length > bytes.size()) return corrupt("a string ends outside its tensor");
    decoded.strings.push_back(bytes.first(static_cast<size_t>(length)));
    bytes = bytes.subspan(static_cast<size_t>(length));
  }
  if (bytes.empty()) return decoded;
  return corrupt("has {} bytes after its last string; expected none", bytes.size());
}

Result<Crc32c> crc_of_variants(ByteView bytes, bool big_endian) {
  Crc32c crc = 0;
  while (!bytes.empty()) {
    const auto length = take_varint(bytes);
    if (!length || *length > bytes.size()) {
      return corrupt("a variant ends outside its tensor");
    }
    crc = extend_by_length(crc, *length, 8, big_endian);
    crc = crc32c_extend(crc, bytes.first(static_cast<size_t>(*length)));
    bytes = bytes.subspan(static_cast<size_t>(*length));
    HOLDFAST_TRY(take_crc(bytes, "the bytes of its variants", big_endian, crc));
  }
  return crc;
}

EncodedStrings encode_strings(const std::vector<ByteView>& strings) {
  EncodedStrings encoded;
  for (const ByteView string : strings) {
    append_varint(encoded.bytes, string.size());
    encoded.crc = extend_by_length(encoded.crc, string.size(),
                                   width_of(string.size()), false);
  }
  const size_t lengths = encoded.bytes.size();
  append_fixed32(encoded.bytes, mask_crc(encoded.crc));
  for (const ByteView string : strings) encoded.bytes += text_of(string);
  encoded.crc = crc32c_extend(
      encoded.crc, bytes_of(std::string_view(encoded.bytes).substr(lengths)));
  return encoded;
}

Object object_of(const StringTensor& tensor) {
  size_t next = 0;
  if (lists_tell_shape(tensor.shape)) return nested(tensor, 0, next);
  Object::List sizes;
  for (const int64_t size : tensor.shape.sizes()) sizes.items.emplace_back(size);
  Object::Dict dict;
  dict.items.emplace_back(Object(std::string(kShapeKey)), Object(std::move(sizes)));
  return Object(std::move(dict));
}

std::optional<StringTensor> strings_in(const Object& object) {
  if (const auto* dict = object.as<Object::Dict>()) return empty_strings_in(*dict);
  const auto shape = shape_in(object);
  if (!shape) return std::nullopt;
  StringTensor tensor{*shape, {}};
  if (!collect(object, *shape, 0, tensor.strings)) return std::nullopt;
  return tensor;
}

}  // namespace holdfast::bundle
