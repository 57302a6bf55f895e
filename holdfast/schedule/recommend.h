// One answer for people: how often to save, and whether uneven saves are worth while.
#pragma once

#include "holdfast/schedule/grid.h"

namespace holdfast {

struct Recommendation {
  Schedule schedule;    // what to do
  double interval = 0;  // of an even schedule; the first gap of an uneven one
  bool uneven = false;
  double cost = 0;     // of the schedule,
  double optimum = 0;  // of the best one,
  double even = 0;     // of the best even one, all on the grid
  // What placement is worth here: 1 - optimum / even, exactly.
  double gain() const { return even > 0 ? 1 - optimum / even : 0; }
};

// The longest constant interval whose cost is at most `slack` above the optimum's, as a
// share of the whole: of the job's length for the objective delay, of the loss to be taken
// off for others. Saves that hardly pay wear out disks for nothing. An uneven plan only
// where it gains more than 5 % over the best even one, or where a budget asks for it.
Recommendation recommend(const Grid& grid, double slack = 0.001);

}  // namespace holdfast
