// Finds the cheapest schedule on a grid, exactly.
//
// The result has the least cost, as grid.h defines it, of all subsets of the positions
// in which each save starts only after the previous one is durable. The cost has the
// Monge property, because what can be lost never shrinks and durable times never fall.
// So the path of least weight can be found with a hull of lines in O(n) for one danger,
// and with a queue of candidates in O(n log n) for several dangers or for exact costs.
// Paths are built from the end, because the costs from there shrink with the curve and
// so keep their digits.
#pragma once

#include "holdfast/schedule/grid.h"

namespace holdfast {

// Positions of the saves: as many as reduce the cost, or exactly as many as the budget
// says.
std::vector<int64_t> optimum(const Grid& grid);

// The optimum, with each save moved from its position to the best time near it. So no
// schedule is better only because its saves are between positions.
Schedule optimal_schedule(const Grid& grid);

}  // namespace holdfast
