#include "holdfast/base/bytes.h"

namespace holdfast {
namespace {

// The value of a hex digit, or -1.
int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

std::string to_hex(ByteView bytes) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    hex += kDigits[std::to_integer<size_t>(byte >> 4)];
    hex += kDigits[std::to_integer<size_t>(byte & std::byte{15})];
  }
  return hex;
}

Result<Bytes> from_hex(std::string_view hex) {
  if (hex.size() % 2 != 0)
    return invalid("hex: {} digits, want an even number", hex.size());
  Bytes bytes(hex.size() / 2);
  for (size_t i = 0; i < hex.size(); ++i) {
    const int digit = digit_of(hex[i]);
    if (digit < 0) {
      return invalid("hex: character {:#04x} at {}, want 0-9 or a-f",
                     static_cast<unsigned char>(hex[i]), i);
    }
    bytes[i / 2] = (bytes[i / 2] << 4) | static_cast<std::byte>(digit);
  }
  return bytes;
}

}  // namespace holdfast
