#include "holdfast/schedule/log_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include "holdfast/base/testing.h"

namespace holdfast {
namespace {

LogChain random_chain(std::mt19937_64& source, size_t hosts) {
  const auto draw = [&](int64_t most) {
    return static_cast<int64_t>(source() % static_cast<uint64_t>(most)) + 1;
  };
  LogChain chain{.bandwidth = 1000.0, .steps = draw(5)};
  for (size_t k = 0; k < hosts; ++k) {
    chain.replay.push_back(static_cast<double>(draw(20)));
    chain.rate.push_back(static_cast<double>(draw(4)));
    if (k + 1 < hosts) chain.right.push_back(draw(900)), chain.left.push_back(draw(900));
  }
  return chain;
}

// The best of all plans, by trying each.
LogPlan best_of_all(const LogChain& chain, const LogLimits& limits) {
  const size_t borders = chain.replay.size() - 1;
  std::optional<LogPlan> best;
  for (uint64_t which = 0; which < (uint64_t{1} << borders); ++which) {
    std::vector<bool> logged(borders);
    for (size_t k = 0; k < borders; ++k) logged[k] = ((which >> k) & 1) != 0;
    const LogPlan plan = *cost_of_log(chain, logged);
    if (keeps_limits(chain, limits, plan) && (!best || plan.seconds < best->seconds)) {
      best = plan;
    }
  }
  return *best;
}

TEST(LogPlanTest, EqualsTheBestOfAllPlansAndIsNeverWorseThanTheGreedyOne) {
  std::mt19937_64 source(7);
  int better = 0;
  for (int trial = 0; trial < 300; ++trial) {
    LogChain chain = random_chain(source, 1 + source() % 12);
    const int64_t all =
        cost_of_log(chain, std::vector<bool>(chain.replay.size() - 1, true))->bytes;
    LogLimits limits{.total = static_cast<int64_t>(source() % static_cast<uint64_t>(all + 1))};
    if (trial % 3 == 0) limits.host = static_cast<int64_t>(source() % 6000);
    if (trial % 4 == 0) chain.micro_batches = static_cast<int64_t>(1 + source() % 8);
    const LogPlan plan = *plan_log(chain, limits), greedy = *plan_log_greedily(chain, limits);
    EXPECT_TRUE(keeps_limits(chain, limits, plan)) << trial;
    EXPECT_TRUE(keeps_limits(chain, limits, greedy)) << trial;
    EXPECT_NEAR(plan.seconds, best_of_all(chain, limits).seconds, 1e-9) << trial;
    EXPECT_LE(plan.seconds, greedy.seconds + 1e-9) << trial;
    better += plan.seconds < greedy.seconds - 1e-9;
  }
  EXPECT_GT(better, 10);
}

TEST(LogPlanTest, WithRoomEveryBorderIsLoggedAndWithoutNone) {
  std::mt19937_64 source(8);
  const LogChain chain = random_chain(source, 6);
  EXPECT_EQ(plan_log(chain)->logged, std::vector<bool>(5, true));
  EXPECT_EQ(plan_log(chain, {.total = 0})->logged, std::vector<bool>(5, false));
  EXPECT_EQ(plan_log(chain, {.host = 0})->logged, std::vector<bool>(5, false));
}

TEST(LogPlanTest, ALossCostsTheStepsOfItsGroupAndWhatCrossesBordersInside) {
  const LogChain chain{.replay = {1, 2, 4}, .rate = {1, 1, 2}, .right = {10, 10}, .left = {10, 10},
                       .bandwidth = 10, .steps = 3};
  // Hosts 0 and 1 are one group: 1 + 2 s, and 20 bytes at 10 bytes a second.
  const LogPlan plan = *cost_of_log(chain, {false, true});
  EXPECT_DOUBLE_EQ(plan.seconds, (2 * 5.0 + 2 * 4.0) / 4);
  EXPECT_EQ(plan.bytes, 60);
}

TEST(LogPlanTest, HostsOfAGroupThatWorkAtTheSameTimeTakeAsLongAsTheSlowestOne) {
  LogChain chain{.replay = {1, 2, 4}, .rate = {1, 1, 1}, .right = {10, 10}, .left = {10, 10},
                 .bandwidth = 10, .steps = 3, .micro_batches = 8};
  // The longest, a fill of 2 of 8 micro-batches, and 40 bytes at 10 bytes a second.
  EXPECT_DOUBLE_EQ(cost_of_log(chain, {false, false})->seconds, 4 * (1 + 2.0 / 8) + 4);
}

TEST(LogPlanTest, GroupsAreNoLongerThanAllowedAndIfThatIsImpossibleThereIsNoPlan) {
  const LogChain chain{.replay = {1, 1, 1, 1}, .rate = {1, 1, 1, 1}, .right = {5, 5, 5},
                       .left = {5, 5, 5}, .bandwidth = 10};
  EXPECT_EQ(plan_log(chain, {.host = 5, .group = 2})->logged, (std::vector<bool>{true, false, true}));
  EXPECT_EQ(plan_log_greedily(chain, {.total = 10, .group = 3})->bytes, 10);
  EXPECT_ERROR(plan_log(chain, {.host = 4, .group = 2}), ErrorCode::kNotFound);
  EXPECT_ERROR(plan_log_greedily(chain, {.host = 4, .group = 2}), ErrorCode::kNotFound);
}

TEST(LogPlanTest, A128StagesLongPipelineIsPlannedAtOnce) {
  std::mt19937_64 source(9);
  const LogChain chain = random_chain(source, 128);
  const int64_t half = cost_of_log(chain, std::vector<bool>(127, true))->bytes / 2;
  const LogPlan plan = *plan_log(chain, {.total = half});
  EXPECT_LE(plan.bytes, half);
  EXPECT_LE(plan.seconds, plan_log_greedily(chain, {.total = half})->seconds + 1e-9);
}

// SWIFT's profile of ViT-128/32 on 16 hosts: seconds in which each host makes a step again
// (github.com/jasperzhong/swift, benchmarks/distributed/ft/pipeline_vit/profile/compute_time_K.txt).
// A border carries 256 micro-batches of 16 x 50 x 1024 numbers of 4 bytes one way, as SWIFT counts, hosts
// send 40 Gb/s to each other, and checkpoints are 100 steps apart.
LogChain profile_of_vit() {
  const int64_t bytes = int64_t{256} * 16 * 50 * 1024 * 4;
  return {.replay = {4.190398454666138, 3.9173083305358887, 3.6475815773010254,
                     3.350229263305664, 3.1106820106506348, 2.7829363346099854,
                     2.6102020740509033, 2.3116931915283203, 2.051832437515259,
                     1.8167130947113037, 1.6026933193206787, 0.4898104667663574,
                     0.46216487884521484, 0.2429513931274414, 0.38614392280578613,
                     0.9754316806793213},
          .rate = std::vector<double>(16, 1),
          .right = std::vector<int64_t>(15, bytes),
          .left = std::vector<int64_t>(15, 0),
          .bandwidth = 5e9,
          .steps = 100};
}

TEST(LogPlanTest, OnSwiftsOwnProfileThePlanReplaysUpTo13PercentLessThanItsRule) {
  struct Row {
    double budget, swift, best;  // in TB, and seconds to make one step again
  };
  for (const auto& [budget, swift, best] :
       {Row{1.4, 2.12, 2.12}, Row{0.9, 3.03, 2.97}, Row{0.6, 4.72, 4.21}, Row{0.3, 9.36, 8.26},
        Row{0.1, 19.42, 17.23}}) {
    const LogLimits limits{.total = static_cast<int64_t>(budget * 1e12)};
    EXPECT_NEAR(plan_log_greedily(profile_of_vit(), limits)->seconds, swift, 0.005) << budget;
    EXPECT_NEAR(plan_log(profile_of_vit(), limits)->seconds, best, 0.005) << budget;
  }
}

TEST(LogPlanTest, WhatIsNoRowOfHostsIsRefused) {
  const LogChain good{.replay = {1, 1}, .rate = {1, 1}, .right = {1}, .left = {1}, .bandwidth = 1};
  ASSERT_OK(plan_log(good));
  for (auto spoil : {+[](LogChain& c) { c.replay.clear(); }, +[](LogChain& c) { c.left = {}; },
                     +[](LogChain& c) { c.rate = {0, 0}; }, +[](LogChain& c) { c.steps = 0; },
                     +[](LogChain& c) { c.bandwidth = 0; }, +[](LogChain& c) { c.right = {-1}; },
                     +[](LogChain& c) { c.replay[0] = std::nan(""); },
                     +[](LogChain& c) { c.right = {std::numeric_limits<int64_t>::max()}; }}) {
    LogChain bad = good;
    spoil(bad);
    EXPECT_ERROR(plan_log(bad), ErrorCode::kInvalid);
    EXPECT_ERROR(plan_log_greedily(bad), ErrorCode::kInvalid);
  }
}

}  // namespace
}  // namespace holdfast
