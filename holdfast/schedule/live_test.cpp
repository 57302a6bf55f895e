// Compares what every="auto" and Young's policy cost a job that is killed again and
// again, each decided live by a Scheduler. The clock is a number, so this takes no time.
#include <algorithm>
#include <cmath>
#include <utility>

#include "holdfast/base/testing.h"
#include "holdfast/base/random_stream.h"
#include "holdfast/schedule/scheduler.h"

namespace holdfast::live_test {
namespace {

constexpr double kMinute = 60, kHour = 3600;

Duration duration_of(double seconds) { return Duration(std::llround(seconds * 1e9)); }

struct Setting {
  double length;  // seconds of work
  double step, stall, persist, restart;
  double mtbf;  // the true one
  bool stated;  // whether the scheduler is told the MTBF
};

// A job that is killed at given wall times, as bench/failures_bench.py kills one. Each
// process has a scheduler of its own and learns from the processes before it. A kill
// during a restart has no effect.
class KilledJob {
 public:
  KilledJob(const Setting& setting, Policy policy, uint64_t seed)
      : setting_(setting),
        policy_(policy),
        dice_(seed),
        steps_(std::llround(setting.length / setting.step)) {}

  // The wall time beyond the work, until all steps are done.
  double overhead() {
    next_kill_ = setting_.mtbf * dice_.exponential();
    while (!live()) {
      wall_ = next_kill_ + setting_.restart;
      while (next_kill_ <= wall_) next_kill_ += setting_.mtbf * dice_.exponential();
    }
    return wall_ - setting_.length;
  }

 private:
  // One process. Returns true if it has done all steps, false if it was killed.
  bool live() {
    SchedulerOptions options{.every = policy_};
    if (setting_.stated) options.mtbf = setting_.mtbf;
    Scheduler scheduler = Scheduler::create(options).value();
    scheduler.start(durable_ + 1, now(), durable_ >= 0, learned_);
    double durable_at = INFINITY;
    int64_t saving = -1;
    for (int64_t step = durable_ + 1; step < steps_; ++step) {
      wall_ += setting_.step;
      if (std::min(durable_at, wall_) <= next_kill_ && durable_at <= wall_) {
        durable_ = saving;
        scheduler.durable(saving, duration_of(setting_.persist));
        durable_at = INFINITY;
      }
      if (wall_ >= next_kill_) return killed(scheduler);
      if (!scheduler.step(step, now())) continue;
      wall_ += setting_.stall;
      if (wall_ >= next_kill_) return killed(scheduler);
      scheduler.captured(step, duration_of(setting_.stall));
      saving = step;
      durable_at = wall_ + setting_.persist;
    }
    return true;
  }

  bool killed(const Scheduler& scheduler) {
    learned_ = scheduler.learned();
    learned_.failures += 1;
    return false;
  }

  Instant now() const { return Instant{} + duration_of(wall_); }

  const Setting setting_;
  const Policy policy_;
  RandomStream dice_;
  const int64_t steps_;
  double wall_ = 0, next_kill_ = 0;
  int64_t durable_ = -1;
  Learned learned_{};
};

// What auto costs more than Young's policy in the mean over several sequences of kills.
struct Compared {
  double young = 0;             // the mean overhead
  double change = 0, half = 0;  // auto's less Young's, with its 95 % interval
};

// The jobs differ in length by up to a half, so that it does not matter which policy
// happens to save just before the end.
Compared compare(Setting setting, int seeds) {
  Compared out;
  double squares = 0;
  const double length = setting.length;
  for (int seed = 0; seed < seeds; ++seed) {
    const auto stream = static_cast<uint64_t>(seed);
    setting.length = length * (0.75 + (seed + 0.5) / seeds / 2);
    const double young = KilledJob(setting, Policy::kYoung, stream).overhead();
    const double change = KilledJob(setting, Policy::kAuto, stream).overhead() - young;
    out.young += young / seeds;
    out.change += change / seeds;
    squares += change * change / seeds;
  }
  out.half = 1.96 * std::sqrt((squares - out.change * out.change) / seeds);
  return out;
}

// Returns the change as a share of Young's overhead. `allowed` is what auto may cost
// more, as a share of the time.
double expect_not_dearer(const Setting& setting, int seeds, double allowed = 0) {
  const Compared seen = compare(setting, seeds);
  const std::string told = fmt::format(
      "stall {} s, persist {} s, MTBF {} s{}: young {:.2f} s, auto {:+.2f} +- {:.2f}",
      setting.stall, setting.persist, setting.mtbf, setting.stated ? "" : " not stated",
      seen.young, seen.change, seen.half);
  EXPECT_LE(seen.change - seen.half, allowed * setting.length) << told;
  return seen.change / seen.young;
}

// A job of an hour, or of three times the MTBF, that makes 2000 steps.
Setting usual(double stall, double persist, double mtbf, bool stated) {
  const double length = std::max(kHour, 3 * mtbf);
  return {.length = length,
          .step = length / 2000,
          .stall = stall,
          .persist = persist,
          .restart = 20,
          .mtbf = mtbf,
          .stated = stated};
}

class Live : public ::testing::TestWithParam<bool> {};

TEST_P(Live, AutoIsNotDearerThanYoung) {
  double sum = 0;
  for (const auto& [stall, persist] : {std::pair(0.001, 0.1), {0.1, 1.0}, {2.0, 5.0}}) {
    for (const double mtbf : {5 * kMinute, 30 * kMinute, 3 * kHour}) {
      sum += expect_not_dearer(usual(stall, persist, mtbf, GetParam()), 40);
    }
  }
  // Each single interval may be wide, but all together show hardly a difference.
  EXPECT_LE(sum / 9, 0.01);
}

// The GPT of bench/failures_bench.py: kills come so often that every step counts, and a
// save takes nearly as long as a step.
TEST_P(Live, AutoIsNotDearerThanYoungInShortRunsWithManyKills) {
  expect_not_dearer({.length = 60 * 0.43,
                     .step = 0.43,
                     .stall = 0.003,
                     .persist = 0.375,
                     .restart = 3.7,
                     .mtbf = 10.3,
                     .stated = GetParam()},
                    400);
}

INSTANTIATE_TEST_SUITE_P(Rate, Live, ::testing::Values(true, false),
                         [](const auto& which) {
                           return std::string(which.param ? "stated" : "learned");
                         });

// Young would write all the time.
TEST(LiveTest, ToWriteLessAutoCostsAtMostItsSlack) {
  expect_not_dearer(usual(0.001, 10, 30 * kMinute, true), 60, 0.001);
}

}  // namespace
}  // namespace holdfast::live_test
