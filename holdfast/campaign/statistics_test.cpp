// Tests the statistics against published tables, exact fractions, and simulations.
#include "holdfast/campaign/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "holdfast/corruption/plan_builder.h"

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

TEST(StatisticsTest, TheTailOfAFairCoinIsExact) {
  EXPECT_EQ(fair_coin_tail(10, -1), 0);
  EXPECT_NEAR(fair_coin_tail(10, 0), 1.0 / 1024, 1e-15);
  EXPECT_NEAR(fair_coin_tail(10, 1), 11.0 / 1024, 1e-15);
  EXPECT_NEAR(fair_coin_tail(10, 9), 1023.0 / 1024, 1e-12);
  EXPECT_EQ(fair_coin_tail(10, 10), 1);
  EXPECT_EQ(fair_coin_tail(0, 0), 1);
  EXPECT_NEAR(fair_coin_tail(2001, 1000), 0.5, 1e-9);
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
    const MedianInterval found = median_interval(values);
    EXPECT_EQ(found.median, (count + 1) / 2.0) << count;
    EXPECT_EQ(found.interval.low, low) << count;
    EXPECT_EQ(found.interval.high, high) << count;
  }
  const MedianInterval few = median_interval({3, 1, 2});
  EXPECT_EQ(few.median, 2);
  EXPECT_EQ(few.interval.low, -kInfinity);
  EXPECT_EQ(few.interval.high, kInfinity);
  EXPECT_EQ(median_interval({kInfinity, kInfinity}).median, kInfinity);
}

TEST(StatisticsTest, AMedianIsInsideTheMarginIfAlmostAllValuesAre) {
  const std::vector<double> inside(10, 0.1);
  EXPECT_NEAR(median_within_p(inside, 0.3), 1.0 / 1024, 1e-15);
  const std::vector<double> above(10, 0.3), below(10, -0.4);
  EXPECT_EQ(median_within_p(above, 0.3), 1);
  EXPECT_EQ(median_within_p(below, 0.3), 1);
  EXPECT_EQ(median_within_p({}, 0.3), 1);
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
      seen += static_cast<double>(draws_.below(kSteps)) < rate * kSteps;
    }
    return seen;
  }

 private:
  static constexpr int64_t kSteps = 1 << 30;
  Draws draws_{5, 0};
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
