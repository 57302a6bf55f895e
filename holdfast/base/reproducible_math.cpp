#include "holdfast/base/reproducible_math.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace holdfast::reproducible {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
// ln 2 in two parts. The first part has so few bits that its products with exponents
// are exact.
constexpr double kLn2High = 6.93147180369123816490e-01;
constexpr double kLn2Low = 1.90821492927058770002e-10;
constexpr double kLn2Inverse = 1.44269504088896338700e+00;

constexpr int kExpTerms = 16;
constexpr int kLogTerms = 12;

// The coefficients 1/1!, 1/2!, ...
constexpr std::array<double, kExpTerms> kExp = [] {
  std::array<double, kExpTerms> terms{};
  double factorial = 1;
  for (int n = 0; n < kExpTerms; ++n) {
    factorial *= n + 1;
    terms[static_cast<size_t>(n)] = 1 / factorial;
  }
  return terms;
}();

// The coefficients 1/3, 1/5, ...
constexpr std::array<double, kLogTerms> kLog = [] {
  std::array<double, kLogTerms> terms{};
  for (int n = 0; n < kLogTerms; ++n) terms[static_cast<size_t>(n)] = 1.0 / (2 * n + 3);
  return terms;
}();

// Computes four sums side by side, because the processor can add them at the same time.
template <size_t kTerms>
double polynomial(const std::array<double, kTerms>& terms, double x) {
  static_assert(kTerms % 4 == 0);
  const double square = x * x, fourth = square * square;
  std::array<double, 4> sums{terms[kTerms - 4], terms[kTerms - 3], terms[kTerms - 2],
                             terms[kTerms - 1]};
  for (size_t n = kTerms - 4; n > 0; n -= 4) {
    for (size_t k = 0; k < 4; ++k) sums[k] = terms[n - 4 + k] + fourth * sums[k];
  }
  return (sums[0] + x * sums[1]) + square * (sums[2] + x * sums[3]);
}

// 2^k for the exponents of normal numbers.
double power_of_two(int64_t k) {
  return std::bit_cast<double>(static_cast<uint64_t>(k + 1023) << 52);
}

// (e^r - 1) / r for |r| <= 0.35.
double expm1_over(double r) { return polynomial(kExp, r); }

// log((1 + s) / (1 - s)) for |s| <= 0.18: 2 (s + s^3/3 + ...).
double log_ratio(double s) {
  const double square = s * s;
  return 2 * (s + s * (square * polynomial(kLog, square)));
}

}  // namespace

double exp(double x) {
  if (std::isnan(x)) return x;
  if (x > 709.79) return kInfinity;
  if (x < -745.2) return 0;
  const auto whole = static_cast<int64_t>(x * kLn2Inverse + (x < 0 ? -0.5 : 0.5));
  const auto k = static_cast<double>(whole);
  const double r = (x - k * kLn2High) - k * kLn2Low;
  const double value = 1 + r * expm1_over(r);
  if (whole > -1000 && whole < 1000) return value * power_of_two(whole);
  return std::ldexp(value, static_cast<int>(whole));
}

double expm1(double x) {
  if (std::fabs(x) <= 0.35) return x * expm1_over(x);
  return exp(x) - 1;
}

double log(double x) {
  if (std::isnan(x) || x < 0) return kNaN;
  if (x == 0) return -kInfinity;
  if (std::isinf(x)) return x;
  int shift = 0;
  if (x < 0x1p-1022) x *= 0x1p54, shift = -54;
  const auto bits = std::bit_cast<uint64_t>(x);
  auto exponent = static_cast<int64_t>(bits >> 52) - 1022 + shift;
  double mantissa =
      std::bit_cast<double>((bits & 0x000fffffffffffff) | 0x3fe0000000000000);
  if (mantissa < 0.70710678118654752) {
    mantissa *= 2;
    --exponent;
  }
  const double part = log_ratio((mantissa - 1) / (mantissa + 1));
  const auto e = static_cast<double>(exponent);
  return e * kLn2High + (part + e * kLn2Low);
}

double log1p(double x) {
  if (std::fabs(x) <= 0.3) return log_ratio(x / (2 + x));
  return log(1 + x);
}

double pow(double x, double y) {
  if (y == 0 || x == 1) return 1;
  return exp(y * log(x));
}

double gamma(double x) {
  if (!(x > 0)) return kNaN;
  double product = 1;
  while (x < 20) product *= x++;
  // Stirling's series. At 20 its first missing term is below 1e-17.
  const double inverse = 1 / x, square = inverse * inverse;
  const double tail =
      inverse * (1.0 / 12 + square * (-1.0 / 360 +
                                      square * (1.0 / 1260 + square * (-1.0 / 1680))));
  constexpr double kHalfLogTwoPi = 0.91893853320467274178;
  return exp((x - 0.5) * log(x) - x + kHalfLogTwoPi + tail) / product;
}

}  // namespace holdfast::reproducible
