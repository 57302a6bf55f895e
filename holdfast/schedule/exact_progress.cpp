#include "holdfast/schedule/exact_progress_internal.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "holdfast/base/reproducible_math.h"
#include "holdfast/schedule/mesh_integral_internal.h"

namespace holdfast {
namespace {

// The parabola through the values at the three nearest positions.
double value_near(const std::vector<double>& values, double at) {
  const auto last = static_cast<int64_t>(values.size()) - 1;
  if (last < 2) return values[static_cast<size_t>(std::lround(at))];
  const int64_t middle = std::clamp<int64_t>(std::llround(at), 1, last - 1);
  const double* f = &values[static_cast<size_t>(middle)];
  const double t = at - static_cast<double>(middle);
  return f[0] + t * ((f[1] - f[-1]) / 2 + t * (f[1] - 2 * f[0] + f[-1]) / 2);
}

}  // namespace

bool ExactProgress::holds_for(const Problem& problem) {
  const bool by_loss = problem.objective == Objective::kProgress ||
                       problem.objective == Objective::kPriced;
  return by_loss && problem.steady() && std::isfinite(problem.mtbf) &&
         has_few_stalls(problem);
}

ExactProgress::ExactProgress(const Problem& problem, const std::vector<double>& left,
                             const std::vector<double>& prices, double cell)
    : rate_(problem.failure_rate(0)),
      length_(problem.length),
      stall_(problem.stall),
      persist_(problem.persist),
      cell_(cell),
      left_(left),
      after_(prices.size()),
      prices_(prices),
      cut_(prices.size()) {
  // Simpson's rule for each cell, from the end.
  const double kept = reproducible::exp(-rate_ * cell);
  const double halfway = reproducible::exp(-rate_ * cell / 2);
  for (size_t j = after_.size() - 1; j-- > 0;) {
    const double *v = &left[2 * j], part = rate_ * cell / 6;
    after_[j] = part * (v[0] + 4 * halfway * v[1] + kept * v[2]) + kept * after_[j + 1];
  }
  for (size_t j = 0; j < cut_.size(); ++j) {
    cut_[j] = lost_in_cut_stall(problem, static_cast<double>(j) * cell);
  }
}

// By Gauss's rule with five points. A save that is cut short has no price of its own, so
// for the objective priced nothing is lost.
double ExactProgress::lost_in_cut_stall(const Problem& problem, double x) const {
  if (problem.objective == Objective::kPriced || stall_ == 0) return 0;
  constexpr std::array kPoints{
      std::pair(0.046910077030668, 0.118463442528095),
      std::pair(0.230765344947158, 0.239314335249683),
      std::pair(0.5, 0.284444444444444), std::pair(0.769234655052842, 0.239314335249683),
      std::pair(0.953089922969332, 0.118463442528095)};
  double sum = 0;
  for (const auto& [place, weight] : kPoints) {
    const double u = place * stall_;
    sum += weight * reproducible::exp(-rate_ * u) * problem.curve.drop(x, x + u);
  }
  return rate_ * stall_ * sum;
}

// From e^600 on it continues as a straight line, so that it stays convex and sums stay
// finite.
double ExactProgress::growth(double time) const {
  const double y = rate_ * time;
  if (y <= 600) return reproducible::exp(y);
  return reproducible::exp(600) * (1 + (y - 600));
}

ExactProgress::End ExactProgress::end_at_position(size_t j) const {
  return {static_cast<double>(j) * cell_, left_[2 * j], after_[j], prices_[j], cut_[j]};
}

ExactProgress::End ExactProgress::end_at(double x) const {
  if (x >= length_) return {.time = length_};
  const double at = x / cell_;
  return {x, mesh_value(left_, MeshPoint::at(at)), value_near(after_, at),
          value_near(prices_, at), value_near(cut_, at)};
}

double ExactProgress::lost(const End& x, const End& y) const {
  const double kept = reproducible::exp(-rate_ * (y.time - x.time));
  return x.left * (1 - kept) - (x.after - kept * y.after);
}

double ExactProgress::interval(const End& x, const End& y) const {
  const double work = y.time - x.time, fallen = x.left - y.left;
  if (y.time >= length_ * (1 - 1e-12)) {
    return ends_late(x.time) ? 0 : growth(work) * lost(x, y);
  }
  if (ends_late(y.time)) return late_interval(x, y);
  const double kept = reproducible::exp(-rate_ * work);
  const double in_stall = -reproducible::expm1(-rate_ * stall_) * fallen + y.cut;
  const double undone = -reproducible::expm1(-rate_ * persist_) * fallen;
  const double before = growth(work + stall_) * (lost(x, y) + kept * in_stall);
  return growth(persist_) * (before + y.price + undone);
}

double ExactProgress::late_interval(const End& x, const End& y) const {
  const End end{.time = length_};
  const double work = y.time - x.time, rest = length_ - y.time, fallen = x.left - y.left;
  const double in_stall = -reproducible::expm1(-rate_ * stall_) * fallen + y.cut;
  const double in_rest =
      -reproducible::expm1(-rate_ * rest) * (y.price + fallen) + lost(y, end);
  const double first = lost(x, y) + reproducible::exp(-rate_ * work) * in_stall +
                       reproducible::exp(-rate_ * (work + stall_)) * in_rest;
  return growth(work + stall_ + rest) * first + y.price;
}

double ExactProgress::cost(int64_t i, int64_t j) const {
  return interval(end_at_position(static_cast<size_t>(i)),
                  end_at_position(static_cast<size_t>(j)));
}

double ExactProgress::cost_between(double x, double y) const {
  return interval(end_at(x), end_at(y));
}

}  // namespace holdfast
