// Writing JSON by hand, for documents of 100,000 entries: appends to a string.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

namespace holdfast {

// The text in quotes, escaped. It must be UTF-8, else a reader would refuse the whole
// document: aborts otherwise.
void put_text(std::string& out, std::string_view text);

template <typename... Args>
void put(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

// Exact, finite or not: what JSON does not know is the text "nan", "inf" or "-inf".
void put_number(std::string& out, double value);

bool is_utf8(std::string_view text);

}  // namespace holdfast
