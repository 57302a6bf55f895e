#include "holdfast/statistics/statistics.h"

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

// The logarithm of the number of ways to choose some of many things.
double log_ways(int64_t things, int64_t chosen) {
  const auto n = static_cast<double>(things), k = static_cast<double>(chosen);
  return std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1);
}

// P(X = hits) for X ~ Binomial(total, rate).
double binomial(int64_t total, int64_t hits, double rate) {
  return std::exp(log_ways(total, hits) + static_cast<double>(hits) * std::log(rate) +
                  static_cast<double>(total - hits) * std::log1p(-rate));
}

// P(|T| <= sqrt(degrees) tan(angle)) for Student's T: the finite sums of Abramowitz and
// Stegun, 26.7.3 and 26.7.4.
double student_within(double angle, int64_t degrees) {
  const double cosine = std::cos(angle);
  const bool odd = degrees % 2 == 1;
  double term = odd ? cosine : 1, sum = degrees == 1 ? 0 : term;
  for (int64_t k = odd ? 3 : 2; k <= degrees - 2; k += 2) {
    term *= cosine * cosine * static_cast<double>(k - 1) / static_cast<double>(k);
    sum += term;
  }
  sum *= std::sin(angle);
  return odd ? (angle + sum) * 2 / std::numbers::pi : sum;
}

// Where a rising function reaches a value, between two points: bisection, because it is
// needed once for a table.
template <typename Function>
double solve(Function rising, double value, double low, double high) {
  for (;;) {
    const double middle = low + (high - low) / 2;
    if (middle == low || middle == high) return middle;
    (rising(middle) < value ? low : high) = middle;
  }
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

// Newcombe's interval of the difference of two rates, from the interval of each.
Interval combined(double a, const Interval& of_a, double b, const Interval& of_b,
                  double correlation) {
  const auto distance = [&](double x, double y) {
    return std::sqrt(std::max(0.0, x * x - 2 * correlation * x * y + y * y));
  };
  return {.low = a - b - distance(a - of_a.low, of_b.high - b),
          .high = a - b + distance(of_a.high - a, b - of_b.low)};
}

}  // namespace

double normal_quantile(double probability) {
  HOLDFAST_CHECK(probability > 0 && probability < 1, "probability {}", probability);
  return solve(normal_below, probability, -40, 40);
}

double binomial_tail(int64_t total, int64_t most, double rate) {
  if (most < 0) return 0;
  if (most >= total) return 1;
  double sum = 0;
  for (int64_t i = 0; i <= most; ++i) sum += binomial(total, i, rate);
  return std::min(sum, 1.0);
}

Interval wilson_interval(int64_t count, int64_t total, double confidence) {
  HOLDFAST_CHECK(0 <= count && count <= total, "{} of {}", count, total);
  return wilson_at(static_cast<double>(count), static_cast<double>(total),
                   two_sided_quantile(confidence));
}

double fisher_p(const RateCounts& counts) {
  const auto& [count_a, total_a, count_b, total_b] = counts;
  const int64_t hits = count_a + count_b;
  const auto chance = [&](int64_t in_a) {
    return std::exp(log_ways(total_a, in_a) + log_ways(total_b, hits - in_a) -
                    log_ways(total_a + total_b, hits));
  };
  // Equal chances differ in their last bits.
  const double seen = chance(count_a) * (1 + 1e-7);
  double sum = 0;
  for (int64_t i = std::max<int64_t>(0, hits - total_b); i <= std::min(hits, total_a);
       ++i) {
    if (chance(i) <= seen) sum += chance(i);
  }
  return std::min(sum, 1.0);
}

Interval rate_difference(const RateCounts& counts, double confidence) {
  const auto& [count_a, total_a, count_b, total_b] = counts;
  if (total_a == 0 || total_b == 0) return {-1, 1};
  const double a = static_cast<double>(count_a) / static_cast<double>(total_a);
  const double b = static_cast<double>(count_b) / static_cast<double>(total_b);
  return combined(a, wilson_interval(count_a, total_a, confidence), b,
                  wilson_interval(count_b, total_b, confidence), 0);
}

double mcnemar_p(const PairCounts& pairs) {
  const int64_t less = std::min(pairs.only_a, pairs.only_b);
  return std::min(1.0, 2 * binomial_tail(pairs.only_a + pairs.only_b, less));
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
  return combined(a, of_a, b, of_b, pair_correlation(pairs));
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

QuantileInterval quantile_interval(std::vector<double> values, double part,
                                   double confidence) {
  HOLDFAST_CHECK(!values.empty(), "a quantile of no values");
  std::ranges::sort(values);
  const auto count = std::ssize(values);
  const auto ranked = [&](int64_t rank) {  // the first has the rank 1
    return values[static_cast<size_t>(std::clamp<int64_t>(rank, 1, count) - 1)];
  };
  // How many values lie below the true quantile is binomial. It is less than `low` and
  // more than `high` with at most half of the probability that remains each.
  int64_t low = 0, high = count;
  double under = binomial(count, low, part), over = binomial(count, high, part);
  const double outside = (1 - confidence) / 2;
  double next = under;
  for (; low < count && next <= outside; next += binomial(count, low, part)) {
    under = next;
    ++low;
  }
  next = over;
  for (; high > 0 && next <= outside; next += binomial(count, high, part)) {
    over = next;
    --high;
  }
  const auto rank = static_cast<int64_t>(std::ceil(part * static_cast<double>(count)));
  const double value = ranked(rank), other = ranked(rank + 1);
  const bool between = part == 0.5 && count % 2 == 0 && value != other;
  return {.value = between ? value / 2 + other / 2 : value,
          .interval = {ranked(low), ranked(high + 1)},
          .covers = std::max(0.0, 1 - under - over)};
}

QuantileInterval median_interval(std::vector<double> values, double confidence) {
  QuantileInterval found = quantile_interval(std::move(values), 0.5, confidence);
  if (found.covers < confidence) found.interval = {-kInfinite, kInfinite};
  return found;
}

MeanInterval mean_interval(std::span<const double> values, double confidence) {
  HOLDFAST_CHECK(!values.empty(), "a mean of no values");
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  if (values.size() == 1) return {.mean = mean, .half = kInfinite};
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const int64_t degrees = std::ssize(values) - 1;
  const double angle = solve(
      [&](double at) { return student_within(at, degrees); }, confidence, 0,
      std::numbers::pi / 2);
  const double student = std::sqrt(static_cast<double>(degrees)) * std::tan(angle);
  return {mean, student * std::sqrt(squares / static_cast<double>(degrees) / count)};
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
