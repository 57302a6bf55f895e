// Reports as JSON: what `holdfast VERB --json` prints and what Python returns.
#pragma once

#include <concepts>
#include <string>

#include "holdfast/base/json_fields.h"

namespace holdfast {

// A field of a report is never removed, and never changes its meaning, unless this
// number becomes higher. New fields may come without a higher number.
inline constexpr int kReportVersion = 1;

// Names come from files, so what is printed is pure ASCII: no name can send control
// characters to a terminal. Bytes that are not UTF-8 become U+FFFD.
inline constexpr JsonStyle kPrintedJson{.indent = 2, .ascii = true};

// The text of a report: an object, whose first member is the version. describe(field)
// names the others. It does not end with a line feed.
template <std::invocable<FieldWriter&> Describe>
std::string report_json(const Describe& describe, JsonStyle style = kPrintedJson) {
  JsonWriter text(style);
  FieldWriter field(text, false);
  text.open('{');
  field("version", kReportVersion);
  describe(field);
  text.close();
  return std::move(text).take();
}

// Nothing is null in a report.
inline std::optional<std::string> text_or_null(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(text);
}

}  // namespace holdfast
