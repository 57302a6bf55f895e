#include <cmath>

#include "holdfast/base/check.h"
#include "holdfast/store/json_text_internal.h"

namespace holdfast {
namespace {

struct Sequence {
  size_t length = 0;           // 0: no first byte of a character
  unsigned char least = 0x80;  // of the second byte
  unsigned char most = 0xbf;
};

// Without overlong forms, surrogates and what lies beyond U+10FFFF.
Sequence sequence_of(unsigned char first) {
  if (first < 0x80) return {.length = 1};
  if (first < 0xc2) return {};
  if (first < 0xe0) return {.length = 2};
  if (first == 0xe0) return {.length = 3, .least = 0xa0};
  if (first == 0xed) return {.length = 3, .most = 0x9f};
  if (first < 0xf0) return {.length = 3};
  if (first == 0xf0) return {.length = 4, .least = 0x90};
  if (first < 0xf4) return {.length = 4};
  if (first == 0xf4) return {.length = 4, .most = 0x8f};
  return {};
}

}  // namespace

bool is_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  for (size_t i = 0; i < text.size();) {
    const Sequence wanted = sequence_of(byte(i));
    if (wanted.length == 0 || text.size() - i < wanted.length) return false;
    for (size_t k = 1; k < wanted.length; ++k) {
      const unsigned char least = k == 1 ? wanted.least : 0x80;
      const unsigned char most = k == 1 ? wanted.most : 0xbf;
      if (byte(i + k) < least || byte(i + k) > most) return false;
    }
    i += wanted.length;
  }
  return true;
}

void put_text(std::string& out, std::string_view text) {
  HOLDFAST_CHECK(is_utf8(text), "a name of {} bytes is not UTF-8", text.size());
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      put(out, "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

void put_number(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "\"nan\"";
  } else if (std::isinf(value)) {
    out += value > 0 ? "\"inf\"" : "\"-inf\"";
  } else {
    const std::string digits = fmt::format("{}", value);
    out += digits;
    // Else minus zero would be read as the integer 0.
    if (digits.find_first_of(".e") == digits.npos) out += ".0";
  }
}

}  // namespace holdfast
