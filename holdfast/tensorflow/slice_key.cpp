#include "holdfast/tensorflow/slice_key.h"

#include <array>
#include <bit>

namespace holdfast::bundle {
namespace {

// A byte that says how many bytes follow, then these bytes, most significant first.
void append_ordered(std::string& out, uint64_t number) {
  const int count = (static_cast<int>(std::bit_width(number)) + 7) / 8;
  out += static_cast<char>(count);
  for (int i = count - 1; i >= 0; --i) out += static_cast<char>(number >> (8 * i));
}

// The bytes 00 and ff are escaped, so that 00 01 can mark the end.
void append_ordered(std::string& out, std::string_view text) {
  for (const char c : text) {
    out += c;
    if (c == '\0') out += '\xff';
    if (c == '\xff') out += '\0';
  }
  out += '\0';
  out += '\1';
}

// A number of b bits takes b / 7 + 1 bytes, most significant first. As many leading
// bits are inverted as there are bytes; this tells the length and sorts the signs.
void append_ordered_signed(std::string& out, int64_t number) {
  const auto bits = static_cast<uint64_t>(number);
  const auto width = static_cast<int>(std::bit_width(number < 0 ? ~bits : bits));
  const int count = width / 7 + 1;
  std::array<unsigned char, 10> bytes{};
  for (int i = 0; i < 10; ++i) {
    const int shift = 8 * (9 - i);
    const auto sign = static_cast<unsigned char>(number < 0 ? 0xff : 0);
    bytes[static_cast<size_t>(i)] =
        shift >= 64 ? sign : static_cast<unsigned char>(bits >> shift);
  }
  for (int k = 0; k < count; ++k) {
    const int byte = 10 - count + k / 8;
    bytes[static_cast<size_t>(byte)] ^= static_cast<unsigned char>(0x80 >> (k % 8));
  }
  for (int i = 10 - count; i < 10; ++i) {
    out += static_cast<char>(bytes[static_cast<size_t>(i)]);
  }
}

}  // namespace

std::string slice_key(std::string_view name, std::span<const SliceExtent> extents) {
  std::string key;
  append_ordered(key, uint64_t{0});
  append_ordered(key, name);
  append_ordered(key, uint64_t{extents.size()});
  for (const SliceExtent& extent : extents) {
    append_ordered_signed(key, extent.start);
    append_ordered_signed(key, extent.length);
  }
  return key;
}

}  // namespace holdfast::bundle
