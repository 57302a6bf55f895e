#include <charconv>
#include <chrono>

#include "holdfast/remote/s3_xml_internal.h"

namespace holdfast {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

bool is_name_char(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
         c == '_' || c == '-' || c == ':' || c == '.';
}

void append_utf8(uint32_t code, std::string& into) {
  const auto put = [&](uint32_t byte) { into += static_cast<char>(byte); };
  if (code < 0x80) return put(code);
  if (code < 0x800) return put(0xc0 | code >> 6), put(0x80 | (code & 0x3f));
  if (code < 0x10000) {
    put(0xe0 | code >> 12);
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3f));
  }
  put(0x80 | (code >> 6 & 0x3f));
  put(0x80 | (code & 0x3f));
}

class XmlReader {
 public:
  XmlReader(std::string_view text, const std::string& where)
      : text_(text), where_(where) {}

  Result<XmlElement> document() {
    skip_space();
    if (take("<?xml")) {
      const size_t end = text_.find("?>", at_);
      if (end == text_.npos) return fault("a declaration without end");
      at_ = end + 2;
      skip_space();
    }
    XmlElement root;
    HOLDFAST_TRY(element(root, 1));
    skip_space();
    if (at_ != text_.size()) return fault("bytes after the end");
    return root;
  }

 private:
  Error fault(std::string_view what) const {
    return unavailable("{}: answer is no XML of an S3 server: {} at byte {} of {}",
                       where_, what, at_, text_.size());
  }

  bool take(std::string_view token) {
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  void skip_space() {
    while (at_ < text_.size() && kSpace.find(text_[at_]) != kSpace.npos) ++at_;
  }
  std::string_view name() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_name_char(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  Result<void> element(XmlElement& into, int depth) {
    if (depth > kMaxXmlDepth) return fault("more than 16 levels");
    if (++elements_ > kMaxXmlElements) return fault("more than 100000 elements");
    if (!take("<")) return fault("no element");
    into.name = name();
    if (into.name.empty()) return fault("an element without name");
    HOLDFAST_TRY(attributes());
    if (take("/>")) return {};
    if (!take(">")) return fault("an unfinished tag");
    return contents(into, depth);
  }

  Result<void> attributes() {
    while (true) {
      skip_space();
      if (name().empty()) return {};
      skip_space();
      if (!take("=")) return fault("an attribute without value");
      skip_space();
      if (at_ >= text_.size() || (text_[at_] != '"' && text_[at_] != '\'')) {
        return fault("an attribute without quotes");
      }
      const size_t end = text_.find(text_[at_], at_ + 1);
      if (end == text_.npos) return fault("an attribute without end");
      at_ = end + 1;
    }
  }

  Result<void> contents(XmlElement& into, int depth) {
    while (true) {
      HOLDFAST_TRY(characters(into.text));
      if (take("</")) break;
      HOLDFAST_TRY(element(into.children.emplace_back(), depth + 1));
    }
    if (name() != into.name) return fault("the end of another element");
    skip_space();
    if (!take(">")) return fault("an unfinished tag");
    return {};
  }

  // Up to the next tag.
  Result<void> characters(std::string& into) {
    while (true) {
      const size_t end = text_.find_first_of("<&", at_);
      if (end == text_.npos) return fault("an element without end");
      into += text_.substr(at_, end - at_);
      at_ = end;
      if (text_[at_] == '<') return {};
      HOLDFAST_TRY(entity(into));
    }
  }

  Result<void> entity(std::string& into) {
    if (take("&amp;")) return into += '&', Result<void>();
    if (take("&lt;")) return into += '<', Result<void>();
    if (take("&gt;")) return into += '>', Result<void>();
    if (take("&quot;")) return into += '"', Result<void>();
    if (take("&apos;")) return into += '\'', Result<void>();
    if (!take("&#")) return fault("an unknown entity");
    const int base = take("x") ? 16 : 10;
    uint32_t code = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] =
        std::from_chars(begin, text_.data() + text_.size(), code, base);
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    if (error != std::errc() || code == 0 || code > 0x10ffff || surrogate) {
      return fault("a senseless character number");
    }
    at_ += static_cast<size_t>(end - begin);
    if (!take(";")) return fault("an unfinished entity");
    append_utf8(code, into);
    return {};
  }

  const std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
  size_t elements_ = 0;
};

// The number in exactly `digits` digits that `text` begins with, or -1.
int take_number(std::string_view& text, size_t digits, std::string_view then) {
  if (text.size() < digits + then.size() || text.substr(digits, then.size()) != then) {
    return -1;
  }
  int value = 0;
  for (const char c : text.substr(0, digits)) {
    if (c < '0' || c > '9') return -1;
    value = value * 10 + (c - '0');
  }
  text.remove_prefix(digits + then.size());
  return value;
}

}  // namespace

const XmlElement* XmlElement::find(std::string_view child) const {
  for (const XmlElement& element : children) {
    if (element.name == child) return &element;
  }
  return nullptr;
}

std::string XmlElement::text_of(std::string_view child) const {
  const XmlElement* found = find(child);
  return found == nullptr ? "" : found->text;
}

Result<XmlElement> parse_xml(std::string_view text, const std::string& where) {
  return XmlReader(text, where).document();
}

std::string escape_xml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

Result<WallTime> parse_xml_time(std::string_view text, const std::string& where) {
  std::string_view rest = text;
  const int year = take_number(rest, 4, "-");
  const int month = take_number(rest, 2, "-");
  const int day = take_number(rest, 2, "T");
  const int hour = take_number(rest, 2, ":");
  const int minute = take_number(rest, 2, ":");
  const int second = take_number(rest, 2, "");
  // 2262 is as far as nanoseconds of 64 bits go.
  const bool sensible = year >= 1970 && year < 2262 && hour >= 0 && hour < 24 &&
                        minute >= 0 && minute < 60 && second >= 0 && second <= 60;
  const std::chrono::year_month_day date(
      std::chrono::year{year}, std::chrono::month{static_cast<unsigned>(month)},
      std::chrono::day{static_cast<unsigned>(day)});
  if (!sensible || !date.ok() || !rest.ends_with('Z')) {
    return unavailable("{}: time \"{}\" in the answer, want such as {}", where,
                       text.substr(0, 64), "2026-01-02T03:04:05.678Z");
  }
  return WallTime(std::chrono::sys_days(date)) + std::chrono::hours(hour) +
         std::chrono::minutes(minute) + std::chrono::seconds(second);
}

}  // namespace holdfast
