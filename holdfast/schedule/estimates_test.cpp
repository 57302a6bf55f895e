// Tests what a running job learns.
#include "holdfast/schedule/estimates.h"

#include <cmath>

#include "holdfast/base/testing.h"
#include "holdfast/base/random_stream.h"

namespace holdfast {
namespace {

TEST(EstimatesTest, TheFirstSaveDoesNotCount) {
  SaveCosts costs;
  costs.stalled(30);
  EXPECT_EQ(costs.stall(), 30);
  for (int i = 1; i <= 100; ++i) costs.stalled(i == 100 ? 5 : 1);
  EXPECT_NEAR(costs.stall(), 1 + 4.0 / 64, 1e-12);
}

TEST(EstimatesTest, WithoutFailuresTheRateFallsWithTheExposure) {
  FailureRate rate(3600, 1);
  EXPECT_EQ(rate.rate(), 1.0 / 3600);
  rate.exposed(3 * 3600);
  EXPECT_EQ(rate.rate(), 1.0 / (4 * 3600));
  rate.failed();
  EXPECT_EQ(rate.rate(), 2.0 / (4 * 3600));
  rate.exposed(-1);
  rate.exposed(NAN);
  EXPECT_EQ(rate.rate(), 2.0 / (4 * 3600));
  const double one = 1 / FailureRate::unknown(1).rate();
  EXPECT_NEAR(one / 86400, 6.9, 0.1);
  EXPECT_NEAR(1 / (1024 * FailureRate::unknown(1024).rate()) / 3600, 8.9, 0.2);
}

// Nobody has stated a rate, and the job fails every 10 minutes.
TEST(EstimatesTest, AFewFailuresOutweighTheGuess) {
  FailureRate rate = FailureRate::unknown(1);
  for (const double at_most : {9 * 3600, 3000, 1300}) {
    rate.exposed(600);
    rate.failed();
    EXPECT_LT(1 / rate.rate(), at_most);
    EXPECT_GT(1 / rate.rate(), 600);
  }
  FailureRate quiet = FailureRate::unknown(1);
  quiet.exposed(30 * 86400);
  EXPECT_GT(1 / quiet.rate() / 86400, 30);
}

TEST(EstimatesTest, AJobThatNeverFailsHasTheRateZero) {
  FailureRate rate(INFINITY, 4);
  rate.exposed(100);
  EXPECT_EQ(rate.rate(), 0);
}

TEST(EstimatesTest, StepsThatDifferByChanceShowNoSlowdown) {
  RandomStream dice(3);
  StepTimes steps;
  for (int i = 0; i < 100; ++i) {
    steps.add(0.1 + 0.01 * dice.normal(), i % 2 == 0);
    EXPECT_LE(steps.slowdown(), 0.02);
  }
}

TEST(EstimatesTest, StepsBesideASaveInFlightShowTheSlowdown) {
  StepTimes steps;
  for (int i = 0; i < 100; ++i) steps.add(0.1, false), steps.add(0.12, true);
  EXPECT_NEAR(steps.slowdown(), 0.2, 1e-9);
  EXPECT_NEAR(steps.step(), 0.1, 1e-9);
}

}  // namespace
}  // namespace holdfast
