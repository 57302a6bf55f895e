// The statistics of campaigns: intervals of rates, tests of pairs, and the correction
// for many tests.
//
// All intervals hold with the given confidence. The exact tests add up binomial
// probabilities, so they are right for small counts, too.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace holdfast {

inline constexpr double kUsualConfidence = 0.95;

struct Interval {
  double low = 0;
  double high = 0;
};

// The point below which a normal variable lies with this probability, in (0, 1):
// 1.959964 for 0.975.
double normal_quantile(double probability);

// P(X <= most) for X ~ Binomial(total, 1/2).
double fair_coin_tail(int64_t total, int64_t most);

// Wilson's score interval of a rate that was seen `count` times in `total`. It is never
// empty, also if the count is 0. For a total of 0 it is [0, 1].
Interval wilson_interval(int64_t count, int64_t total,
                         double confidence = kUsualConfidence);

// The same trials in two settings, by whether something happened in them.
struct PairCounts {
  int64_t both = 0;
  int64_t only_a = 0;
  int64_t only_b = 0;
  int64_t neither = 0;

  int64_t total() const { return both + only_a + only_b + neither; }
};

// The p-value of McNemar's exact test, two-sided: how likely at least such a difference
// between only_a and only_b is if the two settings are alike.
double mcnemar_p(const PairCounts& pairs);

// Newcombe's interval of the rate in A minus the rate in B, from pairs: the Wilson
// intervals of both rates, combined with the correlation of the pairs ("method 10" of
// Newcombe 1998). For no pairs it is [-1, 1].
Interval paired_difference(const PairCounts& pairs,
                           double confidence = kUsualConfidence);

// Holm's correction: p-values that can each be compared with the level of all tests
// together. In the order of the arguments.
std::vector<double> holm(std::span<const double> p_values);

struct MedianInterval {
  double median = 0;
  // Two of the values, or infinite if there are too few values for this confidence.
  Interval interval{};
};

// The median, with an interval from order statistics, which needs no assumption about
// the distribution. Infinite values are allowed. There must be at least one value, and
// no NaN.
MedianInterval median_interval(std::vector<double> values,
                               double confidence = kUsualConfidence);

// The p-value of the sign test that the median lies inside (-margin, margin): the larger
// of the two one-sided p-values, which are for "below margin" and for "above -margin".
// Small if the median is surely inside.
double median_within_p(std::span<const double> values, double margin);

// A part of a population of which trials were made.
struct Stratum {
  double weight = 0;  // its share of the population, in any unit
  int64_t count = 0;
  int64_t total = 0;
};

struct RateEstimate {
  double rate = 0;
  Interval interval{};
};

// The rate in the whole population, and its interval after Yan and Su (2010): the
// Wilson intervals of the strata, each with a smaller confidence, such that their
// weighted sum has the confidence asked for. For one stratum it is Wilson's interval. A
// stratum without trials could be anything from 0 to 1; its rate is taken as 1/2.
RateEstimate stratified_rate(std::span<const Stratum> strata,
                             double confidence = kUsualConfidence);

}  // namespace holdfast
