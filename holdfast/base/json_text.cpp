#include "holdfast/base/json_text.h"

#include <array>
#include <charconv>
#include <cmath>

#include "holdfast/base/json.h"
#include "holdfast/base/result.h"

namespace holdfast {
namespace {

// The length of the UTF-8 sequence that begins with this byte; 0 if no sequence does.
size_t length_of(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return 2;
  if (lead >= 0xe0 && lead <= 0xef) return 3;
  if (lead >= 0xf0 && lead <= 0xf4) return 4;
  return 0;
}

// True if this second byte is allowed after the lead byte. The lead byte alone does not
// rule out overlong forms, surrogates and what is above U+10FFFF; the second byte does.
bool may_follow(unsigned char lead, unsigned char second) {
  switch (lead) {
    case 0xe0: return second >= 0xa0 && second <= 0xbf;
    case 0xed: return second >= 0x80 && second <= 0x9f;
    case 0xf0: return second >= 0x90 && second <= 0xbf;
    case 0xf4: return second >= 0x80 && second <= 0x8f;
    default: return second >= 0x80 && second <= 0xbf;
  }
}

void append_escaped(std::string& out, char c) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  switch (c) {
    case '"': out += "\\\""; return;
    case '\\': out += "\\\\"; return;
    case '\n': out += "\\n"; return;
    default: break;
  }
  const auto code = static_cast<unsigned char>(c);
  out += "\\u00";
  out += kDigits[code >> 4U];
  out += kDigits[code & 15U];
}

bool needs_no_escape(char c) {
  return static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\';
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = length_of(lead);
    if (length == 0 || length > text.size() - i) return false;
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if (!may_follow(k == 1 ? lead : 0, next)) return false;
    }
    i += length;
  }
  return true;
}

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  size_t start = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (needs_no_escape(text[i])) continue;
    out.append(text, start, i - start);
    append_escaped(out, text[i]);
    start = i + 1;
  }
  out.append(text, start);
  out += '"';
}

void append_json_integer(std::string& out, int64_t number) {
  std::array<char, 24> text{};
  const auto end = std::to_chars(text.begin(), text.end(), number).ptr;
  out.append(text.begin(), end);
}

void append_json_double(std::string& out, double number) {
  HOLDFAST_CHECK(std::isfinite(number), "JSON has no number for {}", number);
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.begin(), text.end(), number).ptr;
  const std::string_view digits(text.begin(), static_cast<size_t>(end - text.begin()));
  out += digits;
  if (digits.find_first_of(".e") == digits.npos) out += ".0";
}

std::string shown(std::string_view name) {
  constexpr size_t kMost = 80;
  std::string text = Json(name).dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMost) text.replace(kMost, text.npos, "...\"");
  return text;
}

}  // namespace holdfast
