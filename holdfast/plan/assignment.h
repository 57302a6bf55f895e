// Maximum-weight assignment (the Hungarian method), exact, in 128-bit integers.
#pragma once

#include <cstdint>
#include <vector>

#include "holdfast/base/int128.h"

namespace holdfast {

struct Assignment {
  std::vector<uint32_t> column_of_row;
  Int128 weight = 0;
};

// Gives each row a column of its own so that the sum of weights is greatest. There must
// be at least as many columns as rows. Takes O(rows^2 * columns) time. Deterministic.
Assignment assign(const std::vector<std::vector<Int128>>& weight);

}  // namespace holdfast
