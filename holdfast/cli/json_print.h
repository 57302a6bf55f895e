// How every verb prints JSON.
#pragma once

#include <cmath>
#include <string>

#include "holdfast/base/json.h"
#include "holdfast/cli/text.h"

namespace holdfast {

// Names come from files: in ASCII, and U+FFFD for what is no UTF-8.
template <typename SomeJson = OrderedJson>
std::string print_json(const SomeJson& json) {
  return json.dump(2, ' ', true, Json::error_handler_t::replace);
}

// Infinity and what is no number become text: JSON has no word for them.
inline OrderedJson json_number(double value) {
  if (std::isfinite(value)) return value;
  return human_number(value);
}

}  // namespace holdfast
