// One schedule without failures, stored as sums, so that any moment of it is found in a
// few steps.
#pragma once

#include <vector>

#include "holdfast/schedule/problem.h"

namespace holdfast {

// Where a job is after some time.
struct Moment {
  size_t segment = 0;  // the number of saves that are over
  double x = 0;        // the work clock
  double stalled = 0;  // how long the current stall or wait has lasted
};

// In all functions `base` is the number of the save from which the job has restarted; 0
// is the start of the job.
class Timeline {
 public:
  // Curve and workers of the problem must outlive the timeline.
  Timeline(const Problem& problem, const Schedule& schedule);

  size_t saves() const { return x_.size() - 2; }
  double work(size_t save) const { return x_[save]; }
  // The time from a restart at `base` to the end, without failures.
  double rest(size_t base) const {
    return ends_.back() - ends_[base] - saved_wait(base);
  }
  // Where the job is `time` after a restart at `base`.
  Moment at(size_t base, double time) const;
  // The newest save that is durable at that moment, which is the base of the next
  // restart.
  size_t durable(size_t base, const Moment& moment, double time) const;
  // The time from a restart at `base` until this much hazard is used up. Infinity if
  // the job ends before.
  double time_of_hazard(size_t base, double hazard) const;
  // The time from a restart at `base` until the work clock reaches x. Infinity if it
  // never does.
  double time_of_work(size_t base, double x) const;
  // The time, loss and worker-seconds that stalls cost between a restart at `base` and
  // the moment.
  double stalls(size_t base, const Moment& moment) const;
  double loss_of_stalls(size_t base, const Moment& moment) const;
  double worker_stalls(size_t base, const Moment& moment) const;

 private:
  // The wait that a restart at `base` avoids: nothing is in flight then, so the next
  // save need not wait.
  double saved_wait(size_t base) const {
    return base + 1 < waits_.size() ? waits_[base + 1] : 0;
  }
  double gap(size_t segment) const { return x_[segment + 1] - x_[segment]; }

  const Problem& problem_;
  bool steady_;                // the number of workers never changes
  std::vector<double> x_;      // work clock at the start, at each save and at the end
  std::vector<double> ends_;   // wall time at which each save is over
  std::vector<double> waits_;  // how long each save waits for the previous one
  std::vector<double> hazard_, stalls_, losses_,
      worker_stalls_;  // sums up to each save
  std::vector<double> loss_of_wait_;
};

}  // namespace holdfast
