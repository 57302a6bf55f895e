// The failures of one simulated run. They are drawn when they are needed and are the
// same for every schedule.
#pragma once

#include <queue>
#include <vector>

#include "holdfast/base/random_stream.h"
#include "holdfast/simulate/simulate.h"

namespace holdfast {

class FailureTimes {
 public:
  FailureTimes(const Problem& problem, const FailureModel& model);

  // Begins another run with random numbers of its own.
  void begin(const SimulateOptions& options, int64_t run);

  // How failures are given: exponential ones by their hazard, injected ones by the work
  // clock, all others by wall time.
  bool by_hazard() const { return model_.kind == FailureModel::Kind::kExponential; }
  bool by_work() const {
    return model_.kind == FailureModel::Kind::kEvery ||
           model_.kind == FailureModel::Kind::kOnce;
  }
  // The work clock at which failure number `index` happens.
  double work(size_t index) const;
  // The hazard that the run survives until failure number `index`.
  double hazard(size_t index);
  // The time of the first failure after this wall time.
  double after(double wall);
  RandomStream& dice() { return dice_; }

 private:
  double trace_after(double wall) const;
  double next_weibull();
  double wall_of(double hazard, double age) const;

  const Problem& problem_;
  const FailureModel& model_;
  RandomStream dice_;
  std::vector<double> drawn_;
  double offset_ = 0, once_ = 0;
  // For kWeibull: the number of workers that have never failed, their common hazard so
  // far, and the next failure of each worker that was renewed.
  double scale_ = 1, fresh_ = 0, hazard_ = 0, next_fresh_ = 0;
  std::priority_queue<double, std::vector<double>, std::greater<>> renewed_;
};

}  // namespace holdfast
