// Writing JSON by hand, for documents of 100,000 entries: appends to a string.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <string>
#include <string_view>

#include "holdfast/base/check.h"
#include "holdfast/base/json_text.h"

namespace holdfast {

// The text in quotes, escaped. It must be UTF-8, else a reader would refuse the whole
// document: aborts otherwise.
inline void put_text(std::string& out, std::string_view text) {
  HOLDFAST_CHECK(is_utf8(text), "a name of {} bytes is not UTF-8", text.size());
  append_json_string(out, text);
}

template <typename... Args>
void put(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

// Exact, finite or not: what JSON does not know is the text "nan", "inf" or "-inf".
inline void put_number(std::string& out, double value) {
  if (std::isfinite(value)) return append_json_double(out, value);
  put_text(out, std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

}  // namespace holdfast
