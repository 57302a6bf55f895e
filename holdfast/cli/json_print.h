// Formats JSON for all verbs.
#pragma once

#include <cmath>
#include <string>

#include "holdfast/base/json.h"
#include "holdfast/cli/text.h"

namespace holdfast {

// Names come from files, so the output is pure ASCII, with U+FFFD for bytes that are
// not UTF-8.
template <typename SomeJson = OrderedJson>
std::string print_json(const SomeJson& json) {
  return json.dump(2, ' ', true, Json::error_handler_t::replace);
}

// Infinity and NaN become text, because JSON has no numbers for them.
inline OrderedJson json_number(double value) {
  if (std::isfinite(value)) return value;
  return human_number(value);
}

}  // namespace holdfast
