// One plan without failures, as sums that find any moment of it in a few steps.
#pragma once

#include <vector>

#include "holdfast/schedule/problem.h"

namespace holdfast {

// Where a job is after some time at work.
struct Moment {
  size_t segment = 0;  // saves begun and ended
  double x = 0;        // work clock
  double stalled = 0;  // in the stall or wait that it is in
};

class Timeline {
 public:
  // The curve and workers must outlive it.
  Timeline(const Problem& problem, const Schedule& schedule);

  size_t saves() const { return x_.size() - 2; }
  double work(size_t save) const { return x_[save]; }
  // From a restart at `base` to the end, without failures.
  double rest(size_t base) const {
    return ends_.back() - ends_[base] - saved_wait(base);
  }
  // After `time` at work since a restart at `base`.
  Moment at(size_t base, double time) const;
  // The save that is durable then, and so the next base.
  size_t durable(size_t base, const Moment& moment, double time) const;
  // How long from a restart at `base` until this much hazard is used up; infinity if the
  // job ends before.
  double time_of_hazard(size_t base, double hazard) const;
  // Time and loss spent on stalls between a restart at `base` and the moment.
  double stalls(size_t base, const Moment& moment) const;
  double loss_of_stalls(size_t base, const Moment& moment) const;
  double worker_stalls(size_t base, const Moment& moment) const;

 private:
  // Nothing is in flight after a restart: the next save does not wait.
  double saved_wait(size_t base) const {
    return base + 1 < waits_.size() ? waits_[base + 1] : 0;
  }
  double gap(size_t segment) const { return x_[segment + 1] - x_[segment]; }

  const Problem& problem_;
  bool steady_;                // workers never change
  std::vector<double> x_;      // of the start, the saves, the end
  std::vector<double> ends_;   // wall time at which the save is over
  std::vector<double> waits_;  // before it, for the previous one
  std::vector<double> hazard_, stalls_, losses_, worker_stalls_;  // sums up to there
  std::vector<double> loss_of_wait_;
};

}  // namespace holdfast
