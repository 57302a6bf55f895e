// Tests the policy auto: what it chooses with a known failure rate and without one, and
// the reasons that it gives.
#include <algorithm>

#include "holdfast/base/testing.h"
#include "holdfast/schedule/intervals.h"
#include "holdfast/schedule/scheduler_testing.h"

namespace holdfast {
namespace {

TEST(AutoTest, AutoTakesTheBestIntervalForAKnownRate) {
  ScheduledJob run({.mtbf = 8 * 3600.0});
  run.stall = 0.005;
  run.persist = 2;
  run.steps(2000);
  const double best = daly_exact(0.005, 8 * 3600);
  EXPECT_NEAR(best, 17, 0.1);
  EXPECT_NEAR(run.scheduler.interval(), best, 0.1 * best);  // hysteresis
  EXPECT_TRUE(says(run.scheduler, "auto: the best for one failure in 8.1 h"))
      << run.scheduler.explain();
}

// The best interval would be 17 s. A limit makes it longer as far as slack allows: here
// to 25 s and half a step at first, and then by 0.1 % of 16 h.
TEST(AutoTest, WithAKnownRateLimitsForWritingHoldWhileTheyCostLittle) {
  ScheduledJob run({.mtbf = 8 * 3600.0});
  run.stall = 0.005;
  run.persist = 5;
  run.steps(2000);
  EXPECT_NEAR(run.scheduler.interval(), 25.25, 0.1);
  EXPECT_TRUE(says(run.scheduler,
                   ", made longer so that a save is in flight at most 20 "
                   "% of the time;"))
      << run.scheduler.explain();
  run.persist = 50;
  run.steps(10000);
  EXPECT_GT(run.scheduler.interval(), 80);
  EXPECT_LT(run.scheduler.interval(), 120);
  EXPECT_TRUE(says(run.scheduler,
                   ", made longer so that less is written, which costs "
                   "0.1 % of wall time;"))
      << run.scheduler.explain();
}

TEST(AutoTest, BytesADayAreStrictIfTheyAreStated) {
  ScheduledJob stated({.mtbf = 1800.0, .bytes_a_day = 8.64e10});
  stated.bytes = 200'000'000;  // 432 a day: every 200 s
  stated.steps(3000);
  EXPECT_NEAR(stated.scheduler.interval(), 200, 20);
  EXPECT_TRUE(says(stated.scheduler, "at most 86.4 GB are written a day"));
  ScheduledJob unknown({.bytes_a_day = 8.64e10});
  unknown.bytes = 1'000'000'000;  // every 1000 s
  unknown.steps(3000);
  EXPECT_NEAR(unknown.scheduler.interval(), 1000, 1);
  EXPECT_TRUE(says(unknown.scheduler,
                   "auto: no failure rate is known: as often as can "
                   "be if at most 86.4 GB are written a day"))
      << unknown.scheduler.explain();
  ScheduledJob usual({});
  usual.bytes = 100'000'000'000;  // 40 a day: every 36 min
  usual.steps(3000);
  EXPECT_LE(usual.scheduler.interval(), 300);
  EXPECT_TRUE(says(usual.scheduler, "at most 5 min of work can be lost"))
      << usual.scheduler.explain();
}

// The work between any save and the moment at which the next one is durable.
double most_lost(const ScheduledJob& run) {
  double most = 0;
  for (size_t i = 1; i < run.saves.size(); ++i) {
    const auto gap = static_cast<double>(run.saves[i] - run.saves[i - 1]);
    most = std::max(most, run.step_time * gap + run.persist);
  }
  return most;
}

TEST(AutoTest, WithoutAFailureRateFirstSavesAreDenseAndLaterOnesBounded) {
  ScheduledJob run({});
  run.stall = 0.001;
  run.persist = 0.5;
  run.steps(300);
  EXPECT_GE(run.saves.size(), 8u);  // in the first 150 s
  EXPECT_NE(run.reasons[2].find("auto: no failure rate is known: early in training, at "
                                "most a quarter of the work so far, or 10 s, at a price of"),
            std::string::npos)
      << run.reasons[2];
  run.steps(20000);
  EXPECT_LE(most_lost(run), 300);
  EXPECT_TRUE(says(run.scheduler, "no failure rate is known: the best for a guess of"))
      << run.scheduler.explain();
}

TEST(AutoTest, WithoutAFailureRateAtMostFiveMinutesAreLost) {
  ScheduledJob run({});
  run.step_time = 7;
  run.stall = 0.5;
  run.persist = 20;
  run.steps(3000);
  EXPECT_LE(most_lost(run), 300);
  EXPECT_GE(run.scheduler.interval(), 250);
  EXPECT_NE(run.reasons.back().find("auto: no failure rate is known: at most 5 min of "
                                    "work can be lost, at a price of 0."),
            std::string::npos)
      << run.reasons.back();
}

// The best interval for the guess of a failure a week is near an hour, and its stalls take
// 0.3 % of the time.
TEST(AutoTest, WithoutAFailureRateDearSavesAreRarer) {
  ScheduledJob run({});
  run.stall = 10;
  run.persist = 20;
  run.step_time = 20;
  run.steps(10000);
  EXPECT_GT(run.scheduler.interval(), 1200);
  EXPECT_LT(run.scheduler.interval(), 0.7 * daly_exact(10, 7 * kSecondsPerDay));
  EXPECT_TRUE(says(run.scheduler,
                   "auto: no failure rate is known: stalls of 10.0 s are too long to save "
                   "more often, at a price of 0.2 % of the time;"))
      << run.scheduler.explain();
}

TEST(AutoTest, TimeWithoutFailuresMakesProtectionRarer) {
  ScheduledJob run({});
  run.stall = 4;
  run.step_time = 600;
  run.steps(200);  // a day
  const double early = run.scheduler.interval();
  run.steps(10000);  // ten weeks
  EXPECT_GT(run.scheduler.interval(), 1.15 * early);
}

TEST(AutoTest, WithoutAFailureRateWritingTakesAFifthOfTheTime) {
  ScheduledJob run({});
  run.stall = 0.001;
  run.persist = 90;
  run.steps(20000);
  const auto writing = static_cast<double>(run.saves.size()) * run.persist;
  EXPECT_LE(writing, 0.2 * run.elapsed() + run.persist);
  EXPECT_GE(writing, 0.19 * run.elapsed());
  EXPECT_TRUE(says(run.scheduler,
                   "auto: no failure rate is known: as often as can be "
                   "if a save is in flight at most 20 % of the time"))
      << run.scheduler.explain();
}

TEST(AutoTest, ThreeFailuresMakeTheRateKnown) {
  ScheduledJob run({});
  run.steps(1000);
  run.scheduler.failed();
  run.scheduler.failed();
  run.steps(1);
  EXPECT_TRUE(says(run.scheduler, "no failure rate is known"));
  run.scheduler.failed();
  run.steps(1);
  EXPECT_TRUE(says(run.scheduler, "(auto: the best for one failure in"))
      << run.scheduler.explain();
}

}  // namespace
}  // namespace holdfast
