// Checked arithmetic for sizes that come from outside. The result is nullopt where it
// does not fit into the type; a sum that wraps around would become a small allocation.
#pragma once

#include <concepts>
#include <optional>

namespace holdfast {

template <std::integral T>
constexpr std::optional<T> checked_add(T a, T b) {
  T sum{};
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

template <std::integral T>
constexpr std::optional<T> checked_mul(T a, T b) {
  T product{};
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// a / b rounded up, for b > 0 and a >= 0.
template <std::integral T>
constexpr T divide_up(T a, T b) {
  return a / b + (a % b != 0);
}

}  // namespace holdfast
