// Drives whole trainings that are killed again and again, on a virtual clock: the policy
// auto against Young's rule, with the same kills.
#include <algorithm>
#include <cmath>

#include "holdfast/base/random_stream.h"
#include "holdfast/base/testing.h"
#include "holdfast/schedule/intervals.h"
#include "holdfast/schedule/scheduler_testing.h"

namespace holdfast {
namespace {

constexpr double kHour = 3600, kDay = 24 * kHour;

struct Setting {
  double stall, mtbf, length;  // in seconds
  double step() const { return std::clamp(young(stall, mtbf) / 2, 0.5, 120.0); }
};

// Stalls of four lengths, three failure rates that a run learns, and two that it does not.
std::vector<Setting> settings() {
  std::vector<Setting> out;
  for (const double stall : {0.02, 0.5, 2.0, 10.0}) {
    for (const double mtbf : {kHour / 2, 2 * kHour, 12 * kHour}) {
      out.push_back({stall, mtbf, 6 * mtbf});
    }
    out.push_back({stall, 7 * kDay, 6 * kDay});
    out.push_back({stall, 30 * kDay, 10 * kDay});
  }
  return out;
}

// When the training is killed, counted in the time that it runs.
std::vector<double> kills_of(const Setting& setting, uint64_t sequence) {
  RandomStream dice(7 + sequence, static_cast<uint64_t>(setting.mtbf + 100 * setting.stall));
  std::vector<double> out;
  for (double at = 0; at < 2 * setting.length; out.push_back(at)) {
    at += setting.mtbf * dice.exponential();
  }
  return out;
}

// A training that is killed, goes back to its last durable step and goes on in a new
// process, which learns from the ones before it.
class Killed {
 public:
  Killed(const Setting& setting, Policy policy, std::optional<double> stated,
         uint64_t sequence = 0)
      : setting_(setting),
        options_{.every = policy, .mtbf = stated},
        kills_(kills_of(setting, sequence)) {}

  // What stalls and repeated work have cost, as a share of the work.
  double cost() {
    const auto steps = static_cast<int64_t>(setting_.length / setting_.step());
    Learned learned;
    while (done_ < steps) learned = run_process(steps, learned);
    const double work = static_cast<double>(steps) * setting_.step();
    return wall_ / work - 1;
  }

 private:
  Instant now() const { return Instant{} + secs(wall_); }

  // Runs until the end or the next kill. Returns what the next process learns.
  Learned run_process(int64_t steps, const Learned& learned) {
    Scheduler scheduler = Scheduler::create(options_).value();
    scheduler.start(done_, now(), done_ > 0, learned);
    landing_ = -1;
    while (done_ < steps) {
      if (pass(setting_.step(), scheduler)) return killed(scheduler);
      const int64_t step = done_++;
      if (!scheduler.step(step, now())) continue;
      if (pass(setting_.stall, scheduler)) return killed(scheduler);
      scheduler.captured(step, secs(setting_.stall));
      landing_ = wall_ + kPersist, in_flight_ = done_;
    }
    return {};
  }

  // Lets time pass. Returns true if the training is killed in it.
  bool pass(double seconds, Scheduler& scheduler) {
    const double end = wall_ + seconds, kill = kills_[next_kill_];
    wall_ = std::min(end, kill);
    if (landing_ >= 0 && landing_ <= wall_) {
      scheduler.durable(in_flight_ - 1, secs(kPersist));
      durable_ = in_flight_, landing_ = -1;
    }
    return kill < end;
  }

  Learned killed(Scheduler& scheduler) {
    ++next_kill_;
    done_ = durable_;
    scheduler.failed();
    return scheduler.learned();
  }

  static constexpr double kPersist = 1;
  const Setting setting_;
  const SchedulerOptions options_;
  const std::vector<double> kills_;
  size_t next_kill_ = 0;
  double wall_ = 0, landing_ = -1;
  int64_t done_ = 0, durable_ = 0, in_flight_ = 0;
};

std::string name_of(const Setting& setting) {
  return fmt::format("stall {:g} s, a failure in {:g} h", setting.stall, setting.mtbf / kHour);
}

constexpr double kPrice = 0.002;  // of the time: what protection may cost
constexpr double kRounding = 0.0005;

// By how much more auto costs than Young's rule, as a share of the work. What a kill costs
// depends on when it comes, so this is a mean over several sequences of kills.
struct Difference {
  double mean = 0, error = 0;  // its standard error
};

Difference difference(const Setting& setting, std::optional<double> stated) {
  constexpr int kSequences = 3;
  double sum = 0, squares = 0;
  for (uint64_t sequence = 0; sequence < kSequences; ++sequence) {
    const double more = Killed(setting, Policy::kAuto, stated, sequence).cost() -
                        Killed(setting, Policy::kYoung, stated, sequence).cost();
    sum += more, squares += more * more;
  }
  const double mean = sum / kSequences;
  return {mean, std::sqrt((squares / kSequences - mean * mean) / (kSequences - 1))};
}

TEST(ClosedLoopTest, WithTheRateStatedAutoCostsWhatYoungCosts) {
  for (const Setting& setting : settings()) {
    if (setting.mtbf > kDay) continue;
    const Difference more = difference(setting, setting.mtbf);
    EXPECT_LE(std::fabs(more.mean), 3 * more.error + kRounding) << name_of(setting);
  }
}

TEST(ClosedLoopTest, WithoutARateAutoIsNoDearerUnderFrequentFailures) {
  double all = 0;
  for (const Setting& setting : settings()) {
    if (setting.mtbf > kDay) continue;
    const Difference more = difference(setting, std::nullopt);
    EXPECT_LE(more.mean - 2 * more.error, kRounding) << name_of(setting);
    all += more.mean;
  }
  EXPECT_LE(all, 0) << "it must be cheaper over all settings";
}

// A failure that does not come while the job runs: what protection from it costs.
TEST(ClosedLoopTest, WithoutARateProtectionFromRareFailuresHasABoundedPrice) {
  for (Setting setting : settings()) {
    if (setting.mtbf < kDay) continue;
    setting.mtbf *= 1000;
    const double young = Killed(setting, Policy::kYoung, std::nullopt).cost();
    const double learning = Killed(setting, Policy::kAuto, std::nullopt).cost();
    EXPECT_LE(learning, young + kPrice + kRounding) << name_of(setting);
    EXPECT_GE(learning, young) << name_of(setting);
  }
}

}  // namespace
}  // namespace holdfast
