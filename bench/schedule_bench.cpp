// Measures how fast the best schedule is found, decisions are taken and jobs are
// simulated, in CPU time of one core, and compares the times with bars.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <limits>

#include "holdfast/schedule/optimum.h"
#include "holdfast/schedule/policies.h"
#include "holdfast/schedule/scheduler.h"
#include "holdfast/simulate/simulate.h"

namespace holdfast {
namespace {

constexpr double kHour = 3600;

// The CPU time of this thread, so that other load on the machine does not count.
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double best_of(int rounds, const std::function<void()>& work) {
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < rounds; ++round) {
    const double start = cpu_seconds();
    work();
    best = std::min(best, cpu_seconds() - start);
  }
  return best;
}

Problem day(Objective objective, int64_t positions, bool power = false) {
  Problem p{
      .length = 24 * kHour, .stall = 2, .mtbf = 4 * kHour, .positions = positions};
  p.curve = Curve::exponential(2.3, 5 / p.length, 0.1).value();
  if (power) p.curve = Curve::power(2.3, 100 / p.length, 0.5, 0.1).value();
  p.objective = objective;
  if (objective == Objective::kExplore) p.stops.rate = 1 / (12 * kHour);
  return p;
}

bool row(const char* what, double value, const char* unit, double bar) {
  const bool missed = bar > 0 && value > bar;
  fmt::print("{:<58}{:>10.3f} {:<3}{}{}\n", what, value, unit,
             bar > 0 ? fmt::format("  bar {:g}", bar) : "", missed ? "  MISSED" : "");
  return !missed;
}

bool optima() {
  const auto took = [](Objective objective, int64_t positions, bool power = false) {
    return 1e3 * best_of(9, [&] {
             const Grid grid = Grid::build(day(objective, positions, power)).value();
             benchmark::DoNotOptimize(optimum(grid));
           });
  };
  bool met = row("optimum over 100,000 positions, hull (progress)",
                 took(Objective::kProgress, 100000), "ms", 10);
  met &= row("optimum over 100,000 positions, general (exact delay)",
             took(Objective::kDelay, 100000), "ms", 40);
  met &= row("optimum over 100,000 positions, general (explore)",
             took(Objective::kExplore, 100000), "ms", 40);
  met &= row("optimum over 4,096 positions (explore)", took(Objective::kExplore, 4096),
             "ms", 1);
  return met & row("optimum over 4,096 positions (explore, power law)",
                   took(Objective::kExplore, 4096, true), "ms", 1);
}

bool decisions() {
  constexpr int kSteps = 1'000'000;
  SchedulerOptions options{.mtbf = 8 * kHour};
  Scheduler scheduler = Scheduler::create(options).value();
  Instant now{};
  scheduler.start(0, now, true, {.stall = 1, .persist = 5});
  int64_t step = 0, saves = 0;
  const double took = best_of(3, [&] {
    for (int i = 0; i < kSteps; ++i) {
      now += std::chrono::microseconds(1);
      saves += scheduler.step(step++, now);
    }
  });
  benchmark::DoNotOptimize(saves);
  return row("a step where nothing is due", took / kSteps * 1e6, "us", 2);
}

std::vector<NamedSchedule> schedules_of(const Problem& problem) {
  std::vector<NamedSchedule> out;
  const Grid grid = Grid::build(problem).value();
  for (const SchedulePolicy* policy : policies()) {
    out.push_back({std::string(policy->name()), policy->schedule(grid)});
  }
  return out;
}

bool simulations() {
  Problem p{
      .length = 3 * kHour, .stall = 5, .persist = 15, .restart = 60, .mtbf = 2 * kHour};
  p.curve = Curve::power(2.3, 60 / p.length, 0.8, 0.02).value();
  const std::vector<NamedSchedule> schedules = schedules_of(p);
  const double took = best_of(3, [&] {
    benchmark::DoNotOptimize(simulate(p, schedules, {.runs = 100'000}).value());
  });
  const bool met = row("100,000 paired runs of 10 schedules, 3 h", took, "s", 1);
  p.workers.phases = {{0, 100'000}};
  p.mtbf = 100'000 * 2 * kHour;
  SimulateOptions weibull{.runs = 10'000};
  weibull.failures = {.kind = FailureModel::Kind::kWeibull, .shape = 0.7};
  weibull.failures.age = 1000 * kHour;
  row("10,000 paired runs of 10 schedules, Weibull, 10^5 workers",
      best_of(
          1,
          [&] { benchmark::DoNotOptimize(simulate(p, schedules, weibull).value()); }),
      "s", 0);
  return met;
}

}  // namespace
}  // namespace holdfast

int main() {
  const bool optima = holdfast::optima(), decisions = holdfast::decisions();
  return holdfast::simulations() && optima && decisions ? 0 : 1;
}
