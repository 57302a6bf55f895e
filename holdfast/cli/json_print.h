// Formats JSON for all verbs.
#pragma once

#include <cmath>
#include <string>

#include "holdfast/base/report_json.h"
#include "holdfast/cli/text.h"

namespace holdfast {

// The text of a report, which must be an object, with the version of its fields. Names
// come from files, so the output is pure ASCII, with U+FFFD for bytes that are not
// UTF-8.
inline std::string print_json(OrderedJson report) {
  return with_version(std::move(report))
      .dump(2, ' ', true, OrderedJson::error_handler_t::replace);
}

// Infinity and NaN become text, because JSON has no numbers for them.
inline OrderedJson json_number(double value) {
  if (std::isfinite(value)) return value;
  return human_number(value);
}

}  // namespace holdfast
