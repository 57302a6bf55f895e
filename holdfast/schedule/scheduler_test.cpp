// Tests the live scheduler and what it learns from.
#include "holdfast/schedule/scheduler.h"

#include <cmath>
#include <functional>

#include "holdfast/base/testing.h"
#include "holdfast/schedule/intervals.h"
#include "holdfast/schedule/random_stream.h"

namespace holdfast {
namespace {

using namespace std::chrono_literals;

Duration secs(double seconds) {
  return Duration(static_cast<int64_t>(std::llround(seconds * 1e9)));
}

// A job that does what the scheduler says, on a clock of its own.
struct Job {
  Scheduler scheduler;
  double step_time = 0.5, stall = 0.2, persist = 3;
  int64_t bytes = 0;
  std::function<double(double)> loss = nullptr;
  Instant now{};
  int64_t next = 0;
  double durable_at = -1, work = 0;
  std::vector<int64_t> saves{};
  std::vector<std::string> reasons{};

  explicit Job(SchedulerOptions options)
      : scheduler(Scheduler::create(std::move(options)).value()) {
    scheduler.start(0, now);
  }

  double elapsed() const {
    return std::chrono::duration<double>(now - Instant{}).count();
  }

  void one() {
    now += secs(step_time);
    work += step_time;
    if (durable_at >= 0 && elapsed() >= durable_at) {
      scheduler.durable(saves.back(), secs(persist), bytes);
      durable_at = -1;
    }
    if (scheduler.step(next, now)) {
      saves.push_back(next);
      reasons.push_back(scheduler.reason());
      now += secs(stall);
      scheduler.captured(next, secs(stall));
      durable_at = elapsed() + persist;
    }
    if (loss) scheduler.loss(next, loss(work));
    ++next;
  }

  void steps(int64_t count) {
    for (int64_t i = 0; i < count; ++i) one();
  }
};

TEST(SchedulerTest, StepsAreMultiplesWhateverElseIsSaved) {
  Job run({.every = EverySteps{100}});
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
  Job run({.every = EveryTime{10s}});
  run.steps(100);
  EXPECT_EQ(run.saves, (std::vector<int64_t>{19, 39, 59, 79, 99}));
  run.scheduler.saved_elsewhere(100);
  run.steps(19);
  EXPECT_EQ(run.saves.size(), 5u);
}

TEST(SchedulerTest, ANewJobIsSafeFromItsFirstStepsOn) {
  Job run({});
  run.steps(3);
  EXPECT_EQ(run.saves, (std::vector<int64_t>{2}));
  EXPECT_EQ(run.reasons[0], "step 2: first save, to be safe and to learn its cost");
  Job resumed({});
  resumed.scheduler.start(500, resumed.now, true);
  resumed.steps(50);
  EXPECT_TRUE(resumed.saves.empty());
}

TEST(SchedulerTest, YoungsPolicyKeepsYoungsInterval) {
  Job run({.every = Policy::kYoung, .mtbf = 3600.0});
  run.steps(4000);
  const double tau = run.scheduler.interval();
  EXPECT_NEAR(tau, young(0.2, 3600), 0.15 * tau);  // the exposure lengthens it
  for (size_t i = 3; i < run.saves.size(); ++i) {
    const double gap = 0.5 * static_cast<double>(run.saves[i] - run.saves[i - 1]);
    EXPECT_NEAR(gap, tau, 0.15 * tau);
  }
}

// A stall of 5 ms and an MTBF of 8 h would give a save every 17 s.
TEST(SchedulerTest, AutoTakesTheLongestIntervalThatIsAsGood) {
  Job run({.mtbf = 8 * 3600.0});
  run.stall = 0.005;
  run.persist = 2;
  run.steps(2000);
  const double best = daly_exact(0.005, 8 * 3600), tau = run.scheduler.interval();
  EXPECT_NEAR(best, 17, 0.1);
  EXPECT_GT(tau, 5 * best);
  const auto overhead = [](double t) { return 0.005 / t + t / (2 * 8 * 3600); };
  EXPECT_LE(overhead(tau), overhead(best) + 0.00115);  // hysteresis
  EXPECT_GE(overhead(tau), overhead(best) + 0.0008);
}

TEST(SchedulerTest, BytesADayAndTheDiskLengthenTheInterval) {
  Job run({.mtbf = 1800.0, .bytes_a_day = 8.64e10});
  run.bytes = 200'000'000;  // 432 a day: every 200 s
  run.steps(3000);
  EXPECT_NEAR(run.scheduler.interval(), 200, 20);
  Job slow({.mtbf = 600.0});
  slow.persist = 90;
  slow.steps(3000);
  EXPECT_NEAR(slow.scheduler.interval(), 180, 18);
  EXPECT_NE(slow.scheduler.explain().find("as short as the time of a save allows"),
            std::string::npos);
}

TEST(SchedulerTest, FailuresShortenTheIntervalAndQuietLengthensIt) {
  Job run({.every = Policy::kYoung, .mtbf = 36000.0});
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
  Job run({.every = Policy::kYoung, .mtbf = 3600.0});
  Learned learned{.failures = 30, .worker_seconds = 3600, .stall = 5, .persist = 20};
  run.scheduler.start(100, run.now, true, learned);
  run.next = 100;
  run.steps(1);
  EXPECT_NEAR(run.scheduler.interval(), young(5, 5 * 3600.0 / 34), 2);
}

TEST(SchedulerTest, MoreWorkersSaveMoreOften) {
  Job run({.every = Policy::kYoung, .mtbf = 3600.0, .workers = 4});
  run.steps(100);
  const double before = run.scheduler.interval();
  run.scheduler.set_workers(16);
  run.steps(1);
  EXPECT_NEAR(run.scheduler.interval(), before / 2, 0.02 * before);
}

TEST(SchedulerTest, OneSaveIsInFlightAtATime) {
  Job run({.every = Policy::kYoung, .mtbf = 100.0});
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
  Job run({.every = Policy::kYoung, .mtbf = 400.0});
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
  Job run(
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
  Job run({.total_steps = 2000, .budget = 5});
  run.steps(2000);
  EXPECT_GE(run.saves.size(), 5u);
  EXPECT_LE(run.saves.size(), 6u);
}

TEST(SchedulerTest, HardStopsOnASteepCurveMakeTheFirstGapsShort) {
  Job run({.mtbf = 36000.0,
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
  Job run({.every = Policy::kCoci, .mtbf = 2 * 3600.0, .total_steps = 100000});
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
  Job run({.every = Policy::kCoci, .mtbf = 70 * 3600.0});
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
    Job run({.every = Policy::kCoci, .mtbf = 2 * 3600.0, .workers = workers});
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
      Job run({.every = policy,
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

TEST(EstimatesTest, StepsBesideASaveInFlightShowTheSlowdown) {
  StepTimes steps;
  for (int i = 0; i < 100; ++i) steps.add(0.1, false), steps.add(0.12, true);
  EXPECT_NEAR(steps.slowdown(), 0.2, 1e-9);
  EXPECT_NEAR(steps.step(), 0.1, 1e-9);
}

}  // namespace
}  // namespace holdfast
