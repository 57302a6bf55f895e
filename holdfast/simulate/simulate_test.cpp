// Tests the simulator against a simple one that goes from event to event and against
// closed forms; and tests allocation and tiers.
#include "holdfast/simulate/simulate.h"

#include <bit>
#include <cmath>

#include "holdfast/base/testing.h"
#include "holdfast/simulate/allocate.h"
#include "holdfast/schedule/intervals.h"
#include "holdfast/schedule/optimum.h"
#include "holdfast/schedule/policies.h"
#include "holdfast/base/random_stream.h"
#include "holdfast/simulate/tiers.h"

namespace holdfast::simulate_test {
namespace {

constexpr double kHour = 3600;
using Kind = FailureModel::Kind;

Curve falling(double first, double rate, double floor = 0) {
  return Curve::exponential(first, rate, floor).value();
}

SimulatedSchedule run_one(const Problem& problem, const Schedule& schedule,
                          const SimulateOptions& options) {
  const NamedSchedule only[] = {{"only", schedule}};
  return simulate(problem, only, options).value().front();
}

struct Plain {
  double time = 0, progress = 0, saves = 0, redone = 0, restarts = 0;
};

// Goes from one event to the next: work until the next save, wait, stall. Failures are
// given by wall time.
Plain plain_run(const Problem& p, const Schedule& schedule,
                const std::vector<double>& fails) {
  Plain out;
  double wall = 0, x = 0, durable = 0, flying = -1, lands = 0;
  const auto next_failure = [&] {
    for (const double f : fails) {
      if (f > wall) return f;
    }
    return double{INFINITY};
  };
  const auto land = [&](double now) {
    if (flying >= 0 && lands <= now) durable = flying, flying = -1;
  };
  // Lets time pass. Returns true if a failure ended it.
  const auto pass = [&](double time, bool working) {
    const double failure = next_failure();
    const double spent = std::min(time, failure - wall);
    if (working) x += spent;
    if (!working) out.time += spent, out.progress += 0;
    wall += spent;
    land(wall);
    return failure - (wall - spent) < time;
  };
  for (;;) {
    double target = p.length;
    for (const double t : schedule.times) {
      if (t > x + 1e-9) {
        target = t;
        break;
      }
    }
    bool failed = pass(target - x, true);
    if (!failed && target == p.length) return out;
    if (!failed) {
      const double wait = flying >= 0 ? std::max(0.0, lands - wall) : 0;
      const double before = wall;
      failed = pass(wait + p.stall, false);
      out.progress += p.curve.drop(x, x + (wall - before));
      if (!failed) {
        flying = x, lands = wall + p.persist, ++out.saves;
        land(wall);
      }
    }
    if (failed) {
      out.redone += x - durable;
      out.restarts += p.restart;
      out.time += x - durable + p.restart;
      out.progress += p.curve.drop(durable, x);
      x = durable, flying = -1, wall += p.restart;
    }
  }
}

TEST(SimulateTest, EveryRunIsWhatAPlainWalkThroughItsEventsGives) {
  RandomStream dice(17);
  for (int round = 0; round < 200; ++round) {
    Problem p{.length = 1000, .stall = 1 + 9 * dice.uniform(), .restart = 20};
    if (dice.uniform() < 0.7) p.persist = 150 * dice.uniform();
    p.curve = falling(2, 3.0 / 1000, 0.1);
    const Schedule schedule = every(30 + 170 * dice.uniform(), p.length);
    std::vector<double> fails;
    for (double t = 0; t < 20000; fails.push_back(t))
      t += 60 + 400 * dice.exponential();
    SimulateOptions options{.runs = 1};
    options.failures = {.kind = Kind::kTrace, .trace = fails};
    const SimulatedSchedule seen = run_one(p, schedule, options);
    const Plain want = plain_run(p, schedule, fails);
    EXPECT_NEAR(seen.at(Metric::kTime).mean, want.time, 1e-6 * want.time) << round;
    EXPECT_NEAR(seen.at(Metric::kProgress).mean, want.progress, 1e-6 * want.progress);
    EXPECT_EQ(seen.saves, want.saves) << round;
    EXPECT_NEAR(seen.redone, want.redone, 1e-6 * want.time) << round;
    EXPECT_NEAR(seen.stalled, want.time - want.redone - want.restarts,
                1e-6 * want.time);
  }
}

// The run ends in the middle of an interval: 8.5 intervals, the last one without a
// save.
TEST(SimulateTest, TheMeanMakespanIsTheClosedForm) {
  for (const auto& [stall, mtbf, tau] :
       {std::array{5.0, 1800.0, 150.0}, std::array{30.0, 1800.0, 300.0}}) {
    Problem p{.length = 8.5 * tau, .stall = stall, .restart = 60, .mtbf = mtbf};
    const Schedule schedule = every(tau, p.length);
    ASSERT_EQ(schedule.times.size(), 8u);
    const double expected = (mtbf + 60) * (8 * std::expm1((tau + stall) / mtbf) +
                                           std::expm1(tau / 2 / mtbf));
    EXPECT_NEAR(expected_time(p, schedule).value(), expected, 1e-9 * expected);
    const SimulatedSchedule seen = run_one(p, schedule, {.runs = 40000, .seed = 5});
    const Summary& time = seen.at(Metric::kTime);
    EXPECT_NEAR(time.mean + p.length, expected, 1.5 * time.half);
    EXPECT_LT(time.half, 0.03 * time.mean);
  }
}

// A save is in flight for up to two thirds of the next interval. The last save of the
// second schedule is never durable.
TEST(SimulateTest, TheMeanMakespanIsTheClosedFormWhileSavesAreInFlight) {
  for (const auto& [stall, persist, last] :
       {std::array{5.0, 100.0, 900.0}, std::array{30.0, 60.0, 1150.0}}) {
    Problem p{.length = 1200, .stall = stall, .persist = persist, .restart = 40};
    p.mtbf = 500;
    const Schedule schedule{{150, 300, 500, 700, last}};
    const double expected = expected_time(p, schedule).value() - p.length;
    const SimulatedSchedule seen = run_one(p, schedule, {.runs = 40000, .seed = 5});
    const Summary& time = seen.at(Metric::kTime);
    EXPECT_NEAR(time.mean, expected, 1.5 * time.half);
    EXPECT_LT(time.half, 0.02 * time.mean);
    const Grid grid = Grid::build(p).value();
    ASSERT_TRUE(grid.exact());
    EXPECT_NEAR(grid.cost(schedule), expected, 1e-9 * expected);
  }
  Problem p{.length = 1200, .stall = 5, .persist = 100, .mtbf = 500};
  EXPECT_EQ(expected_time(p, Schedule{{150, 200}}), std::nullopt);
}

TEST(SimulateTest, WhatIsSimulatedIsWhatTheGridExpects) {
  Problem p{.length = 3 * kHour, .stall = 1, .persist = 40, .mtbf = 20 * kHour};
  p.curve = falling(2.3, 3 / (3 * kHour));
  p.objective = Objective::kProgress;
  const Grid grid = Grid::build(p).value();
  const Schedule schedule = every(600, p.length);
  const SimulatedSchedule seen = run_one(p, schedule, {.runs = 60000});
  const Summary& progress = seen.at(Metric::kProgress);
  EXPECT_NEAR(progress.mean, grid.cost(schedule),
              2 * progress.half + 0.02 * progress.mean);
}

// After a restart nothing is in flight, so the first gap loses less.
TEST(SimulateTest, AFailureLosesHalfAnIntervalAndThePersistTime) {
  Problem p{.length = 1000 * 330, .stall = 0.01, .persist = 90, .mtbf = 36000};
  const SimulatedSchedule seen = run_one(p, every(330, p.length), {.runs = 300});
  const double lost = (seen.at(Metric::kTime).mean - 0.01 * seen.saves) / seen.failures;
  EXPECT_NEAR(lost, 330.0 / 2 + 90, 4);
}

TEST(SimulateTest, SameSeedSameBits) {
  Problem p{
      .length = 3 * kHour, .stall = 5, .persist = 15, .restart = 60, .mtbf = 2 * kHour};
  p.curve = Curve::power(2.3, 60 / (3 * kHour), 0.8, 0.02).value();
  p.stops.rate = 1 / (1.5 * kHour);
  uint64_t bits = 0;
  for (const Kind kind : {Kind::kExponential, Kind::kWeibull}) {
    SimulateOptions options{.runs = 500, .seed = 42};
    options.failures.kind = kind;
    const SimulatedSchedule seen = run_one(p, every(270, p.length), options);
    for (const Summary& each : seen.metrics) {
      bits = bits * 31 + std::bit_cast<uint64_t>(each.mean + each.half + each.median);
    }
  }
  EXPECT_EQ(bits, 14671736749747877256u);
}

TEST(SimulateTest, AWeibullOfShapeOneIsExponential) {
  Problem p{.length = 3 * kHour, .stall = 5, .restart = 60, .mtbf = 2000 * kHour};
  p.workers.phases = {{0, 1000}};
  const Schedule schedule = every(270, p.length);
  SimulateOptions options{.runs = 5000};
  const SimulatedSchedule a = run_one(p, schedule, options);
  options.failures = {.kind = Kind::kWeibull, .shape = 1};
  const SimulatedSchedule b = run_one(p, schedule, options);
  EXPECT_NEAR(a.failures, b.failures, 0.1);
  const Summary &x = a.at(Metric::kTime), &y = b.at(Metric::kTime);
  EXPECT_NEAR(x.mean, y.mean, 1.5 * (x.half + y.half));
  EXPECT_NEAR(a.at(Metric::kWorkerSeconds).mean, 1000 * x.mean, 1e-6 * 1000 * x.mean);
}

// The expected number of failures of n new workers until t is n (t/scale)^shape, as
// long as each fails at most once.
TEST(SimulateTest, YoungWorkersFailMoreOften) {
  Problem p{.length = 3 * kHour, .stall = 5, .mtbf = 1e5 * kHour};
  p.workers.phases = {{0, 100000}};
  SimulateOptions options{.runs = 300};
  options.failures = {.kind = Kind::kWeibull, .shape = 0.7};
  const SimulatedSchedule fresh = run_one(p, every(60, p.length), options);
  const double scale = p.mtbf / std::tgamma(1 + 1 / 0.7);
  const double wall = p.length + fresh.at(Metric::kTime).mean;
  const double expected = 1e5 * std::pow(wall / scale, 0.7);
  EXPECT_NEAR(fresh.failures, expected, 0.05 * expected);
  options.failures.age = 1e4 * kHour;
  EXPECT_LT(run_one(p, every(60, p.length), options).failures, fresh.failures / 3);
}

TEST(SimulateTest, SchedulesMeetTheSameFailuresAndAreComparedRunByRun) {
  Problem p{.length = 3 * kHour, .stall = 5, .restart = 60, .mtbf = kHour};
  const NamedSchedule schedules[] = {{"young", every(young(5, kHour), p.length)},
                                     {"same", every(young(5, kHour), p.length)},
                                     {"rare", every(3000, p.length)}};
  const auto seen = simulate(p, schedules, {.runs = 4000}).value();
  EXPECT_EQ(seen[1].difference(Metric::kTime).mean, 0);
  EXPECT_EQ(seen[1].difference(Metric::kTime).half, 0);
  const Summary& worse = seen[2].difference(Metric::kTime);
  EXPECT_GT(worse.mean, 10 * worse.half);
  EXPECT_NEAR(seen[0].failures, seen[2].failures, 1.5);
}

TEST(SimulateTest, StopsTellWhatIsInHandAndWhatIsDurable) {
  Problem p{.length = kHour, .stall = 5, .persist = 20, .mtbf = INFINITY};
  p.curve = falling(1, 3 / kHour);
  SimulateOptions options{.runs = 1};
  options.stop_at = 1000;
  options.failures.kind = Kind::kNever;
  const SimulatedSchedule seen = run_one(p, every(300, p.length), options);
  // There are three stalls before 1000 s: the work clock is at 985, and 900 is durable.
  EXPECT_NEAR(seen.at(Metric::kInHand).mean, p.curve.drop(985, 1000), 1e-12);
  EXPECT_NEAR(seen.at(Metric::kDurable).mean, p.curve.drop(900, 1000), 1e-12);
  options.stop_at = 930;  // in flight since 915
  const SimulatedSchedule flying = run_one(p, every(300, p.length), options);
  EXPECT_NEAR(flying.at(Metric::kDurable).mean, p.curve.drop(600, 930), 1e-12);
}

// A job that fails once in so many stalls.
Problem failing_after(double stalls, Objective objective, double persist) {
  Problem p{.length = 1000, .stall = 10, .persist = persist, .mtbf = 10 * stalls};
  p.objective = objective;
  p.curve = falling(1, 1 / 700.0, 0.1);
  return p;
}

Metric metric_of(const Problem& p) {
  return p.objective == Objective::kPriced ? Metric::kPriced : Metric::kProgress;
}

TEST(SimulateTest, ExactCostsOfProgressAreThoseOfTheSimulation) {
  for (const Objective objective : {Objective::kProgress, Objective::kPriced}) {
    for (const double stalls : {3.0, 8.0, 25.0}) {
      for (const double persist : {0.0, 30.0}) {
        Problem p = failing_after(stalls, objective, persist);
        if (objective == Objective::kPriced) p.price = 2;
        const Grid grid = Grid::build(p).value();
        ASSERT_TRUE(grid.exact());
        // The last save of the second schedule may be durable only after the end.
        for (const double interval : {41.0, 109.0}) {
          const Schedule schedule = every(interval, p.length);
          const SimulatedSchedule seen = run_one(p, schedule, {.runs = 2000});
          const Summary& cost = seen.at(metric_of(p));
          EXPECT_NEAR(grid.cost(schedule), cost.mean, 2 * cost.half)
              << name_of(objective) << ", " << stalls << " stalls, persist " << persist
              << ", every " << interval;
        }
      }
    }
  }
}

TEST(SimulateTest, WithFewStallsBetweenFailuresTheOptimumIsTheBestThatIsSimulated) {
  for (const double stalls : {2.0, 5.0, 20.0}) {
    for (const Objective objective : {Objective::kProgress, Objective::kPriced}) {
      const Problem p = failing_after(stalls, objective, 0);
      const double usual = daly_exact(p.stall, p.mtbf);
      std::vector<NamedSchedule> all{
          {"optimal", optimal_schedule(Grid::build(p).value())}};
      for (const double share : {0.6, 0.75, 0.9, 1.0, 1.1, 1.3, 1.6}) {
        all.push_back({"even", every(share * usual, p.length)});
      }
      const auto seen = simulate(p, all, {.runs = 1000}).value();
      const double cost = seen[0].at(metric_of(p)).mean;
      for (size_t k = 1; k < seen.size(); ++k) {
        const Summary& more = seen[k].difference(metric_of(p));
        EXPECT_GT(more.mean + more.half, -0.005 * cost)
            << stalls << " stalls, " << name_of(objective) << ", schedule " << k;
      }
    }
  }
}

TEST(SimulateTest, AShrinkingJobCountsItsWorkers) {
  Problem p{.length = 2 * kHour, .stall = 1, .restart = 0, .mtbf = 8 * kHour};
  p.workers.phases = {{0, 8}, {1800, 4}, {3600, 2}, {5400, 1}};
  const SimulatedSchedule seen = run_one(p, every(300, p.length), {.runs = 4000});
  // To the first order this is the integral of the rate over the work.
  EXPECT_NEAR(seen.failures, p.workers.until(p.length) / p.mtbf, 0.12);
  p.objective = Objective::kDelay;
  const Comparison all = compare(Grid::build(p).value());
  const std::vector<double>& t = all.row("optimal").schedule.times;
  EXPECT_LT(t[1] - t[0], 0.6 * (t[t.size() - 1] - t[t.size() - 2]));
}

TEST(SimulateTest, OneFailureAndPeriodicOnesAreSpreadOverTheRuns) {
  Problem p{.length = 1000, .stall = 1, .mtbf = kHour};
  SimulateOptions options{.runs = 1000};
  options.failures = {.kind = Kind::kOnce, .share = 0.1};
  const SimulatedSchedule once = run_one(p, {}, options);
  EXPECT_EQ(once.failures, 1);
  EXPECT_NEAR(once.at(Metric::kTime).mean, 50, 1e-9);
  options.failures = {.kind = Kind::kEvery, .period = 700};
  const SimulatedSchedule periodic = run_one(p, every(100, p.length), options);
  EXPECT_NEAR(periodic.failures, 1000.0 / 700, 0.01);
}

TEST(SimulateTest, HopelessJobsAreGivenUpAndCounted) {
  Problem p{.length = 1000, .stall = 1, .mtbf = 10};
  const SimulatedSchedule seen = run_one(p, {}, {.runs = 2});
  EXPECT_EQ(seen.unfinished, 2);
}

TEST(SimulateTest, BadModelsAreRefused) {
  const Problem p{.length = 1000, .stall = 1, .mtbf = 10};
  const NamedSchedule only[] = {{"only", {}}};
  const auto message = [&](const SimulateOptions& o) {
    return message_of(simulate(p, only, o));
  };
  EXPECT_EQ(message({.runs = 0}), "runs: 0; expected 1 to 100000000");
  EXPECT_EQ(message({.failures = {.kind = Kind::kTrace}}),
            "trace: has no failures; expected at least one");
  EXPECT_EQ(message({.failures = {.kind = Kind::kTrace, .trace = {5, 3}}}),
            "trace: a failure at 3 s after 5 s; expected rising times");
  EXPECT_EQ(message({.failures = {.kind = Kind::kWeibull, .shape = NAN}}),
            "weibull: shape nan; expected 0.1 to 20");
  EXPECT_EQ(message({.failures = {.kind = Kind::kEvery}}),
            "failures: one every 0 s; expected more than 0");
}

TEST(ProblemTest, BadProblemsAreRefusedWithTheNumber) {
  const auto message = [](Problem p) { return message_of(Grid::build(std::move(p))); };
  EXPECT_EQ(message({}), "length: 0 s; expected more than 0 and at most 10^12");
  EXPECT_EQ(message({.length = NAN}),
            "length: nan s; expected more than 0 and at most 10^12");
  EXPECT_EQ(message({.length = 1, .stall = -1}), "stall: -1 s; expected 0 to 10^12");
  EXPECT_EQ(message({.length = 1, .stall = NAN}), "stall: nan s; expected 0 to 10^12");
  EXPECT_EQ(message({.length = 1, .mtbf = -5}),
            "mtbf: -5 s; expected more than 0, or never");
  EXPECT_EQ(message({.length = 1, .objective = Objective::kProgress}),
            "progress: the loss falls by 0; expected a curve that falls");
  EXPECT_EQ(message({.length = 1, .price = 3}),
            "price: is given for the objective delay; expected the objective priced");
  EXPECT_EQ(message({.length = 1, .stops = {-1, 1, {}}}),
            "stops: rate -1 a second; expected 0 or more");
  EXPECT_EQ(message({.length = 60, .stall = 1, .persist = 30, .budget = 3}),
            "budget: 3 saves of 30 s each do not fit into 60 s");
  EXPECT_ERROR(find_policy("best"), ErrorCode::kInvalid);
  EXPECT_ERROR(parse_objective("gain"), ErrorCode::kInvalid);
}

TEST(AllocateTest, TheSteepJobGetsMostAndTheSumIsTheBestThereIs) {
  const Curve curves[] = {falling(1, 1 / 600.0), falling(1, 1 / 600.0).from(1200),
                          falling(1, 1 / 60.0).from(600)};
  const auto shares = allocate(curves, 12).value();
  EXPECT_EQ(shares[0] + shares[1] + shares[2], 12);
  EXPECT_GT(shares[0], shares[1]);
  EXPECT_EQ(shares[2], 1);
  const auto gain = [&](int64_t a, int64_t b, int64_t c) {
    const int64_t each[] = {a, b, c};
    double sum = 0;
    for (size_t i = 0; i < 3; ++i) {
      sum += curves[i].drop(0, 60 * std::pow(static_cast<double>(each[i]), 0.9));
    }
    return sum;
  };
  for (int64_t a = 1; a <= 10; ++a) {
    for (int64_t b = 1; a + b <= 11; ++b) {
      EXPECT_LE(gain(a, b, 12 - a - b), gain(shares[0], shares[1], shares[2]) + 1e-12);
    }
  }
  EXPECT_ERROR(allocate(curves, 2), ErrorCode::kInvalid);
}

TEST(AllocateTest, OverTimeAConvergingJobShrinks) {
  const Curve curves[] = {falling(1, 1 / 3000.0), falling(1, 1 / 30000.0)};
  const auto over = allocate_over(curves, 16, 2 * kHour).value();
  EXPECT_GT(over[0].at(0), over[0].at(2 * kHour - 1));
  for (const double t : {0.0, 1000.0, 5000.0}) {
    EXPECT_EQ(over[0].at(t) + over[1].at(t), 16);
  }
}

TEST(TiersTest, IntervalsAreNestedAndNoOtherMultiplesAreBetter) {
  const TierCost tiers[] = {{"memory", 0.05, 0.1, 6 * kHour},
                            {"disk", 1, 10, 48 * kHour},
                            {"remote", 4, 300, 1000 * kHour}};
  const auto intervals = tier_intervals(tiers).value();
  EXPECT_EQ(intervals[0].each, 1);
  EXPECT_LT(intervals[0].interval, intervals[1].interval);
  EXPECT_LT(intervals[1].interval, intervals[2].interval);
  EXPECT_EQ(intervals[2].each % intervals[1].each, 0);
  double best = INFINITY, total = 0;
  for (const TierInterval& tier : intervals) total += tier.overhead;
  for (int m = 1; m <= 80; ++m) {
    for (int k = 1; k <= 80; ++k) {
      double stalls = 0, danger = 0, constant = 0;
      const double each[] = {1, double(m), double(m) * k};
      for (size_t i = 0; i < 3; ++i) {
        stalls += tiers[i].stall / each[i];
        danger += each[i] / tiers[i].mtbf;
        constant += tiers[i].persist / tiers[i].mtbf;
      }
      best = std::min(best, std::sqrt(2 * stalls * danger) + constant);
    }
  }
  EXPECT_LE(total, best * 1.002);
  EXPECT_ERROR(tier_intervals({}), ErrorCode::kInvalid);
}

TEST(TiersTest, ATierThatMendsNothingIsWrittenAsRarelyAsTheNext) {
  const TierCost tiers[] = {{"memory", 0.5, 0, INFINITY}, {"disk", 2, 5, 10 * kHour}};
  const auto intervals = tier_intervals(tiers).value();
  EXPECT_EQ(intervals[1].each, 1);
  EXPECT_NEAR(intervals[0].interval, young(2.5, 10 * kHour), 1e-6);
}

}  // namespace
}  // namespace holdfast::simulate_test
