// Planners: who decides where the saves of a known job stand.
//
// All see the same grid (grid.h), which holds the problem and can price any plan, so that
// they can be compared on what each of them is for. A user's own planner is a class
// derived from Planner; it needs no registration.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "holdfast/schedule/grid.h"

namespace holdfast {

// Stateless, and safe from several threads.
class Planner {
 public:
  virtual ~Planner() = default;
  virtual std::string_view name() const = 0;
  // What it does and what its plan is the minimum of, in one line.
  virtual std::string_view about() const = 0;
  // Times need not lie on the grid.
  virtual Schedule plan(const Grid& grid) const = 0;
};

// optimal, even, young, daly-first, daly, daly-exact, checkfreq, coci, coci-normalised,
// equal-progress: in this order.
std::span<const Planner* const> planners();
// Fails with kInvalid and the names that there are.
Result<const Planner*> find_planner(std::string_view name);

// A save every `interval` of work, 5 million at most; none if it is not positive and
// finite.
Schedule every(double interval, double length);

// The even plan of least cost on the grid, by count of saves; with a budget that count.
Schedule best_even(const Grid& grid);

// theta1 < 0 and theta2 of the loss exp(theta1 t + theta2), t in minutes, as COCI sees
// the curve: of a single exponential itself, else by least squares on the logarithm.
// theta1 is 0 if the loss does not fall, or is not positive.
struct CociFit {
  double theta1 = 0, theta2 = 0;
};
CociFit coci_fit(const Curve& curve, double length);

// What one plan costs beside others on the same grid.
struct Comparison {
  struct Row {
    const Planner* planner;
    Schedule schedule;
    double cost;
  };
  std::vector<Row> rows;  // in the order of planners()
  const Row& row(std::string_view name) const;
  // 1 - the optimum's cost over the best even plan's: what placement is worth here.
  double gain_over_even() const;
};
Comparison compare(const Grid& grid);

}  // namespace holdfast
