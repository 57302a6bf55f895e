#include "holdfast/base/bytes.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

namespace holdfast {
namespace {

// The value of a hex digit, or -1.
int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

constexpr auto kBlock = static_cast<size_t>(kDirectAlignment);

size_t whole_blocks(size_t size) {
  HOLDFAST_CHECK(size <= std::numeric_limits<size_t>::max() - kBlock, "{} bytes", size);
  return (size + kBlock - 1) / kBlock * kBlock;
}

std::byte* new_blocks(size_t size) {
  if (size == 0) return nullptr;
  const size_t whole = whole_blocks(size);
  auto* memory =
      static_cast<std::byte*>(::operator new(whole, std::align_val_t(kBlock)));
  std::fill_n(memory, whole, std::byte{});
  return memory;
}

}  // namespace

AlignedBytes::AlignedBytes(size_t size) : memory_(new_blocks(size)), size_(size) {}

AlignedBytes::AlignedBytes(AlignedBytes&& other) noexcept
    : memory_(std::move(other.memory_)), size_(std::exchange(other.size_, 0)) {}

AlignedBytes& AlignedBytes::operator=(AlignedBytes&& other) noexcept {
  memory_ = std::move(other.memory_);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

void AlignedBytes::Free::operator()(std::byte* memory) const {
  ::operator delete(memory, std::align_val_t(kBlock));
}

std::string to_hex(ByteView bytes) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex(2 * bytes.size(), '0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    hex[2 * i] = kDigits[std::to_integer<size_t>(bytes[i] >> 4)];
    hex[2 * i + 1] = kDigits[std::to_integer<size_t>(bytes[i] & std::byte{15})];
  }
  return hex;
}

std::string to_hex(std::byte byte) { return to_hex(ByteView(&byte, 1)); }

Result<Bytes> from_hex(std::string_view hex) {
  if (hex.size() % 2 != 0)
    return invalid("hex: {} digits; expected an even number", hex.size());
  Bytes bytes(hex.size() / 2);
  for (size_t i = 0; i < hex.size(); ++i) {
    const int digit = digit_of(hex[i]);
    if (digit < 0) {
      return invalid("hex: character {:#04x} at position {}; expected 0-9 or a-f",
                     static_cast<unsigned char>(hex[i]), i);
    }
    bytes[i / 2] = (bytes[i / 2] << 4) | static_cast<std::byte>(digit);
  }
  return bytes;
}

}  // namespace holdfast
