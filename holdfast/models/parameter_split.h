// Computes which part of a parameter one rank holds under tensor and expert
// parallelism, before ZeRO divides it further.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "holdfast/models/model.h"
#include "holdfast/models/parallel.h"
#include "holdfast/state/strided.h"

namespace holdfast {

// A box that lies in memory without gaps. Its dimensions may be nested in another order
// than row-major.
struct Part {
  using Order = std::array<int8_t, kMaxRank>;
  static constexpr Order kRowMajor{0, 1, 2, 3, 4, 5, 6, 7};

  Box box;
  Order order = kRowMajor;  // the dimensions as they nest in memory, outermost first

  // True if memory order is the box's row-major order.
  bool row_major() const;
  Map map(int64_t element_bytes, int64_t offset) const;
};

// How a parameter is spread over the positions of a stage: it is cut into `ways` cuts,
// and each cut has `replicas` holders. Position l of the stage has cut l % ways, and is
// replica l / ways of that cut.
struct Spread {
  int64_t ways = 1;
  int64_t replicas = 1;
};
Spread spread_of(const Parameter& parameter, const Parallel& parallel);

// Fails, naming the parameter, if it cannot be cut by this configuration.
Result<void> check_split(const Parameter& parameter, const Parallel& parallel);

// The parts that the holders of cut `way` have, in the order in which they lie one
// after the other in memory. Empty parts are left out. The parameter must pass
// check_split.
std::vector<Part> split_parameter(const Parameter& parameter, const Parallel& parallel,
                                  int64_t way);

int64_t elements_of(std::span<const Part> parts);
// The elements [first, last) of the parts, counted in memory order.
std::vector<Part> flat_range(std::span<const Part> parts, int64_t first, int64_t last);

}  // namespace holdfast
