#include "holdfast/schedule/estimates.h"

#include <algorithm>
#include <cmath>

namespace holdfast {
namespace {

constexpr double kDay = 86400;

// Ignores negative values, NaN and values that can only be mistakes.
bool usable(double value) { return value >= 0 && value < 1e12; }

}  // namespace

void Window::add(double value) {
  if (!usable(value)) return;
  values_[next_] = value;
  next_ = (next_ + 1) % values_.size();
  count_ = std::min(count_ + 1, values_.size());
}

double Window::mean() const {
  double sum = 0;
  for (size_t i = 0; i < count_; ++i) sum += values_[i];
  return count_ == 0 ? 0 : sum / static_cast<double>(count_);
}

void SaveCosts::stalled(double seconds) {
  if (stalled_once_) return stalls_.add(seconds);
  if (usable(seconds)) first_stall_ = seconds, stalled_once_ = true;
}

void SaveCosts::persisted(double seconds) {
  if (persisted_once_) return persists_.add(seconds);
  if (usable(seconds)) first_persist_ = seconds, persisted_once_ = true;
}

double SaveCosts::stall() const {
  return stalls_.empty() ? first_stall_ : stalls_.mean();
}

double SaveCosts::persist() const {
  return persists_.empty() ? first_persist_ : persists_.mean();
}

// The average of a few values is their mean; the average of many follows about the last
// 200. An outlier counts at most ten times the average.
void StepTimes::Average::add(double value) {
  if (!usable(value)) return;
  if (count > 10) value = std::min(value, 10 * average);
  count = std::min<int64_t>(count + 1, 200);
  average += (value - average) / static_cast<double>(count);
}

void StepTimes::add(double seconds, bool persisting) {
  (persisting ? busy_ : idle_).add(seconds);
  if (persisting && idle_.count == 0) idle_ = busy_;
}

double StepTimes::slowdown() const {
  if (idle_.count < 10 || busy_.count < 10 || idle_.average <= 0) return 0;
  return std::clamp(busy_.average / idle_.average - 1, 0.0, 1.0);
}

FailureRate::FailureRate(double mtbf_of_worker, double worth)
    : worth_(worth), prior_(worth * mtbf_of_worker) {}

FailureRate FailureRate::unknown(int64_t workers) {
  const auto count = static_cast<double>(std::max<int64_t>(workers, 1));
  const double job_rate = 1 / (7 * kDay) + count / (400 * kDay);
  // Nobody has stated the rate, and this one may be wrong by a factor of 60 in either
  // direction, which is the spread of a Gamma prior of this shape. So a few failures
  // must soon outweigh it.
  constexpr double kWorth = 0.25;
  return FailureRate(count / job_rate, kWorth);
}

void FailureRate::exposed(double worker_seconds) {
  if (usable(worker_seconds)) exposure_ += worker_seconds;
}

}  // namespace holdfast
