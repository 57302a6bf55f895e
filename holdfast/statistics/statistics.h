// The statistics of campaigns, studies and benchmarks: intervals of rates, medians and
// means, tests of pairs and of independent rates, and the correction for many tests.
//
// All intervals hold with the given confidence; where there are too few values for it,
// they say so. The exact tests add up probabilities, so they are right for small counts,
// too.
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

// P(X <= most) for X ~ Binomial(total, rate), with a rate in (0, 1).
double binomial_tail(int64_t total, int64_t most, double rate = 0.5);

// Wilson's score interval of a rate that was seen `count` times in `total`. It is never
// empty, also if the count is 0. For a total of 0 it is [0, 1].
Interval wilson_interval(int64_t count, int64_t total,
                         double confidence = kUsualConfidence);

// Of independent trials in two settings: how many, and in how many something happened.
struct RateCounts {
  int64_t count_a = 0;
  int64_t total_a = 0;
  int64_t count_b = 0;
  int64_t total_b = 0;
};

// The p-value of Fisher's exact test, two-sided: how likely counts that are at most as
// likely as these are if the two settings are alike.
double fisher_p(const RateCounts& counts);

// Newcombe's interval of the rate in A minus the rate in B, from independent trials: the
// Wilson intervals of both rates, combined ("method 10" of Newcombe 1998, 873-890). If
// one of the totals is 0, it is [-1, 1].
Interval rate_difference(const RateCounts& counts,
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

struct QuantileInterval {
  double value = 0;
  Interval interval{};
  // The chance that such an interval contains the true quantile. It is at least the
  // confidence that was asked for, or less where there are too few values.
  double covers = 0;
};

// The value that a part of all such values, in (0, 1), do not exceed, with an interval
// from order statistics, which needs no assumption about the distribution. For a part of
// 1/2 the value is the median. The ends are two of the values: the least and the greatest
// if there are too few for this confidence, and `covers` tells. Infinite values are
// allowed. There must be at least one value, and no NaN.
QuantileInterval quantile_interval(std::vector<double> values, double part,
                                   double confidence = kUsualConfidence);

// The same for the median, with infinite ends if there are too few values for this
// confidence.
QuantileInterval median_interval(std::vector<double> values,
                                 double confidence = kUsualConfidence);

struct MeanInterval {
  double mean = 0;
  double half = 0;  // the interval is mean ± half; infinite if there is one value
};

// The mean, with Student's interval, which is right for values of a normal distribution.
// There must be at least one value.
MeanInterval mean_interval(std::span<const double> values,
                           double confidence = kUsualConfidence);

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
