// Tests the live scheduler.
#include "holdfast/schedule/scheduler.h"

#include <cmath>
#include <functional>

#include "holdfast/base/testing.h"
#include "holdfast/schedule/intervals.h"
#include "holdfast/base/random_stream.h"
#include "holdfast/schedule/scheduler_testing.h"

namespace holdfast {
namespace {

using namespace std::chrono_literals;

TEST(SchedulerTest, StepsAreMultiplesWhateverElseIsSaved) {
  ScheduledJob run({.every = EverySteps{100}});
  run.steps(150);
  run.scheduler.saved_elsewhere(150);
  run.steps(200);
  EXPECT_EQ(run.saves, (std::vector<int64_t>{99, 199, 299}));
  EXPECT_EQ(run.reasons[0], "step 99: every 100 steps");
  run.scheduler.start(777, run.now, true);
  run.next = 777;
  run.steps(200);
  EXPECT_EQ(run.saves.back(), 899);
}

TEST(SchedulerTest, ATimeRunsFromTheLastSave) {
  ScheduledJob run({.every = EveryTime{10s}});
  run.steps(100);
  EXPECT_EQ(run.saves, (std::vector<int64_t>{19, 39, 59, 79, 99}));
  run.scheduler.saved_elsewhere(100);
  run.steps(19);
  EXPECT_EQ(run.saves.size(), 5u);
}

TEST(SchedulerTest, ANewJobIsSafeFromItsFirstStepsOn) {
  ScheduledJob run({});
  run.steps(3);
  EXPECT_EQ(run.saves, (std::vector<int64_t>{2}));
  EXPECT_EQ(run.reasons[0], "step 2: first save, to be safe and to learn its cost");
  ScheduledJob resumed({});
  resumed.scheduler.start(500, resumed.now, true);
  resumed.steps(50);
  EXPECT_TRUE(resumed.saves.empty());
}

TEST(SchedulerTest, YoungsPolicyKeepsYoungsInterval) {
  ScheduledJob run({.every = Policy::kYoung, .mtbf = 3600.0});
  run.steps(4000);
  const double tau = run.scheduler.interval();
  EXPECT_NEAR(tau, young(0.2, 3600), 0.15 * tau);  // the exposure lengthens it
  for (size_t i = 3; i < run.saves.size(); ++i) {
    const double gap = 0.5 * static_cast<double>(run.saves[i] - run.saves[i - 1]);
    EXPECT_NEAR(gap, tau, 0.15 * tau);
  }
}

TEST(SchedulerTest, FailuresShortenTheIntervalAndQuietLengthensIt) {
  ScheduledJob run({.every = Policy::kYoung, .mtbf = 36000.0});
  run.steps(200);
  const double before = run.scheduler.interval();
  for (int i = 0; i < 12; ++i) run.scheduler.failed();
  run.steps(1);
  const double after = run.scheduler.interval();
  EXPECT_NEAR(after / before, 0.5, 0.05);  // four expected, sixteen now
  run.scheduler.failed(false);
  run.steps(1);
  EXPECT_EQ(run.scheduler.interval(), after);
  run.step_time = 50;
  run.steps(8000);
  EXPECT_GT(run.scheduler.interval(), 1.5 * after);
  const Learned learned = run.scheduler.learned();
  EXPECT_EQ(learned.failures, 12);
  EXPECT_NEAR(learned.worker_seconds, run.work, 1e-3);
}

TEST(SchedulerTest, WhatOneProcessLearnedTheNextOneKnows) {
  ScheduledJob run({.every = Policy::kYoung, .mtbf = 3600.0});
  Learned learned{.failures = 30, .worker_seconds = 3600, .stall = 5, .persist = 20};
  run.scheduler.start(100, run.now, true, learned);
  run.next = 100;
  run.steps(1);
  EXPECT_NEAR(run.scheduler.interval(), young(5, 5 * 3600.0 / 34), 2);
}

TEST(SchedulerTest, MoreWorkersSaveMoreOften) {
  ScheduledJob run({.every = Policy::kYoung, .mtbf = 3600.0, .workers = 4});
  run.steps(100);
  const double before = run.scheduler.interval();
  run.scheduler.set_workers(16);
  run.steps(1);
  EXPECT_NEAR(run.scheduler.interval(), before / 2, 0.02 * before);
}

TEST(SchedulerTest, OneSaveIsInFlightAtATime) {
  ScheduledJob run({.every = Policy::kYoung, .mtbf = 100.0});
  run.persist = 40;  // longer than young's 6 s
  run.steps(2000);
  for (size_t i = 2; i < run.saves.size(); ++i) {
    EXPECT_GE(0.5 * static_cast<double>(run.saves[i] - run.saves[i - 1]), 40 - 1);
  }
  EXPECT_GT(run.saves.size(), 15u);
}

TEST(SchedulerTest, ADroppedSaveIsTriedAgainSoonButNotEveryStep) {
  SchedulerOptions options{.every = Policy::kYoung, .mtbf = 36000.0};
  Scheduler s = Scheduler::create(options).value();
  Instant now{};
  s.start(0, now, true, {.stall = 2, .persist = 1});
  std::vector<double> asked;
  for (int64_t step = 0; step < 3000; ++step) {
    now += 500ms;
    if (!s.step(step, now)) continue;
    asked.push_back(0.5 * static_cast<double>(step + 1));
    s.dropped(step);
  }
  ASSERT_GT(asked.size(), 3u);
  EXPECT_NEAR(asked[0], young(2, 36000), 0.05 * asked[0]);
  EXPECT_NEAR(asked[1] - asked[0], asked[0] / 8, 5);
}

TEST(SchedulerTest, ASlowStepThatPassesSeveralBoundariesSavesOnceAndGoesOn) {
  ScheduledJob run({.every = Policy::kYoung, .mtbf = 400.0});
  run.steps(100);
  const size_t before = run.saves.size();
  run.step_time = 300;
  run.steps(1);
  run.step_time = 0.5;
  EXPECT_EQ(run.saves.size(), before + 1);
  run.steps(200);
  EXPECT_GE(run.saves.size(), before + 4);
}

TEST(SchedulerTest, TheDeadlineAndTheRungsFindTheStateDurable) {
  ScheduledJob run(
      {.every = EverySteps{1000000}, .deadline = 300.0, .durable_steps = {100, 400}});
  run.steps(598);
  ASSERT_EQ(run.saves.size(), 3u);
  EXPECT_GE(run.saves[0], 75);
  EXPECT_LE(run.saves[0], 100 - 6);  // 3 s of persist are six steps
  EXPECT_LE(run.saves[1], 400 - 6);
  const double left = 300 - (0.5 * static_cast<double>(run.saves[2] + 1) + 0.4);
  EXPECT_GE(left, 3.2);
  EXPECT_LE(left, 8);
  EXPECT_NE(run.reasons[2].find("the deadline is in"), std::string::npos);
}

TEST(SchedulerTest, ABudgetIsSpreadOverTheRun) {
  ScheduledJob run({.total_steps = 2000, .budget = 5});
  run.steps(2000);
  EXPECT_EQ(run.saves.size(), 5u);
  ScheduledJob one({.total_steps = 2000, .budget = 1});
  one.steps(2000);
  EXPECT_EQ(one.saves.size(), 1u);
  ScheduledJob falling({.total_steps = 2000, .budget = 5});
  falling.loss = [](double x) { return 2 * std::exp(-x / 200); };
  falling.steps(2000);
  EXPECT_EQ(falling.saves, run.saves);
}

TEST(SchedulerTest, HardStopsOnASteepCurveMakeTheFirstGapsShort) {
  ScheduledJob run({.mtbf = 36000.0,
                    .total_steps = 3000,
                    .slack = 0,
                    .duty = 1,
                    .stop_rate = 1 / 3000.0});
  run.persist = 1;
  run.step_time = 2;
  RandomStream dice(5);
  run.loss = [&](double x) {
    return (0.3 + 2 / std::sqrt(1 + x / 20)) * (1 + 0.1 * dice.normal());
  };
  run.steps(3000);
  ASSERT_GT(run.saves.size(), 40u);
  const auto gap = [&](size_t i) { return run.saves[i + 1] - run.saves[i]; };
  const size_t n = run.saves.size();
  EXPECT_LT(gap(12) + gap(13), 0.8 * static_cast<double>(gap(n - 4) + gap(n - 3)));
  EXPECT_NE(run.reasons[20].find("explore"), std::string::npos) << run.reasons[20];
}

// The loss falls as COCI assumes. Each save comes when the loss has fallen by the
// published step since the last save, so the gaps grow.
TEST(SchedulerTest, CociSavesAtThePublishedStepsOfTheLoss) {
  ScheduledJob run({.every = Policy::kCoci, .mtbf = 2 * 3600.0, .total_steps = 100000});
  run.stall = 0.2, run.persist = 0.5;
  const double rate = 0.05 / 60;
  run.loss = [&](double x) { return 2.3 * std::exp(-rate * x); };
  run.steps(4000);  // 2000 s
  std::vector<double> falls, gaps;
  for (size_t k = 1; k < run.saves.size(); ++k) {
    const double from = 0.5 * static_cast<double>(run.saves[k - 1] + 1);
    const double to = 0.5 * static_cast<double>(run.saves[k] + 1);
    if (from < 300) continue;
    falls.push_back(run.loss(from) - run.loss(to));
    gaps.push_back(to - from);
  }
  ASSERT_GT(falls.size(), 8u);
  for (const double fall : falls) {
    // The failure rate falls a little as time passes without a failure.
    EXPECT_NEAR(fall, coci_loss_step(-0.05, 60 / (2.0 * 3600), 0.2 / 60), 0.08 * fall);
  }
  EXPECT_GT(gaps.back(), 1.5 * gaps.front());
  EXPECT_NE(run.reasons.back().find("coci: the loss falls by 0.0"), std::string::npos)
      << run.reasons.back();
}

TEST(SchedulerTest, CociSaysWhenItIsHeldToYoungsInterval) {
  ScheduledJob run({.every = Policy::kCoci, .mtbf = 70 * 3600.0});
  run.stall = 5, run.persist = 5;
  run.loss = [&](double x) { return std::exp(-x / 600); };
  run.steps(4000);
  EXPECT_NE(run.scheduler.explain().find("which wants no further save; held to 4 times "
                                         "Young's interval"),
            std::string::npos)
      << run.scheduler.explain();
}

TEST(SchedulerTest, CociKnowsTheNumberOfWorkers) {
  const auto interval = [](int64_t workers) {
    ScheduledJob run({.every = Policy::kCoci, .mtbf = 2 * 3600.0, .workers = workers});
    run.persist = 0.5;
    run.loss = [&](double x) { return 2.3 * std::exp(-0.05 / 60 * x); };
    run.steps(2000);
    return run.scheduler.interval();
  };
  EXPECT_GT(interval(8), 1.5 * interval(1));
}

TEST(SchedulerTest, NoLossCanHurt) {
  RandomStream dice(9);
  for (const std::function<double(double)>& loss :
       std::vector<std::function<double(double)>>{
           [](double) { return NAN; }, [](double) { return INFINITY; },
           [](double) { return 0.0; }, [](double) { return -5.0; },
           [](double x) { return x; }, [](double x) { return -x * 1e6; },
           [](double) { return 1e308; },
           [&](double) { return dice.normal() * 1e30; }}) {
    for (const Policy policy : {Policy::kAuto, Policy::kCoci}) {
      ScheduledJob run({.every = policy,
                        .objective = policy == Policy::kAuto
                                         ? std::optional(Objective::kProgress)
                                         : std::nullopt,
                        .mtbf = 3600.0});
      run.loss = loss;
      run.steps(600);
      EXPECT_GT(run.saves.size(), 2u);
      EXPECT_LT(run.saves.size(), 200u);
      EXPECT_TRUE(std::isfinite(run.scheduler.interval()));
    }
  }
}

TEST(SchedulerTest, ClocksThatStandStillOrRunBackAreLeftOut) {
  Scheduler s = Scheduler::create({}).value();
  s.start(0, Instant{} + 100s);
  for (int64_t step = 0; step < 10; ++step) s.step(step, Instant{} + 50s);
  s.captured(3, -5s);
  s.durable(3, -5s, -1);
  s.step(11, Instant{} + 60s);
  EXPECT_GT(s.interval(), 0);
}

TEST(SchedulerTest, ContradictionsAreRefused) {
  const auto message = [](SchedulerOptions o) {
    return message_of(Scheduler::create(o));
  };
  EXPECT_EQ(message({.mtbf = -1.0}), "mtbf: -1; expected more than 0");
  EXPECT_EQ(message({.mtbf = NAN}), "mtbf: nan; expected more than 0");
  EXPECT_EQ(message({.workers = 0}), "workers: 0; expected 1 or more");
  EXPECT_EQ(message({.every = EverySteps{5}, .objective = Objective::kDelay}),
            "every \"5 steps\": does not support objective and budget; expected auto");
  EXPECT_EQ(message({.budget = 5}),
            "budget: 5 saves; expected 1 or more, and total_steps");
  EXPECT_EQ(message({.slack = 2}), "slack: 2; expected a share of 0 to 1");
  EXPECT_EQ(message({.stop_rate = -1}), "stop_rate: -1; expected 0 or more");
}

}  // namespace
}  // namespace holdfast
