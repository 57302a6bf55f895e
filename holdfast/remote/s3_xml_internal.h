// Reads the XML answers of S3 servers with expat, within limits: elements, text, the
// five named entities and numbered ones. Attributes and comments are skipped. Document
// types are refused, because an attacker could define entities in them that grow
// without bound. CDATA and processing instructions are refused, because no S3 server
// sends them. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "holdfast/base/result.h"
#include "holdfast/env/env.h"

namespace holdfast {

inline constexpr size_t kMaxXmlBytes = size_t{16} << 20;
inline constexpr size_t kMaxXmlDepth = 16;
inline constexpr size_t kMaxXmlElements = 100'000;  // a page lists 1000 objects

struct XmlElement {
  std::string name;
  std::string text;  // without the text of its children
  std::vector<XmlElement> children;

  // The first child with this name, or null.
  const XmlElement* find(std::string_view child) const;
  // The text of the first child with this name; empty if there is none.
  std::string text_of(std::string_view child) const;
};

// The root element. Fails with kUnavailable, and names `where`, if the text is not such
// XML: then the answer came from something else than an S3 server, such as a proxy.
Result<XmlElement> parse_xml(std::string_view text, const std::string& where);

// Replaces characters that XML reserves: "<" becomes "&lt;" and so on.
std::string escape_xml(std::string_view text);

// Parses a time such as "2026-01-02T03:04:05.678Z"; the fraction is optional and
// ignored. Fails with kUnavailable for other text.
Result<WallTime> parse_xml_time(std::string_view text, const std::string& where);

}  // namespace holdfast
