// Tests the statistics against published tables, exact fractions, and simulations.
#include "holdfast/statistics/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "holdfast/base/random_stream.h"

namespace holdfast::statistics_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void expect_interval(const Interval& seen, double low, double high, double within) {
  EXPECT_NEAR(seen.low, low, within);
  EXPECT_NEAR(seen.high, high, within);
}

TEST(StatisticsTest, TheNormalQuantileIsTheTabulatedOne) {
  EXPECT_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-12);
  EXPECT_NEAR(normal_quantile(0.995), 2.5758293035489004, 1e-12);
  EXPECT_NEAR(normal_quantile(0.5), 0, 1e-12);
  EXPECT_NEAR(normal_quantile(0.025), -1.959963984540054, 1e-12);
}

// The examples of Newcombe, Statistics in Medicine 17 (1998), 857-872, table I.
TEST(StatisticsTest, WilsonsIntervalIsThePublishedOne) {
  expect_interval(wilson_interval(81, 263), 0.2553, 0.3662, 5e-5);
  expect_interval(wilson_interval(15, 148), 0.0624, 0.1605, 5e-5);
  expect_interval(wilson_interval(0, 20), 0, 0.1611, 5e-5);
  expect_interval(wilson_interval(1, 29), 0.0061, 0.1718, 5e-5);
}

TEST(StatisticsTest, WilsonsIntervalHasExactEnds) {
  EXPECT_EQ(wilson_interval(0, 385).low, 0);
  EXPECT_EQ(wilson_interval(385, 385).high, 1);
  EXPECT_EQ(wilson_interval(0, 0).low, 0);
  EXPECT_EQ(wilson_interval(0, 0).high, 1);
  const Interval some = wilson_interval(12, 385), rest = wilson_interval(373, 385);
  EXPECT_NEAR(some.low, 1 - rest.high, 1e-15);
  EXPECT_NEAR(some.high, 1 - rest.low, 1e-15);
}

TEST(StatisticsTest, TheTailOfABinomialDistributionIsExact) {
  EXPECT_EQ(binomial_tail(10, -1), 0);
  EXPECT_NEAR(binomial_tail(10, 0), 1.0 / 1024, 1e-15);
  EXPECT_NEAR(binomial_tail(10, 1), 11.0 / 1024, 1e-15);
  EXPECT_NEAR(binomial_tail(10, 9), 1023.0 / 1024, 1e-12);
  EXPECT_EQ(binomial_tail(10, 10), 1);
  EXPECT_EQ(binomial_tail(0, 0), 1);
  EXPECT_NEAR(binomial_tail(2001, 1000), 0.5, 1e-9);
  EXPECT_NEAR(binomial_tail(3, 2, 0.9), 1 - 0.729, 1e-15);
}

// Newcombe, Statistics in Medicine 17 (1998), 873-890, method 10, contrasts a and b.
TEST(StatisticsTest, DifferencesOfIndependentRatesAreThePublishedOnes) {
  expect_interval(rate_difference({56, 70, 48, 80}), 0.0524, 0.3339, 5e-5);
  expect_interval(rate_difference({9, 10, 3, 10}), 0.1705, 0.8090, 5e-5);
  expect_interval(rate_difference({0, 0, 3, 10}), -1, 1, 0);
}

TEST(StatisticsTest, FishersTestIsExact) {
  EXPECT_NEAR(fisher_p({3, 4, 1, 4}), 34.0 / 70, 1e-12) << "the lady tasting tea";
  EXPECT_NEAR(fisher_p({10, 10, 0, 10}), 2.0 / 184756, 1e-12);
  EXPECT_NEAR(fisher_p({1, 1, 0, 1}), 1, 1e-12);
  EXPECT_EQ(fisher_p({}), 1);
}

// Airway reactivity of 21 children, the example of Fagerland, Lydersen and Laake,
// Statistics in Medicine 33 (2014), 2850-2875.
TEST(StatisticsTest, PairsOfThePublishedExampleAgree) {
  const PairCounts pairs{.both = 1, .only_a = 1, .only_b = 7, .neither = 12};
  EXPECT_NEAR(mcnemar_p(pairs), 18.0 / 256, 1e-12);
  expect_interval(paired_difference(pairs), -0.507, -0.026, 5e-4);
}

// The approval of a prime minister in two surveys: Agresti, Categorical Data Analysis.
TEST(StatisticsTest, LargePairsAgreeWithTheTextbook) {
  const PairCounts pairs{.both = 794, .only_a = 150, .only_b = 86, .neither = 570};
  EXPECT_NEAR(mcnemar_p(pairs), 3.716e-5, 5e-9);
  expect_interval(paired_difference(pairs), 0.021, 0.059, 1e-3);
}

TEST(StatisticsTest, ExchangingThePairsTurnsTheDifferenceAround) {
  const PairCounts pairs{.both = 20, .only_a = 9, .only_b = 4, .neither = 67};
  const PairCounts turned{.both = 20, .only_a = 4, .only_b = 9, .neither = 67};
  const Interval one = paired_difference(pairs), other = paired_difference(turned);
  EXPECT_NEAR(one.low, -other.high, 1e-15);
  EXPECT_NEAR(one.high, -other.low, 1e-15);
  EXPECT_EQ(mcnemar_p(pairs), mcnemar_p(turned));
}

TEST(StatisticsTest, PairsThatAreAllAlikeShowNoDifference) {
  for (const PairCounts& pairs :
       {PairCounts{.both = 50, .neither = 50}, PairCounts{.neither = 100}}) {
    EXPECT_EQ(mcnemar_p(pairs), 1);
    const Interval interval = paired_difference(pairs);
    EXPECT_LE(interval.low, 0);
    EXPECT_GE(interval.high, 0);
    EXPECT_LT(interval.high - interval.low, 0.1);
  }
  expect_interval(paired_difference({}), -1, 1, 0);
}

TEST(StatisticsTest, HolmsCorrectionIsThatOfTheTextbook) {
  const std::vector<double> adjusted = holm(std::vector{0.01, 0.04, 0.03, 0.005});
  const std::vector<double> expected{0.03, 0.06, 0.06, 0.02};
  ASSERT_EQ(adjusted.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(adjusted[i], expected[i], 1e-15) << i;
  }
  EXPECT_EQ(holm(std::vector{0.7, 0.9}), (std::vector{1.0, 1.0}));
  EXPECT_TRUE(holm({}).empty());
}

// The ranks that statistical tables give for 95 %: of 10 values the 2nd and the 9th, and
// so on.
TEST(StatisticsTest, TheMediansIntervalHasTheTabulatedRanks) {
  const struct {
    int count, low, high;
  } rows[] = {{6, 1, 6},   {10, 2, 9},  {15, 4, 12},
              {20, 6, 15}, {25, 8, 18}, {100, 40, 61}};
  for (const auto& [count, low, high] : rows) {
    std::vector<double> values;
    for (int i = count; i >= 1; --i) values.push_back(i);
    const QuantileInterval found = median_interval(values);
    EXPECT_EQ(found.value, (count + 1) / 2.0) << count;
    EXPECT_EQ(found.interval.low, low) << count;
    EXPECT_EQ(found.interval.high, high) << count;
  }
  const QuantileInterval few = median_interval({3, 1, 2});
  EXPECT_EQ(few.value, 2);
  EXPECT_EQ(few.interval.low, -kInfinity);
  EXPECT_EQ(few.interval.high, kInfinity);
  EXPECT_EQ(median_interval({kInfinity, kInfinity}).value, kInfinity);
}

TEST(StatisticsTest, AQuantilesIntervalSaysWhatItCovers) {
  std::vector<double> values;
  for (int i = 1; i <= 100; ++i) values.push_back(i);
  const QuantileInterval high = quantile_interval(values, 0.99);
  EXPECT_EQ(high.value, 99);
  expect_interval(high.interval, 97, 100, 0);
  // The greatest of 100 values lies below the quantile with a chance of 37 %.
  EXPECT_NEAR(high.covers,
              1 - binomial_tail(100, 96, 0.99) - std::pow(0.99, 100), 1e-12);
  const struct {
    size_t count;
    double low, high, covers;
  } rows[] = {{1, 1, 1, 0},          {2, 1, 2, 0.5},         {3, 1, 3, 0.75},
              {7, 1, 7, 63.0 / 64}, {11, 2, 10, 1012.0 / 1024}};
  for (const auto& row : rows) {
    const std::vector<double> first(values.begin(), values.begin() + ssize_t(row.count));
    const QuantileInterval median = quantile_interval(first, 0.5);
    EXPECT_EQ(median.value, static_cast<double>(row.count + 1) / 2);
    expect_interval(median.interval, row.low, row.high, 0);
    EXPECT_NEAR(median.covers, row.covers, 1e-12) << row.count;
  }
}

// The quantiles of Student's distribution that tables give: 12.706 for two values.
TEST(StatisticsTest, TheMeansIntervalIsStudents) {
  for (const auto& [count, student] :
       {std::pair{2, 12.706205}, {3, 4.302653}, {4, 3.182446}, {5, 2.776445},
        {6, 2.570582}, {11, 2.228139}, {30, 2.045230}, {1001, 1.962339}}) {
    std::vector<double> values;
    for (int i = 0; i < count; ++i) values.push_back(i);
    const MeanInterval found = mean_interval(values);
    EXPECT_EQ(found.mean, (count - 1) / 2.0);
    const double deviation = std::sqrt(count * (count + 1) / 12.0);
    EXPECT_NEAR(found.half / (deviation / std::sqrt(count)), student, 1e-6) << count;
  }
  EXPECT_EQ(mean_interval(std::vector{3.0}).half, kInfinity);
}

TEST(StatisticsTest, OneStratumIsWilsonsInterval) {
  const Stratum all{.weight = 7, .count = 12, .total = 385};
  const RateEstimate estimate = stratified_rate({&all, 1});
  const Interval wilson = wilson_interval(12, 385);
  EXPECT_NEAR(estimate.rate, 12.0 / 385, 1e-15);
  expect_interval(estimate.interval, wilson.low, wilson.high, 1e-12);
}

TEST(StatisticsTest, StrataCountByTheirWeights) {
  const std::vector<Stratum> strata{{.weight = 31, .count = 0, .total = 100},
                                    {.weight = 1, .count = 100, .total = 100}};
  const RateEstimate estimate = stratified_rate(strata);
  EXPECT_NEAR(estimate.rate, 1.0 / 32, 1e-15);
  EXPECT_LT(estimate.interval.low, 1.0 / 32);
  EXPECT_GT(estimate.interval.high, 1.0 / 32);
  EXPECT_LT(estimate.interval.high - estimate.interval.low, 0.06);
}

// Simulated campaigns: the intervals of 95 % contain the truth in at least 94 % of them.
class Simulation {
 public:
  int64_t count(double rate, int total) {
    int64_t seen = 0;
    for (int i = 0; i < total; ++i) {
      seen += draws_.uniform() < rate;
    }
    return seen;
  }

 private:
  RandomStream draws_{5};
};

TEST(StatisticsTest, IntervalsCoverTheTruthInSimulatedCampaigns) {
  constexpr int kCampaigns = 2000, kTrials = 385;
  Simulation simulation;
  for (const double rate : {0.05, 0.3, 0.9}) {
    int covered = 0;
    for (int i = 0; i < kCampaigns; ++i) {
      const Interval seen = wilson_interval(simulation.count(rate, kTrials), kTrials);
      covered += seen.low <= rate && rate <= seen.high;
    }
    EXPECT_GE(covered, 0.94 * kCampaigns) << rate;
    EXPECT_LE(covered, 0.97 * kCampaigns) << rate;
  }
}

TEST(StatisticsTest, StratifiedIntervalsCoverTheTruthInSimulatedCampaigns) {
  constexpr int kCampaigns = 2000, kTrials = 60;
  const std::vector<double> rates{0.02, 0.1, 0.5, 0.95}, weights{20, 6, 3, 3};
  const double truth = (20 * 0.02 + 6 * 0.1 + 3 * 0.5 + 3 * 0.95) / 32;
  Simulation simulation;
  int covered = 0;
  for (int i = 0; i < kCampaigns; ++i) {
    std::vector<Stratum> strata;
    for (size_t k = 0; k < rates.size(); ++k) {
      strata.push_back({weights[k], simulation.count(rates[k], kTrials), kTrials});
    }
    const Interval seen = stratified_rate(strata).interval;
    covered += seen.low <= truth && truth <= seen.high;
  }
  EXPECT_GE(covered, 0.94 * kCampaigns);
  EXPECT_LE(covered, 0.99 * kCampaigns);
}

TEST(StatisticsTest, PairedIntervalsCoverTheTruthInSimulatedCampaigns) {
  constexpr int kCampaigns = 1000, kPairs = 400;
  Simulation simulation;
  int covered = 0;
  for (int i = 0; i < kCampaigns; ++i) {
    const int64_t only_a = simulation.count(0.06, kPairs);
    const int64_t only_b = simulation.count(0.03, kPairs);
    const int64_t both = simulation.count(0.2, kPairs);
    const Interval seen =
        paired_difference({both, only_a, only_b, kPairs - both - only_a - only_b});
    covered += seen.low <= 0.03 && 0.03 <= seen.high;
  }
  EXPECT_GE(covered, 0.94 * kCampaigns);
}

}  // namespace
}  // namespace holdfast::statistics_test
