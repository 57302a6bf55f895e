// A job for tests that does what a scheduler says, on a clock of its own.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/schedule/scheduler.h"

namespace holdfast {

inline Duration secs(double seconds) {
  return Duration(static_cast<int64_t>(std::llround(seconds * 1e9)));
}

struct ScheduledJob {
  Scheduler scheduler;
  double step_time = 0.5, stall = 0.2, persist = 3;
  int64_t bytes = 0;
  std::function<double(double)> loss = nullptr;
  Instant now{};
  int64_t next = 0;
  double durable_at = -1, work = 0;
  std::vector<int64_t> saves{};
  std::vector<std::string> reasons{};

  explicit ScheduledJob(SchedulerOptions options)
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

// Whether the scheduler explains its interval with these words.
inline bool says(const Scheduler& scheduler, std::string_view words) {
  return scheduler.explain().find(words) != std::string::npos;
}

}  // namespace holdfast
