// Reads numbers from texts, whatever the locale is.
#pragma once

#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>

namespace holdfast {

// Reads the number at the front of the text and removes it. Nullopt if there is none, or
// if it does not fit.
template <typename T>
std::optional<T> take_number(std::string_view& text, auto... base) {
  T number{};
  const auto [stop, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, base...);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(stop - text.data()));
  return number;
}

// The number that the text is. Nullopt if anything else stands in it, also a blank or a
// plus.
template <typename T>
std::optional<T> number_in(std::string_view text, auto... base) {
  const std::optional<T> number = take_number<T>(text, base...);
  return text.empty() ? number : std::nullopt;
}

// The same for a number that is not negative, such as a count.
inline std::optional<int64_t> count_in(std::string_view text) {
  const std::optional<int64_t> number = number_in<int64_t>(text);
  return number && *number >= 0 ? number : std::nullopt;
}

}  // namespace holdfast
