// Converts the numbers of pickles: integers of any size, floats and their texts.
#include <algorithm>
#include <bit>

#include "holdfast/archive/pickle_internal.h"
#include "holdfast/archive/pickle_reader.h"
#include "holdfast/base/number_text.h"

namespace holdfast::pickle {
namespace {

// The absolute value of an integer, in little-endian words of 32 bits.
using Words = std::vector<uint32_t>;

constexpr uint32_t kBillion = 1'000'000'000;

// Divides `words` and returns the remainder.
uint32_t divide(Words& words, uint32_t by) {
  uint64_t rest = 0;
  for (size_t i = words.size(); i-- > 0;) {
    const uint64_t here = (rest << 32) | words[i];
    words[i] = static_cast<uint32_t>(here / by);
    rest = here % by;
  }
  while (!words.empty() && words.back() == 0) words.pop_back();
  return static_cast<uint32_t>(rest);
}

void multiply_add(Words& words, uint32_t by, uint32_t plus) {
  uint64_t carry = plus;
  for (uint32_t& word : words) {
    carry += uint64_t{word} * by;
    word = static_cast<uint32_t>(carry);
    carry >>= 32;
  }
  if (carry != 0) words.push_back(static_cast<uint32_t>(carry));
}

std::string decimal_of(Words words) {
  // The digits from the last to the first.
  std::string digits;
  while (!words.empty()) {
    uint32_t nine = divide(words, kBillion);
    for (int i = 0; i < 9 && (nine != 0 || !words.empty()); ++i, nine /= 10) {
      digits.push_back(static_cast<char>('0' + nine % 10));
    }
  }
  std::ranges::reverse(digits);
  return digits;
}

// Changes the sign of a number in two's complement.
void negate(ByteSpan bytes) {
  unsigned carry = 1;
  for (std::byte& byte : bytes) {
    carry += std::to_integer<unsigned>(~byte);
    byte = static_cast<std::byte>(carry & 0xff);
    carry >>= 8;
  }
}

bool top_bit(ByteView bytes) {
  return (bytes.back() & std::byte{0x80}) != std::byte{0};
}

}  // namespace

Object integer_from_bytes(ByteView bytes) {
  if (bytes.empty()) return Object(int64_t{0});
  const bool negative = top_bit(bytes);
  Bytes magnitude = copy_of(bytes);
  if (bytes.size() <= 8) {
    magnitude.resize(8, negative ? std::byte{0xff} : std::byte{0});
    return Object(static_cast<int64_t>(load_little_endian<uint64_t>(magnitude)));
  }
  if (negative) negate(magnitude);
  magnitude.resize((magnitude.size() + 3) / 4 * 4);
  Words words(magnitude.size() / 4);
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = load_little_endian<uint32_t>(ByteView(magnitude).subspan(4 * i));
  }
  while (!words.empty() && words.back() == 0) words.pop_back();
  // A small number may be written in more bytes than it needs.
  std::string text(negative ? "-" : "");
  text += words.empty() ? "0" : decimal_of(std::move(words));
  return *integer_from_decimal(text);
}

std::optional<Object> integer_from_decimal(std::string_view decimal) {
  const bool negative = decimal.starts_with('-');
  std::string_view digits = decimal.substr(negative ? 1 : 0);
  if (digits.empty() || digits.find_first_not_of("0123456789") != digits.npos) {
    return std::nullopt;
  }
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size() - 1));
  // Appended, because GCC 12 warns wrongly of a text that is put before another.
  std::string text(negative ? "-" : "");
  text += digits;
  if (const auto small = number_in<int64_t>(text)) return Object(*small);
  return Object(Object::BigInteger{text});
}

std::optional<Bytes> bytes_of_decimal(std::string_view decimal) {
  const bool negative = decimal.starts_with('-');
  const std::string_view digits = decimal.substr(negative ? 1 : 0);
  if (digits.empty() || digits.find_first_not_of("0123456789") != digits.npos) {
    return std::nullopt;
  }
  Words words;
  for (const char digit : digits) {
    multiply_add(words, 10, static_cast<uint32_t>(digit - '0'));
  }
  // One byte more than the digits need, for the sign.
  Bytes bytes(4 * words.size() + 1);
  for (size_t i = 0; i < words.size(); ++i) {
    store_little_endian(words[i], ByteSpan(bytes).subspan(4 * i));
  }
  if (negative) negate(bytes);
  const std::byte filler = top_bit(bytes) ? std::byte{0xff} : std::byte{0};
  while (bytes.size() > 1 && bytes.back() == filler &&
         top_bit(ByteView(bytes).first(bytes.size() - 1)) == (filler != std::byte{0})) {
    bytes.pop_back();
  }
  if (bytes == Bytes{std::byte{0}}) bytes.clear();
  return bytes;
}

Bytes bytes_of_integer(int64_t value) {
  return *bytes_of_decimal(std::to_string(value));
}

double double_from_bytes(ByteView bytes) {
  uint64_t bits = 0;
  for (const std::byte byte : bytes) {
    bits = (bits << 8) | std::to_integer<uint64_t>(byte);
  }
  return std::bit_cast<double>(bits);
}

std::optional<double> double_from_text(std::string_view text) {
  return number_in<double>(text);
}

std::optional<uint32_t> index_from_text(std::string_view text) {
  return number_in<uint32_t>(text);
}

bool is_plain_line(std::string_view text) {
  return std::ranges::none_of(
      text, [](char c) { return c == '\\' || static_cast<unsigned char>(c) >= 0x80; });
}

}  // namespace holdfast::pickle
