// The little XML that S3 servers answer with, read by expat with limits: elements, text,
// the five named entities and numbered ones. Attributes and comments are skipped. Document
// types are refused, because entities of one's own begin there; CDATA and processing
// instructions are, because no S3 server sends them. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "holdfast/base/clock.h"
#include "holdfast/base/result.h"

namespace holdfast {

inline constexpr size_t kMaxXmlBytes = size_t{16} << 20;
inline constexpr size_t kMaxXmlDepth = 16;
inline constexpr size_t kMaxXmlElements = 100'000;  // a page has 1000 entries

struct XmlElement {
  std::string name;
  std::string text;  // its own, without that of its children
  std::vector<XmlElement> children;

  // The first child of the name, or null.
  const XmlElement* find(std::string_view child) const;
  // The text of that child; empty where there is none.
  std::string text_of(std::string_view child) const;
};

// The root element. kUnavailable, naming `where`, for anything else: a server that
// answers so is no S3 server, or is behind something that is none.
Result<XmlElement> parse_xml(std::string_view text, const std::string& where);

// "<" as "&lt;" and so on.
std::string escape_xml(std::string_view text);

// "2026-01-02T03:04:05.678Z", the fraction optional; kUnavailable for others.
Result<WallTime> parse_xml_time(std::string_view text, const std::string& where);

}  // namespace holdfast
