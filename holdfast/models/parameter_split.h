// What one rank holds of one parameter under tensor and expert parallelism, before ZeRO
// divides it further.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "holdfast/models/model.h"
#include "holdfast/models/parallel.h"
#include "holdfast/state/strided.h"

namespace holdfast {

// A box that lies in memory without gaps, its dimensions nested in an order of their
// own.
struct Part {
  using Order = std::array<int8_t, kMaxRank>;
  static constexpr Order kRowMajor{0, 1, 2, 3, 4, 5, 6, 7};

  Box box;
  Order order = kRowMajor;  // dimensions, outermost first

  // True if memory order is the box's row-major order.
  bool row_major() const;
  Map map(int64_t element_bytes, int64_t offset) const;
};

// The positions of a stage see a parameter as `ways` cuts with `replicas` holders each:
// position l of the stage has cut l % ways and is replica l / ways.
struct Spread {
  int64_t ways = 1;
  int64_t replicas = 1;
};
Spread spread_of(const Parameter& parameter, const Parallel& parallel);

// Fails, naming the parameter, if the configuration cannot cut it.
Result<void> check_split(const Parameter& parameter, const Parallel& parallel);

// What the holders of cut `way` have, in the order in which it lies in their memory one
// after the other. Empty parts are left out. The parameter must pass check_split.
std::vector<Part> split_parameter(const Parameter& parameter, const Parallel& parallel,
                                  int64_t way);

int64_t elements_of(std::span<const Part> parts);
// Elements [first, last) of the parts in memory order.
std::vector<Part> flat_range(std::span<const Part> parts, int64_t first, int64_t last);

}  // namespace holdfast
