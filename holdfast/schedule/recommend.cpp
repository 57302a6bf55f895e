#include "holdfast/schedule/recommend.h"

#include <algorithm>

#include "holdfast/schedule/optimum.h"
#include "holdfast/schedule/policies.h"

namespace holdfast {
namespace {

double first_gap(const Problem& problem, const Schedule& schedule) {
  return schedule.times.empty() ? problem.length : schedule.times.front();
}

// The schedules that recommend() chooses from, and what they cost.
class Choices {
 public:
  Choices(const Grid& grid, bool at_positions)
      : grid_(grid), at_positions_(at_positions) {}

  Schedule best() const {
    return at_positions_ ? grid_.schedule(optimum(grid_)) : optimal_schedule(grid_);
  }
  Schedule even() const { return best_even(grid_, at_positions_); }
  double cost(const Schedule& schedule) const {
    return at_positions_ ? grid_.cost_at_positions(schedule) : grid_.cost(schedule);
  }

  // The evenly spaced schedule with the fewest saves that costs at most `limit`. It has
  // at most as many saves as `even`.
  Schedule fewest_within(const Schedule& even, double limit) const {
    const double length = grid_.problem().length;
    Schedule best = even;
    size_t low = 0, high = even.times.size();
    if (cost(Schedule{}) <= limit) return {};
    while (high - low > 1) {
      const size_t middle = low + (high - low) / 2;
      Schedule fewer = every(length / static_cast<double>(middle + 1), length);
      if (cost(fewer) <= limit) {
        high = middle;
        best = std::move(fewer);
      } else {
        low = middle;
      }
    }
    return best;
  }

 private:
  const Grid& grid_;
  const bool at_positions_;
};

Recommendation recommend(const Problem& problem, const Choices& choices, double slack,
                         double worth) {
  Recommendation out;
  const Schedule best = choices.best(), even = choices.even();
  out.optimum = choices.cost(best);
  out.even = choices.cost(even);
  out.allowed = slack * (problem.objective == Objective::kDelay
                             ? problem.length
                             : problem.curve.drop(0, problem.length));
  out.uneven = out.gain() > worth || problem.budget.has_value();
  const double limit = std::max(out.optimum + out.allowed, out.even);
  out.schedule = out.uneven ? best : choices.fewest_within(even, limit);
  out.cost = choices.cost(out.schedule);
  out.interval = first_gap(problem, out.schedule);
  return out;
}

}  // namespace

Recommendation recommend(const Grid& grid, double slack, double worth) {
  return recommend(grid.problem(), Choices(grid, false), slack, worth);
}

Recommendation recommend_at_positions(const Grid& grid, double slack, double worth) {
  return recommend(grid.problem(), Choices(grid, true), slack, worth);
}

}  // namespace holdfast
