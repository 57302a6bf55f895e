// The cheapest plan on a grid, exactly.
//
// Over the cost that grid.h states the plan is the minimum among all subsets of the
// positions in which a save starts only once the previous one is durable: the cost is
// Monge (what can be lost never shrinks, durable times never fall), so that the
// least-weight path is found with a hull of lines, O(n), for one danger, and with a queue
// of candidates, O(n log n), for several or for the exact makespan. Paths are built from
// the end: costs to go shrink with the curve and keep their digits.
#pragma once

#include "holdfast/schedule/grid.h"

namespace holdfast {

// As many saves as pay, or exactly the problem's budget.
std::vector<int64_t> optimum(const Grid& grid);

// The same by trying every candidate, O(n^2), for tests; no budget.
std::vector<int64_t> optimum_by_trial(const Grid& grid);

}  // namespace holdfast
