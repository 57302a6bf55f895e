// One process that serves many trials gives the same records as a process for each.
#include <gtest/gtest.h>

#include <algorithm>

#include "holdfast/campaign/campaign_testing.h"

namespace holdfast::campaign_test {
namespace {

TEST_F(CampaignTest, ServedTrialsAreEqualToThoseInNewProcesses) {
  CampaignOptions fresh = options("plain"), warm = served("plain");
  fresh.folder = root_ / "fresh";
  warm.folder = root_ / "warm";
  fresh.trials = warm.trials = 5;
  warm.golden_every = 3;
  ASSERT_OK(run_campaign(*env_, fresh));
  const auto result = run_campaign(*env_, warm);
  ASSERT_OK(result);
  EXPECT_EQ(result->repeated, 0);
  EXPECT_EQ(lines("warm"), lines("fresh"));
}

// After a trial with a huge loss this program computes something else.
TEST_F(CampaignTest, TrialsAfterALeakAreRepeatedInNewProcesses) {
  auto [fresh, warm] = fresh_and_warm("leak");
  fresh.trials = warm.trials = 5;
  warm.golden_every = 3;
  ASSERT_OK(run_campaign(*env_, fresh));
  const auto result = run_campaign(*env_, warm);
  ASSERT_OK(result);
  EXPECT_GT(result->repeated, 0);
  EXPECT_EQ(lines("warm"), lines("fresh"));
}

TEST_F(CampaignTest, AServedTrialThatKillsItsProcessIsRepeatedAlone) {
  auto [fresh, warm] = fresh_and_warm("die");
  ASSERT_OK(run_campaign(*env_, fresh));
  ASSERT_OK(run_campaign(*env_, warm));
  const auto outcomes = [&](const char* folder) {
    std::vector<std::string> all;
    for (const TrialRecord& record : records(folder)) {
      all.emplace_back(name_of(record.outcome));
    }
    return all;
  };
  EXPECT_EQ(outcomes("warm"), outcomes("fresh"));
  EXPECT_GT(std::ranges::count(outcomes("warm"), "crashed"), 0);
}

TEST_F(CampaignTest, AStopInsideAServedTrialKeepsTheTrialsThatTheGoldenRunConfirms) {
  const CampaignOptions asked = served();
  int trials = 0, looks = 0;
  int64_t waits = 0;
  // The first look is before the third trial, the second one is inside of it.
  const auto result =
      run_campaign(*env_, asked,
                   {.progress = [&](int64_t, int64_t) { ++trials; },
                    .stopped = [&] { return trials >= 2 && ++looks >= 2; },
                    .waits = [&](int64_t unchecked) { waits = unchecked; }});
  ASSERT_OK(result);
  EXPECT_TRUE(result->stopped);
  EXPECT_EQ(result->done, 3);
  EXPECT_EQ(waits, 2);
  EXPECT_EQ(records().size(), 3u);
}

// The process has ended, so nobody knows whether something had leaked.
TEST_F(CampaignTest, ASecondStopInsideAServedTrialLeavesUncheckedTrialsToDo) {
  const auto [fresh, warm] = fresh_and_warm("leak");
  int trials = 0, looks = 0;
  const auto inside = [&] { return trials >= 2 && ++looks >= 2; };
  const auto result =
      run_campaign(*env_, warm,
                   {.progress = [&](int64_t, int64_t) { ++trials; },
                    .stopped = inside,
                    .stopped_again = inside});
  ASSERT_OK(result);
  EXPECT_TRUE(result->stopped);
  EXPECT_EQ(result->done, 0);
  EXPECT_TRUE(records("warm").empty());
  ASSERT_OK(run_campaign(*env_, warm));
  ASSERT_OK(run_campaign(*env_, fresh));
  EXPECT_EQ(lines("warm"), lines("fresh"));
}

TEST_F(CampaignTest, ASecondStopEndsTheGoldenRunThatChecks) {
  CampaignOptions asked = served();
  int trials = 0;
  const auto enough = [&] { return trials >= 2; };
  const auto result = run_campaign(*env_, asked,
                                   {.progress = [&](int64_t, int64_t) { ++trials; },
                                    .stopped = enough,
                                    .stopped_again = enough});
  ASSERT_OK(result);
  EXPECT_TRUE(result->stopped);
  EXPECT_EQ(result->done, 0);
  EXPECT_TRUE(records().empty());
}

}  // namespace
}  // namespace holdfast::campaign_test
