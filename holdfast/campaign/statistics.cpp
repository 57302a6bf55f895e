#include "holdfast/campaign/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "holdfast/base/result.h"

namespace holdfast {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double two_sided_quantile(double confidence) {
  return normal_quantile((1 + confidence) / 2);
}

double normal_below(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }

// Wilson's interval for z standard deviations.
Interval wilson_at(double count, double total, double z) {
  if (total <= 0) return {0, 1};
  const double rate = count / total, z2 = z * z;
  const double centre = (rate + z2 / (2 * total)) / (1 + z2 / total);
  const double half =
      z / (1 + z2 / total) *
      std::sqrt(rate * (1 - rate) / total + z2 / (4 * total * total));
  return {.low = count <= 0 ? 0 : std::max(0.0, centre - half),
          .high = count >= total ? 1 : std::min(1.0, centre + half)};
}

// The variance of a rate, taken at the middle of Wilson's interval, so that it is not 0
// for a count of 0.
double wilson_variance(const Stratum& stratum, double z) {
  const double total = static_cast<double>(stratum.total) + z * z;
  const double rate = (static_cast<double>(stratum.count) + z * z / 2) / total;
  return rate * (1 - rate) / total;
}

// The correlation of two outcomes in pairs, as Newcombe corrects it: a positive one is
// made smaller by half a pair.
double pair_correlation(const PairCounts& pairs) {
  const auto a = static_cast<double>(pairs.both), b = static_cast<double>(pairs.only_a),
             c = static_cast<double>(pairs.only_b),
             d = static_cast<double>(pairs.neither);
  const double product = (a + b) * (c + d) * (a + c) * (b + d);
  if (product == 0) return 0;
  double numerator = a * d - b * c;
  if (numerator > 0) {
    numerator = std::max(numerator - (a + b + c + d) / 2, 0.0);
  }
  return numerator / std::sqrt(product);
}

}  // namespace

double normal_quantile(double probability) {
  HOLDFAST_CHECK(probability > 0 && probability < 1, "probability {}", probability);
  // Bisection: the quantile is needed once for a table, and erfc is exact.
  double low = -40, high = 40;
  for (int i = 0; i < 200 && low < high; ++i) {
    const double middle = low + (high - low) / 2;
    if (middle == low || middle == high) break;
    (normal_below(middle) < probability ? low : high) = middle;
  }
  return low + (high - low) / 2;
}

double fair_coin_tail(int64_t total, int64_t most) {
  if (most < 0) return 0;
  if (most >= total) return 1;
  const auto n = static_cast<double>(total);
  double sum = 0;
  for (int64_t i = 0; i <= most; ++i) {
    const auto k = static_cast<double>(i);
    sum += std::exp(std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1) -
                    n * std::numbers::ln2);
  }
  return std::min(sum, 1.0);
}

Interval wilson_interval(int64_t count, int64_t total, double confidence) {
  HOLDFAST_CHECK(0 <= count && count <= total, "{} of {}", count, total);
  return wilson_at(static_cast<double>(count), static_cast<double>(total),
                   two_sided_quantile(confidence));
}

double mcnemar_p(const PairCounts& pairs) {
  const int64_t less = std::min(pairs.only_a, pairs.only_b);
  return std::min(1.0, 2 * fair_coin_tail(pairs.only_a + pairs.only_b, less));
}

Interval paired_difference(const PairCounts& pairs, double confidence) {
  const int64_t total = pairs.total();
  if (total == 0) return {-1, 1};
  const auto rate = [&](int64_t count) {
    return static_cast<double>(count) / static_cast<double>(total);
  };
  const double a = rate(pairs.both + pairs.only_a);
  const double b = rate(pairs.both + pairs.only_b);
  const Interval of_a = wilson_interval(pairs.both + pairs.only_a, total, confidence);
  const Interval of_b = wilson_interval(pairs.both + pairs.only_b, total, confidence);
  const double correlation = pair_correlation(pairs);
  const auto distance = [&](double x, double y) {
    return std::sqrt(std::max(0.0, x * x - 2 * correlation * x * y + y * y));
  };
  return {.low = a - b - distance(a - of_a.low, of_b.high - b),
          .high = a - b + distance(of_a.high - a, b - of_b.low)};
}

std::vector<double> holm(std::span<const double> p_values) {
  std::vector<size_t> order(p_values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return p_values[i]; });
  std::vector<double> adjusted(p_values.size());
  double least = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const auto factor = static_cast<double>(order.size() - rank);
    least = std::max(least, std::min(1.0, factor * p_values[order[rank]]));
    adjusted[order[rank]] = least;
  }
  return adjusted;
}

MedianInterval median_interval(std::vector<double> values, double confidence) {
  HOLDFAST_CHECK(!values.empty(), "a median of no values");
  std::ranges::sort(values);
  const auto count = std::ssize(values);
  const auto at = [&](int64_t i) { return values[static_cast<size_t>(i)]; };
  const double lower = at((count - 1) / 2), upper = at(count / 2);
  MedianInterval found{.median = lower == upper ? lower : lower / 2 + upper / 2,
                       .interval = {-kInfinite, kInfinite}};
  // The greatest k such that the median lies below the k-th value with at most half of
  // the probability that remains.
  int64_t k = 0;
  while (2 * k < count && fair_coin_tail(count, k) <= (1 - confidence) / 2) ++k;
  if (k > 0) found.interval = {at(k - 1), at(count - k)};
  return found;
}

double median_within_p(std::span<const double> values, double margin) {
  const auto count = std::ssize(values);
  const auto too_high =
      std::ranges::count_if(values, [&](double x) { return x >= margin; });
  const auto too_low =
      std::ranges::count_if(values, [&](double x) { return x <= -margin; });
  return fair_coin_tail(count, std::max(too_high, too_low));
}

RateEstimate stratified_rate(std::span<const Stratum> strata, double confidence) {
  const double z = two_sided_quantile(confidence);
  double weights = 0, variance = 0, deviations = 0;
  for (const Stratum& stratum : strata) weights += stratum.weight;
  HOLDFAST_CHECK(weights > 0, "strata with the weight {}", weights);
  for (const Stratum& stratum : strata) {
    const double weight = stratum.weight / weights;
    variance += weight * weight * wilson_variance(stratum, z);
    deviations += weight * std::sqrt(wilson_variance(stratum, z));
  }
  const double smaller_z = z * std::sqrt(variance) / deviations;
  RateEstimate estimate;
  for (const Stratum& stratum : strata) {
    const double weight = stratum.weight / weights;
    const auto count = static_cast<double>(stratum.count);
    const auto total = static_cast<double>(stratum.total);
    const Interval interval = wilson_at(count, total, smaller_z);
    estimate.rate += weight * (stratum.total == 0 ? 0.5 : count / total);
    estimate.interval.low += weight * interval.low;
    estimate.interval.high += weight * interval.high;
  }
  return estimate;
}

}  // namespace holdfast
