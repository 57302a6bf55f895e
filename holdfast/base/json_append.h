// Appends JSON to a string, for documents of 100,000 entries that are written without a
// tree of values in between (json_text.h says why).
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <string>
#include <string_view>

#include "holdfast/base/json_text.h"
#include "holdfast/base/result.h"

namespace holdfast {

// Appends the text in quotes, escaped. Aborts unless the text is UTF-8, because a
// reader would refuse the whole document.
inline void put_text(std::string& out, std::string_view text) {
  HOLDFAST_CHECK(is_utf8(text), "a name of {} bytes is not UTF-8", text.size());
  append_json_string(out, text);
}

template <typename... Args>
void put(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

// Appends the number so that it reads back as the same bits. JSON has no numbers that
// are not finite: they become the texts "nan", "inf" and "-inf".
inline void put_number(std::string& out, double value) {
  if (std::isfinite(value)) return append_json_double(out, value);
  put_text(out, std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

}  // namespace holdfast
