#include "holdfast/schedule/estimates.h"

#include <algorithm>
#include <cmath>

#include "holdfast/base/reproducible_math.h"

namespace holdfast {
namespace {

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
  const double share = 1 / static_cast<double>(count), before = value - average;
  average += before * share;
  variance += (before * (value - average) - variance) * share;
}

void StepTimes::add(double seconds, bool persisting) {
  (persisting ? busy_ : idle_).add(seconds);
  if (persisting && idle_.count == 0) idle_ = busy_;
}

double StepTimes::slowdown() const {
  if (idle_.count < 10 || busy_.count < 10 || idle_.average <= 0) return 0;
  const double doubt = 2 * std::sqrt(idle_.doubt() + busy_.doubt());
  return std::clamp((busy_.average - doubt) / idle_.average - 1, 0.0, 1.0);
}

FailureRate::FailureRate(double mtbf_of_worker, double worth)
    : worth_(worth), parts_{{1, worth * mtbf_of_worker}} {}

FailureRate FailureRate::unknown(int64_t workers) {
  const auto count = static_cast<double>(std::max<int64_t>(workers, 1));
  const double job_rate = 1 / (7 * kSecondsPerDay) + count / (400 * kSecondsPerDay);
  // Each part has a rate 4 times that of the part before it and is 8 times less likely,
  // so it adds half as much to the mean of the prior. The highest rate is 65,536 times
  // the lowest.
  constexpr int kParts = 9;
  double shares = 0, rates = 0;
  std::vector<Part> parts;
  for (int k = 0; k < kParts; ++k) {
    parts.push_back({std::ldexp(1.0, -3 * k), std::ldexp(1.0, -2 * k)});
    shares += parts.back().share;
    rates += parts.back().share / parts.back().time;
  }
  for (Part& part : parts) part.time *= count / job_rate * rates / shares;
  FailureRate made(1, 1);
  made.parts_ = std::move(parts);
  return made;
}

// Seeing n failures in the time t multiplies the weight of a part by b^w / (b + t)^(w +
// n), where w is its shape and b its time, and makes its mean (w + n) / (b + t).
double FailureRate::rate() const {
  const double count = worth_ + failures_;
  // One part needs no weight, and its time may be infinite.
  if (parts_.size() == 1) return count / (parts_.front().time + exposure_);
  const auto log_weight = [&](const Part& part) {
    return reproducible::log(part.share) + worth_ * reproducible::log(part.time) -
           count * reproducible::log(part.time + exposure_);
  };
  double most = log_weight(parts_.front());
  for (const Part& part : parts_) most = std::max(most, log_weight(part));
  double weights = 0, sum = 0;
  for (const Part& part : parts_) {
    const double weight = reproducible::exp(log_weight(part) - most);
    weights += weight;
    sum += weight * count / (part.time + exposure_);
  }
  return sum / weights;
}

void FailureRate::exposed(double worker_seconds) {
  if (usable(worker_seconds)) exposure_ += worker_seconds;
}

}  // namespace holdfast
