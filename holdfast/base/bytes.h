// Bytes: views, owned bytes, little-endian numbers and hex.
//
// A view never owns: whoever passes one keeps the memory alive for the call.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/base/result.h"

namespace holdfast {

using ByteView = std::span<const std::byte>;
using ByteSpan = std::span<std::byte>;
using Bytes = std::vector<std::byte>;

// The same memory under another type.
inline ByteView bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
inline std::string_view text_of(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Offsets, lengths and addresses of direct transfers (file.h) are multiples of this.
inline constexpr int64_t kDirectAlignment = 4096;

// Owned bytes for direct transfers, zeros at first. Their address is a multiple of
// kDirectAlignment, and their memory ends at such a multiple too. An object that was
// moved from holds no bytes.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  explicit AlignedBytes(size_t size);
  AlignedBytes(AlignedBytes&& other) noexcept;
  AlignedBytes& operator=(AlignedBytes&& other) noexcept;

  size_t size() const { return size_; }
  ByteSpan span() { return {memory_.get(), size_}; }
  ByteView span() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };

  std::unique_ptr<std::byte[], Free> memory_;
  size_t size_ = 0;
};

inline Bytes copy_of(ByteView bytes) { return Bytes(bytes.begin(), bytes.end()); }

// The number in the first sizeof(T) bytes. Aborts if there are fewer.
template <std::unsigned_integral T>
T load_little_endian(ByteView from) {
  HOLDFAST_CHECK(from.size() >= sizeof(T), "{} bytes; expected {}", from.size(),
                 sizeof(T));
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | (static_cast<T>(from[i]) << (8 * i)));
  }
  return value;
}

// Puts the number into the first sizeof(T) bytes. Aborts if there are fewer.
template <std::unsigned_integral T>
void store_little_endian(T value, ByteSpan into) {
  HOLDFAST_CHECK(into.size() >= sizeof(T), "{} bytes; expected {}", into.size(),
                 sizeof(T));
  for (size_t i = 0; i < sizeof(T); ++i) {
    into[i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
  }
}

// Lower-case hex, two digits a byte.
std::string to_hex(ByteView bytes);
std::string to_hex(std::byte byte);
// Reads what to_hex wrote. Fails with kInvalid on an odd number of digits or on any
// other character. Upper-case digits are refused too: one flipped bit makes a
// lower-case letter an upper-case one, and such damage must be noticed.
Result<Bytes> from_hex(std::string_view hex);

}  // namespace holdfast
