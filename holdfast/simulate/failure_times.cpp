#include <algorithm>
#include <cmath>

#include "holdfast/simulate/failure_times_internal.h"
#include "holdfast/base/reproducible_math.h"

namespace holdfast {
namespace {

using Kind = FailureModel::Kind;

// The first time after `time` in a sequence that repeats every `length`.
double in_trace(const std::vector<double>& trace, double length, double time) {
  const double rounds = std::floor(time / length);
  const double inside = time - rounds * length;
  const auto next = std::upper_bound(trace.begin(), trace.end(), inside);
  if (next != trace.end()) return rounds * length + *next;
  return (rounds + 1) * length + trace.front();
}

}  // namespace

FailureTimes::FailureTimes(const Problem& problem, const FailureModel& model)
    : problem_(problem), model_(model), dice_(0) {
  if (model.kind == Kind::kWeibull) {
    scale_ = problem.mtbf / reproducible::gamma(1 + 1 / model.shape);
  }
}

void FailureTimes::begin(const SimulateOptions& options, int64_t run) {
  dice_ = RandomStream(options.seed, static_cast<uint64_t>(run));
  drawn_.clear();
  const double part =
      (static_cast<double>(run) + 0.5) / static_cast<double>(options.runs);
  once_ = part * model_.share * problem_.length;
  if (model_.kind == Kind::kEvery) {
    offset_ = model_.phase.value_or(part) * model_.period;
  }
  if (model_.kind == Kind::kTrace) {
    offset_ = run == 0 ? 0 : dice_.uniform() * model_.trace_length;
  }
  if (model_.kind != Kind::kWeibull) return;
  fresh_ = problem_.workers.at(0);
  hazard_ = reproducible::pow(model_.age / scale_, model_.shape);
  renewed_ = {};
  hazard_ += dice_.exponential() / fresh_;
  next_fresh_ = wall_of(hazard_, model_.age);
}

double FailureTimes::hazard(size_t index) {
  while (drawn_.size() <= index) drawn_.push_back(dice_.exponential());
  return drawn_[index];
}

double FailureTimes::wall_of(double hazard, double age) const {
  return scale_ * reproducible::pow(hazard, 1 / model_.shape) - age;
}

// All workers that have never failed share one cumulative hazard. So the first failure
// among them is one exponential draw divided by their number, and 100,000 workers do
// not need a draw each.
double FailureTimes::next_weibull() {
  const bool fresh = renewed_.empty() || next_fresh_ <= renewed_.top();
  const double time = fresh ? next_fresh_ : renewed_.top();
  if (fresh) {
    fresh_ -= 1;
    if (fresh_ >= 1) hazard_ += dice_.exponential() / fresh_;
    next_fresh_ = fresh_ >= 1 ? wall_of(hazard_, model_.age) : INFINITY;
  } else {
    renewed_.pop();
  }
  renewed_.push(time + wall_of(dice_.exponential(), 0));
  return time;
}

double FailureTimes::work(size_t index) const {
  if (model_.kind == Kind::kOnce) return index == 0 ? once_ : INFINITY;
  return offset_ + static_cast<double>(index) * model_.period;
}

double FailureTimes::trace_after(double wall) const {
  double skip = 0, time = 0;
  do {
    time = in_trace(model_.trace, model_.trace_length, wall + offset_ + skip) - offset_;
    skip = 2 * skip + 1e-9;
  } while (time <= wall);
  return time;
}

double FailureTimes::after(double wall) {
  if (model_.kind == Kind::kNever) return INFINITY;
  if (model_.kind == Kind::kTrace) return trace_after(wall);
  while (drawn_.empty() || drawn_.back() <= wall) drawn_.push_back(next_weibull());
  return *std::upper_bound(drawn_.begin(), drawn_.end(), wall);
}

}  // namespace holdfast
