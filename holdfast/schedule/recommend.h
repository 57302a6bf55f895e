// Recommends to people how often to save, and whether uneven saves are worth it.
#pragma once

#include "holdfast/schedule/grid.h"

namespace holdfast {

struct Recommendation {
  Schedule schedule;    // the recommended schedule
  double interval = 0;  // the interval, or the first gap of an uneven schedule
  bool uneven = false;
  double cost = 0;     // the cost of `schedule`
  double optimum = 0;  // the cost of the best schedule
  double even = 0;     // the cost of the best evenly spaced schedule
  double allowed =
      0;  // how much more than the optimum `schedule` may cost if it is even
  // How much cheaper the best schedule is than the best evenly spaced one.
  double gain() const { return even > 0 ? 1 - optimum / even : 0; }
};

// Recommends the longest constant interval whose cost is at most `slack` above that of
// the optimum, because saves that bring hardly anything wear out disks. `slack` is a
// share of the whole: of the job's length for the objective delay, and of the total
// fall of the loss for the others. Recommends an uneven schedule only if it costs less
// than the best evenly spaced one by more than the share `worth`, or if there is a
// budget.
inline constexpr double kWorthUneven = 0.05;
Recommendation recommend(const Grid& grid, double slack = 0.001,
                         double worth = kWorthUneven);
// The same for a job that is running and must not wait: all saves are at positions,
// which is a seventh of the work and costs at most 0.05 % more.
Recommendation recommend_at_positions(const Grid& grid, double slack, double worth);

}  // namespace holdfast
