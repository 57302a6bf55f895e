#include "holdfast/schedule/recommend.h"

#include <algorithm>

#include "holdfast/schedule/optimum.h"
#include "holdfast/schedule/policies.h"

namespace holdfast {
namespace {

double first_gap(const Problem& problem, const Schedule& schedule) {
  return schedule.times.empty() ? problem.length : schedule.times.front();
}

// The evenly spaced schedule with the fewest saves that costs at most `limit`. It has
// at most as many saves as `even`.
Schedule fewest_within(const Grid& grid, const Schedule& even, double limit) {
  const double length = grid.problem().length;
  Schedule best = even;
  size_t low = 0, high = even.times.size();
  if (grid.cost(Schedule{}) <= limit) return {};
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    Schedule fewer = every(length / static_cast<double>(middle + 1), length);
    if (grid.cost(fewer) <= limit) {
      high = middle;
      best = std::move(fewer);
    } else {
      low = middle;
    }
  }
  return best;
}

}  // namespace

Recommendation recommend(const Grid& grid, double slack, double worth) {
  const Problem& problem = grid.problem();
  Recommendation out;
  const Schedule best = optimal_schedule(grid), even = best_even(grid);
  out.optimum = grid.cost(best);
  out.even = grid.cost(even);
  out.allowed = slack * (problem.objective == Objective::kDelay
                             ? problem.length
                             : problem.curve.drop(0, problem.length));
  out.uneven = out.gain() > worth || problem.budget.has_value();
  if (out.uneven) {
    out.schedule = best;
  } else {
    const double limit = std::max(out.optimum + out.allowed, out.even);
    out.schedule = fewest_within(grid, even, limit);
  }
  out.cost = grid.cost(out.schedule);
  out.interval = first_gap(problem, out.schedule);
  return out;
}

}  // namespace holdfast
