#include "holdfast/tensorflow/wire_format.h"

#include <array>

namespace holdfast::bundle {
namespace {

template <typename T>
void append_little_endian(std::string& out, T number) {
  std::array<std::byte, sizeof(T)> bytes{};
  store_little_endian(number, bytes);
  out += text_of(bytes);
}

void append_tag(std::string& out, uint32_t field, WireType type) {
  append_varint(out, uint64_t{field} << 3 | static_cast<uint64_t>(type));
}

}  // namespace

std::optional<uint64_t> take_varint(ByteView& bytes) {
  uint64_t number = 0;
  for (size_t i = 0; i < bytes.size() && i < 10; ++i) {
    const auto part = static_cast<uint64_t>(bytes[i]);
    if (i == 9 && part > 1) return std::nullopt;
    number |= (part & 0x7f) << (7 * i);
    if (part >= 0x80) continue;
    bytes = bytes.subspan(i + 1);
    return number;
  }
  return std::nullopt;
}

void append_varint(std::string& out, uint64_t number) {
  for (; number >= 0x80; number >>= 7) {
    out += static_cast<char>((number & 0x7f) | 0x80);
  }
  out += static_cast<char>(number);
}

void append_fixed32(std::string& out, uint32_t number) {
  append_little_endian(out, number);
}

void append_fixed64(std::string& out, uint64_t number) {
  append_little_endian(out, number);
}

std::optional<WireField> WireReader::next() {
  const auto tag = take_varint(rest_);
  if (!tag || *tag >> 3 == 0 || *tag >> 3 > (1U << 29) - 1) return std::nullopt;
  WireField field{.number = static_cast<uint32_t>(*tag >> 3),
                  .type = static_cast<WireType>(*tag & 7)};
  if (!read_value(field)) return std::nullopt;
  return field;
}

bool WireReader::read_value(WireField& field) {
  field.offset = size_ - std::ssize(rest_);
  if (field.type == WireType::kFixed32 || field.type == WireType::kFixed64) {
    const size_t width = field.type == WireType::kFixed32 ? 4 : 8;
    if (rest_.size() < width) return false;
    field.value = width == 4 ? load_little_endian<uint32_t>(rest_)
                             : load_little_endian<uint64_t>(rest_);
    rest_ = rest_.subspan(width);
    return true;
  }
  if (field.type != WireType::kVarint && field.type != WireType::kBytes) return false;
  const auto number = take_varint(rest_);
  if (!number) return false;
  field.value = *number;
  if (field.type == WireType::kVarint) return true;
  if (*number > rest_.size()) return false;
  field.offset = size_ - std::ssize(rest_);
  field.bytes = rest_.first(static_cast<size_t>(*number));
  rest_ = rest_.subspan(static_cast<size_t>(*number));
  return true;
}

void append_number(std::string& out, uint32_t field, uint64_t number) {
  if (number == 0) return;
  append_tag(out, field, WireType::kVarint);
  append_varint(out, number);
}

void append_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  append_tag(out, field, WireType::kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

void append_fixed32_field(std::string& out, uint32_t field, uint32_t number) {
  append_tag(out, field, WireType::kFixed32);
  append_fixed32(out, number);
}

}  // namespace holdfast::bundle
