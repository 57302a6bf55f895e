// Tests policies and the costs of their schedules against brute force, limits,
// invariances, and numbers of the literature. Expected values were derived
// independently. Where a formula is tested, its closed form stands in the test.
#include "holdfast/schedule/policies.h"

#include <algorithm>
#include <cmath>

#include "holdfast/base/testing.h"
#include "holdfast/schedule/intervals.h"
#include "holdfast/schedule/optimum.h"
#include "holdfast/base/random_stream.h"
#include "holdfast/schedule/recommend.h"

namespace holdfast::policy_test {
namespace {

constexpr double kHour = 3600;

Curve falling(double first, double rate, double floor = 0) {
  return Curve::exponential(first, rate, floor).value();
}

Grid grid_of(Problem problem) { return Grid::build(std::move(problem)).value(); }

std::vector<double> gaps_of(const Grid& grid, const std::vector<int64_t>& saves) {
  std::vector<double> out;
  int64_t before = 0;
  for (const int64_t j : saves) {
    out.push_back(grid.time(j - before));
    before = j;
  }
  out.push_back(grid.time(grid.last() - before));
  return out;
}

double mean_gap(const Grid& grid) {
  return grid.problem().length / static_cast<double>(optimum(grid).size() + 1);
}

// Tries all subsets of the inner positions.
double brute_force(const Grid& grid) {
  const auto inner = static_cast<int>(grid.last()) - 1;
  double best = INFINITY;
  for (int set = 0; set < 1 << inner; ++set) {
    std::vector<int64_t> saves;
    for (int j = 0; j < inner; ++j) {
      if (set >> j & 1) saves.push_back(j + 1);
    }
    best = std::min(best, grid.cost(saves));
  }
  return best;
}

Problem random_problem(RandomStream& dice) {
  Problem p{.length = 50 + 450 * dice.uniform(), .stall = 0.1 + 20 * dice.uniform()};
  p.positions = 4 + static_cast<int64_t>(8 * dice.uniform());
  p.mtbf = 20 + 1000 * dice.uniform();
  p.restart = 30 * dice.uniform();
  if (dice.uniform() < 0.5) p.persist = p.length / 12 * 3 * dice.uniform();
  p.objective = static_cast<Objective>(dice.bits() % 4);
  p.curve = falling(2.3, (0.1 + 8 * dice.uniform()) / p.length, 0.2);
  if (dice.uniform() < 0.5) p.workers.phases = {{0, 4}, {p.length / 3, 2}};
  if (p.objective == Objective::kExplore) {
    p.stops = {2 / p.length, dice.uniform(), {{p.length / 2, 0.6}}};
  }
  if (p.objective == Objective::kPriced) p.price = 5;
  return p;
}

TEST(PolicyTest, TheOptimumIsWhatBruteForceFinds) {
  RandomStream dice(7);
  for (int round = 0; round < 150; ++round) {
    const Grid grid = grid_of(random_problem(dice));
    const double best = brute_force(grid);
    EXPECT_NEAR(grid.cost(optimum(grid)), best, 1e-12 * best) << round;
  }
}

TEST(PolicyTest, ABudgetGivesExactlySoManySavesAtTheLeastCost) {
  RandomStream dice(11);
  for (int round = 0; round < 40; ++round) {
    Problem p = random_problem(dice);
    p.persist = 0;
    double before = INFINITY, fall = INFINITY;
    for (int64_t count = 0; count < 4; ++count) {
      p.budget = count;
      const Grid grid = grid_of(p);
      const std::vector<int64_t> saves = optimum(grid);
      ASSERT_EQ(saves.size(), static_cast<size_t>(count));
      double best = INFINITY;
      const auto inner = static_cast<int>(grid.last()) - 1;
      for (int set = 0; set < 1 << inner; ++set) {
        if (__builtin_popcount(static_cast<unsigned>(set)) != count) continue;
        std::vector<int64_t> chosen;
        for (int j = 0; j < inner; ++j) {
          if (set >> j & 1) chosen.push_back(j + 1);
        }
        best = std::min(best, grid.cost(chosen));
      }
      EXPECT_NEAR(grid.cost(saves), best, 1e-9 * best) << round << " " << count;
      if (count > 0) {
        EXPECT_LE(before - best, fall + 1e-9 * best) << "convex in the count";
        fall = before - best;
      }
      before = best;
    }
  }
}

TEST(PolicyTest, TheCostIsMonge) {
  RandomStream dice(3);
  for (int round = 0; round < 100; ++round) {
    const Grid grid = grid_of(random_problem(dice));
    const auto pick = [&](int64_t low, int64_t high) {
      return low +
             static_cast<int64_t>(dice.uniform() * static_cast<double>(high - low));
    };
    const int64_t a = pick(0, grid.last() - 2), b = pick(a + 1, grid.last() - 1);
    const int64_t c = pick(b + 1, grid.last()), d = grid.last();
    // A save that is over or durable only after the end is never worth its stall, and
    // the exact costs of such saves are not Monge.
    const Problem& p = grid.problem();
    if (c == d || p.length - grid.time(c) < p.stall + p.persist) continue;
    const double sum = grid.cost(a, d) + grid.cost(b, c);
    EXPECT_LE(grid.cost(a, c) + grid.cost(b, d), sum + 1e-12 * std::fabs(sum));
  }
}

// The cost of saves between positions, by sums over small steps.
TEST(PolicyTest, SavesNeedNotBeAtPositions) {
  Problem p{.length = kHour, .stall = 2, .persist = 40, .mtbf = kHour};
  p.objective = Objective::kProgress;
  p.curve = falling(2.3, 5 / kHour, 0.2);
  const Schedule schedule{{101.234, 333.3, 1777.77, 3001.5}};
  double expected = 0, base = 0, x = 0;
  for (size_t k = 0; k <= schedule.times.size(); ++k) {
    const double save = k < schedule.times.size() ? schedule.times[k] : p.length;
    const double durable = k < schedule.times.size() ? save + p.persist : p.length;
    const int64_t steps = 20000;
    const double dx = (durable - x) / static_cast<double>(steps);
    for (int64_t i = 0; i < steps; ++i) {
      const double middle = x + (static_cast<double>(i) + 0.5) * dx;
      expected += p.curve.drop(base, middle) * dx / p.mtbf;
    }
    if (k < schedule.times.size()) expected += p.curve.drop(save, save + p.stall);
    base = save, x = durable;
  }
  EXPECT_NEAR(grid_of(p).cost(schedule), expected, 1e-7 * expected);
}

TEST(PolicyTest, TheOptimumIsNotBoundToPositions) {
  Problem p{.length = kHour, .stall = 2, .mtbf = kHour};
  p.objective = Objective::kProgress;
  p.curve = falling(1, 3 / kHour);
  const Grid coarse = grid_of(p);
  p.positions = 30000;
  const Grid fine = grid_of(p);
  const double best = fine.cost(optimum(fine));
  EXPECT_GT(coarse.cost(optimum(coarse)), best * (1 + 1e-5));
  EXPECT_LT(fine.cost(optimal_schedule(coarse)), best * (1 + 1e-8));
}

// A running job computes with saves at positions.
TEST(PolicyTest, PositionsAreGoodEnoughForARunningJob) {
  Problem p{.length = 100 * 120, .stall = 2, .mtbf = kHour, .positions = 4000};
  p.objective = Objective::kExplore;
  p.stops.rate = 1 / kHour;
  p.curve = falling(2.3, 3 / p.length);
  const Grid grid = grid_of(p);
  const Recommendation exact = recommend(grid),
                       quick = recommend_at_positions(grid, 0.001, kWorthUneven);
  EXPECT_EQ(exact.uneven, quick.uneven);
  EXPECT_NEAR(quick.optimum, exact.optimum, 5e-4 * exact.optimum);
  EXPECT_NEAR(quick.interval, exact.interval, 2 * grid.cell());
  EXPECT_NEAR(grid.cost(quick.schedule), exact.cost, 0.005 * exact.cost);
}

// With an MTBF of ten stalls, the first-order cost would choose an interval that is a
// tenth too short.
TEST(PolicyTest, SavesInFlightLeadToDalysExactIntervalToo) {
  const double exact = daly_exact(60, 600);
  const Grid grid = grid_of({.length = 20 * exact + 60 + 100,
                             .stall = 60,
                             .persist = 100,
                             .mtbf = 600,
                             .positions = 8000});
  ASSERT_TRUE(grid.exact());
  const std::vector<double> times = optimal_schedule(grid).times;
  ASSERT_EQ(times.size(), 19u);
  for (size_t k = 1; k < times.size(); ++k) {
    EXPECT_NEAR(times[k] - times[k - 1], exact, 0.01 * exact);
  }
}

TEST(PolicyTest, TheExactMakespanLeadsToDalysExactInterval) {
  for (const auto& [stall, mtbf] : {std::pair(10.0, 3600.0), std::pair(60.0, 900.0)}) {
    const double exact = daly_exact(stall, mtbf);
    // The last interval has no stall, so it is longer by the stall.
    const Grid grid = grid_of({.length = 20 * exact + stall,
                               .stall = stall,
                               .restart = 60,
                               .mtbf = mtbf,
                               .positions = 8000});
    ASSERT_TRUE(grid.exact());
    const std::vector<int64_t> saves = optimum(grid);
    ASSERT_EQ(saves.size(), 19u);
    for (const double gap : gaps_of(grid, saves)) {
      EXPECT_NEAR(gap, exact, stall + 2 * grid.cell());
    }
    EXPECT_NEAR(grid.time(saves.back()) / 19, exact, grid.cell());
  }
}

// The interval is 120 s for a stall of 2 s and an MTBF of an hour, if the length is a
// multiple of it.
TEST(PolicyTest, ConstantProgressMakesEveryObjectiveYoungs) {
  const double tau = young(2, kHour);
  ASSERT_EQ(tau, 120);
  const std::pair<double, double> line[] = {{0, 10.0}, {40 * tau, 2.0}};
  for (const Objective objective : {Objective::kDelay, Objective::kProgress,
                                    Objective::kExplore, Objective::kPriced}) {
    Problem p{.length = 15 * tau, .stall = 2, .mtbf = kHour, .positions = 3000};
    p.workers.phases = {{0, 1}, {1e9, 1}};  // first order, not the exact makespan
    p.curve = Curve::points(line).value();
    p.objective = objective;
    const Grid grid = grid_of(p);
    for (const double gap : gaps_of(grid, optimum(grid))) EXPECT_NEAR(gap, 120, 0.7);
  }
}

// If a stall and a rollback have the same weight, the density of saves is Young's,
// whatever that weight is.
TEST(PolicyTest, WhatWeighsStallsAndRollbacksAlikeHardlyMovesTheSaves) {
  Problem p{.length = 40 * 120, .stall = 2, .mtbf = kHour, .positions = 12000};
  p.objective = Objective::kProgress;
  for (const double decay : {0.2, 0.05}) {  // over one interval
    p.curve = falling(1, decay / 120);
    const Grid grid = grid_of(p);
    const std::vector<double> gaps = gaps_of(grid, optimum(grid));
    // The first-order condition of a stationary schedule gives tau (1 - decay / 6).
    for (size_t i = 0; i < gaps.size() / 2; ++i) {
      EXPECT_NEAR(gaps[i], 120 * (1 - decay / 6), 1.5);
    }
  }
}

Problem hour_of(Objective objective) {
  Problem p{
      .length = kHour, .stall = 5, .persist = 12, .restart = 60, .mtbf = 2 * kHour};
  p.curve = Curve::power(2.3, 1.0 / 60, 0.8, 0.02).value();
  p.objective = objective;
  if (objective == Objective::kExplore) p.stops = {2 / kHour, 0.7, {}};
  if (objective == Objective::kPriced) p.price = 7;
  p.positions = 1500;
  return p;
}

constexpr Objective kAll[] = {Objective::kDelay, Objective::kProgress,
                              Objective::kExplore, Objective::kPriced};

TEST(PolicyTest, NoScheduleDependsOnTheUnitOfLoss) {
  for (const Objective objective : kAll) {
    Problem p = hour_of(objective);
    const std::vector<int64_t> saves = optimum(grid_of(p));
    p.curve = Curve::power(2.3 * 1000, 1.0 / 60, 0.8, 0.02 * 1000).value();
    EXPECT_EQ(optimum(grid_of(p)), saves) << name_of(objective);
  }
}

TEST(PolicyTest, NoScheduleDependsOnTheUnitOfTime) {
  for (const Objective objective : kAll) {
    Problem p = hour_of(objective);
    const std::vector<int64_t> saves = optimum(grid_of(p));
    for (double* time :
         {&p.length, &p.stall, &p.persist, &p.restart, &p.mtbf, &p.price}) {
      *time *= 64;  // exact in binary
    }
    p.curve = Curve::power(2.3, 1.0 / 60 / 64, 0.8, 0.02).value();
    p.stops.rate /= 64;
    EXPECT_EQ(optimum(grid_of(p)), saves) << name_of(objective);
  }
}

TEST(PolicyTest, CociAsPublishedCanLeaveAJobWithoutAnySave) {
  Problem p{.length = 3 * kHour, .stall = 30, .mtbf = 2 * kHour};
  p.curve = falling(2.2, 0.078 / 60);
  const Comparison all = compare(grid_of(p));
  EXPECT_TRUE(all.row("coci").schedule.times.empty());
  EXPECT_GT(all.row("optimal").schedule.times.size(), 10u);
  EXPECT_LT(all.row("optimal").cost, all.row("coci").cost / 2);
}

TEST(PolicyTest, CociSavesWhenItsRepositoryDoes) {
  Problem p{.length = 30 * 60, .stall = 0.09, .mtbf = 60 / 0.0042};
  p.curve = falling(std::exp(0.787), 0.078 / 60);
  const Comparison all = compare(grid_of(p));
  EXPECT_EQ(all.row("coci").schedule.times.size(), 135u);
  EXPECT_EQ(all.row("young").schedule.times.size(), 35u);
  // The saves are at equal steps of the loss.
  const std::vector<double>& t = all.row("coci").schedule.times;
  EXPECT_NEAR(p.curve.drop(t[3], t[4]), 0.014678, 1e-6);
  EXPECT_NEAR(p.curve.drop(t[100], t[101]), 0.014678, 1e-6);
}

TEST(PolicyTest, CociForSeveralWorkersHasAStepForEachRound) {
  Problem p{.length = kHour, .stall = 0.1, .mtbf = 16 * kHour};
  p.objective = Objective::kProgress;
  const Curve one = falling(1, 0.005 / 60);
  p.curve = one;
  const Comparison serial = compare(grid_of(p));
  const std::vector<double>& alone = serial.row("coci").schedule.times;
  const std::vector<double>& same = serial.row("coci-parallel").schedule.times;
  ASSERT_EQ(same.size(), alone.size());
  for (size_t k = 0; k < same.size(); ++k) EXPECT_NEAR(same[k], alone[k], 1e-6);
  p.workers.phases = {{0, 8}, {kHour / 2, 2}};
  p.curve = one.paced(p.workers, 1);
  const std::vector<double> t = compare(grid_of(p)).row("coci-parallel").schedule.times;
  const double rate = p.mean_failure_rate() * 60;
  const double early = coci_loss_step(-0.005 * 8, rate, 0.1 / 60, 8);
  const double late = coci_loss_step(-0.005 * 2, rate, 0.1 / 60, 2);
  ASSERT_GT(t.size(), 20u);
  EXPECT_NEAR(p.curve.drop(0, t[0]), early, 1e-9);
  EXPECT_NEAR(p.curve.drop(t[3], t[4]), early, 1e-9);
  EXPECT_NEAR(p.curve.drop(t[t.size() - 2], t.back()), late, 1e-9);
}

TEST(PolicyTest, NobodyIsBetterThanTheOptimumOnItsOwnObjective) {
  for (const Objective objective : kAll) {
    const Comparison all = compare(grid_of(hour_of(objective)));
    for (const Comparison::Row& row : all.rows) {
      EXPECT_GE(row.cost, all.row("optimal").cost * (1 - 1e-12)) << row.policy->name();
    }
  }
}

TEST(PolicyTest, GapsFollowDangerAndPriceTheRightWay) {
  for (const Objective objective : kAll) {
    const Problem p = hour_of(objective);
    const double gap = mean_gap(grid_of(p));
    Problem more = p;
    more.mtbf /= 4;
    EXPECT_LT(mean_gap(grid_of(more)), gap) << name_of(objective);
    more = p;
    more.stall *= 4;
    EXPECT_GT(mean_gap(grid_of(more)), gap) << name_of(objective);
    more = p;
    more.workers.phases = {{0, 4}};
    EXPECT_LT(mean_gap(grid_of(more)), gap) << name_of(objective);
  }
  Problem p = hour_of(Objective::kExplore);
  const double gap = mean_gap(grid_of(p));
  p.stops.rate *= 4;
  EXPECT_LT(mean_gap(grid_of(p)), gap);
  p = hour_of(Objective::kPriced);
  p.price = 70;
  EXPECT_GT(mean_gap(grid_of(p)), mean_gap(grid_of(hour_of(Objective::kPriced))));
}

// For v ~ e^(-kx), a constant stop rate h, only hard stops and no price on seconds the
// interval is sqrt(2C/(l+h+k)).
TEST(PolicyTest, HardStopsOfAnExponentialAddItsRateToTheDanger) {
  Problem p{.length = 6 * kHour, .stall = 5, .mtbf = kHour, .positions = 8000};
  p.objective = Objective::kExplore;
  p.curve = falling(1, 4.6 / kHour);
  p.stops = {2 / kHour, 1, {}};
  p.second = 0;
  const Grid grid = grid_of(p);
  const std::vector<double> gaps = gaps_of(grid, optimum(grid));
  const double expected = std::sqrt(2 * 5 / ((1 + 2 + 4.6) / kHour));
  for (size_t i = 2; i < gaps.size() / 2; ++i) {
    EXPECT_NEAR(gaps[i], expected, 0.1 * expected);
  }
}

TEST(PolicyTest, OnASteepCurveWithHardStopsTheFirstGapsAreShorterThanTheLast) {
  Problem p = hour_of(Objective::kExplore);
  p.persist = 0;
  p.stops.hard = 1;
  const Grid grid = grid_of(p);
  const std::vector<double> gaps = gaps_of(grid, optimum(grid));
  EXPECT_LT(gaps[0] + gaps[1], 0.6 * (gaps[gaps.size() - 2] + gaps[gaps.size() - 3]));
}

// If the job is stopped every 100 h on average, the price of a second keeps the
// schedule near Young's.
TEST(PolicyTest, RareStopsLeaveExplorationNearYoungs) {
  Problem p{.length = kHour, .stall = 3.5, .mtbf = 2 * kHour, .positions = 3000};
  p.objective = Objective::kExplore;
  p.curve = falling(1, 14 / kHour);
  p.stops = {1 / (100 * kHour), 1, {}};
  const size_t count = optimum(grid_of(p)).size();
  p.second = 0;
  const size_t without = optimum(grid_of(p)).size();
  EXPECT_NEAR(static_cast<double>(count), kHour / young(3.5, 2 * kHour), 2.5);
  EXPECT_GT(without, 3 * count);
}

TEST(PolicyTest, ARungAndADeadlineFindTheStateDurable) {
  for (const double persist : {0.0, 21.0}) {
    Problem p{.length = 1800,
              .stall = 3,
              .persist = persist,
              .mtbf = kHour,
              .positions = 1800};
    p.objective = Objective::kExplore;
    p.curve = falling(1, 2.0 / 1800);
    p.stops.at = {{600, 2.0 / 3}, {1800, 1}};
    const Grid grid = grid_of(p);
    const std::vector<int64_t> saves = optimum(grid);
    const auto at = static_cast<int64_t>(600 - 3 - persist);
    EXPECT_TRUE(std::ranges::count(saves, at)) << persist;
    EXPECT_EQ(saves.back(), static_cast<int64_t>(1800 - 3 - persist));
    p.stops.at[0].hard = p.stops.at[1].hard = false;  // there is time to save then
    EXPECT_LT(grid_of(p).time(optimum(grid_of(p)).back()), 1750);
  }
}

// Inner gaps do not depend on the persist time. The last gap is longer by it.
TEST(PolicyTest, ThePersistTimeMovesNoSaveButTheLastGap) {
  Problem p{.length = 1800, .stall = 2, .mtbf = kHour, .positions = 3600};
  p.workers.phases = {{0, 1}, {1e9, 1}};
  for (const double persist : {0.0, 20.0, 60.0}) {
    p.persist = persist;
    p.length = 15 * 120 + persist;
    const Grid grid = grid_of(p);
    const std::vector<double> gaps = gaps_of(grid, optimum(grid));
    ASSERT_EQ(gaps.size(), 15u);
    for (size_t i = 0; i + 1 < gaps.size(); ++i) EXPECT_NEAR(gaps[i], 120, 1.1);
    EXPECT_NEAR(gaps.back(), 120 + persist, 8);
  }
}

TEST(PolicyTest, WhereStorageIsSlowSavesFollowOneAnotherButNeverOverlap) {
  Problem p{.length = 2 * kHour, .stall = 1, .persist = 300, .mtbf = kHour};
  const Grid grid = grid_of(p);
  const std::vector<double> gaps = gaps_of(grid, optimum(grid));
  for (size_t i = 1; i + 1 < gaps.size(); ++i) {
    EXPECT_GE(gaps[i], 300 - 1e-9);
    EXPECT_LE(gaps[i], 330);
  }
}

// decay x length is 112. The rounding of plain sums would leave hours without a save.
TEST(PolicyTest, TheTailOfALongCurveIsScheduledAsCarefullyAsItsHead) {
  Problem p{.length = 24 * kHour, .stall = 2, .mtbf = 2 * kHour, .positions = 20000};
  p.objective = Objective::kProgress;
  p.curve = falling(1, 0.078 / 60);
  const Grid grid = grid_of(p);
  const std::vector<double> gaps = gaps_of(grid, optimum(grid));
  std::vector<double> inner(gaps.begin() + 1, gaps.end() - 2);
  const double middle = inner[inner.size() / 2];
  for (const double gap : inner) EXPECT_NEAR(gap, middle, 0.1 * middle);
  EXPECT_NEAR(middle, young(2, 2 * kHour), 0.12 * young(2, 2 * kHour));
}

TEST(PolicyTest, ExplorationOverManyTimeConstantsFollowsTheDensity) {
  Problem p{.length = 24 * kHour, .stall = 5, .mtbf = 2 * kHour, .positions = 20000};
  p.objective = Objective::kExplore;
  p.curve = falling(1, 0.078 / 60);
  p.stops = {0.1 / kHour, 1, {}};
  p.second = 0;
  const Grid grid = grid_of(p);
  const std::vector<double> gaps = gaps_of(grid, optimum(grid));
  const double k = 0.078 / 60, h = 0.1 / kHour;
  const double density = std::sqrt(2 * 5 / (1 / p.mtbf + h + k));
  for (size_t i = 2; i + 60 < gaps.size(); ++i) {
    EXPECT_NEAR(gaps[i], density, 0.1 * density) << i;
  }
}

TEST(PolicyTest, AFinerGridHardlyChangesTheCost) {
  for (const Objective objective : kAll) {
    Problem p = hour_of(objective);
    p.persist = 0;
    p.positions = 0;
    const Grid coarse = grid_of(p);
    p.positions = 5 * coarse.last();
    const Grid fine = grid_of(p);
    const double cost = fine.cost(optimum(fine));
    EXPECT_NEAR(coarse.cost(optimum(coarse)), cost, 2e-3 * cost) << name_of(objective);
  }
}

TEST(PolicyTest, AJobThatNeverFailsIsNeverSaved) {
  const Comparison all = compare(grid_of({.length = kHour, .stall = 1}));
  for (const char* name : {"optimal", "even", "young", "daly", "coci"}) {
    EXPECT_TRUE(all.row(name).schedule.times.empty()) << name;
  }
}

}  // namespace
}  // namespace holdfast::policy_test
