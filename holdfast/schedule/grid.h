// The expected cost of any choice of saves among evenly spaced positions.
//
// Positions are x_j = j length / n, j = 0..n. A save at x_j is durable at d_j = x_j +
// persist. Between two neighbouring saves i and j of a schedule the job pays
//
//   cost(i, j) = a_j + sum over c of  integral over [d_i, d_j) of
//                                     (G_c(x) - G_c(x_i)) dR_c(x)
//
// where a_j is the price of the stall (0 at the end). Each component c is a danger with
// its rate R_c, which may jump, and with G_c, what a rollback loses: time, or progress
// of the loss. This is exact to the first order in the danger. For the objective delay,
// without persist time and with a constant danger, the exact expectation for any number
// of failures is used instead:
//
//   cost(i, j) = (mtbf + restart) (e^((x_j - x_i + stall) / mtbf) - 1) - (x_j - x_i)
//
// All sums are kept as what remains from x to the end, and not as what has been added
// since the start. Sums from the start would lose the tail of a curve in the rounding
// after 37 = ln 2^53 time constants.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "holdfast/schedule/problem.h"

namespace holdfast {

class Grid {
 public:
  // Fails as check() does (problem.h).
  static Result<Grid> build(Problem problem);

  const Problem& problem() const { return problem_; }
  // The number of the last position, the end of the job.
  int64_t last() const { return last_; }
  double cell() const { return cell_; }
  double time(int64_t j) const { return static_cast<double>(j) * cell_; }

  // The cost from the save i (0 is the start) to the next save j > i (last() is the
  // end).
  double cost(int64_t i, int64_t j) const;
  // The cost of a schedule. +infinity if a save starts before the previous one is
  // durable.
  double cost(std::span<const int64_t> saves) const;
  double cost(const Schedule& schedule) const { return cost(snap(schedule)); }
  // The nearest positions. If a save comes before the previous one is durable, it is
  // left out, as a saver with one save in flight would do.
  std::vector<int64_t> snap(const Schedule& schedule) const;
  Schedule schedule(std::span<const int64_t> saves) const;

  // The least number of positions from one save to the next, because only one save may
  // be in flight.
  int64_t gap() const { return gap_; }
  // True if cost() is exact for any number of failures.
  bool exact() const { return !exact_.empty(); }

  // One danger at each position: `left` is G(end) - G(x_j), `danger` is the rate from
  // d_j to the end, and `sum` is the integral of `left` over that rate.
  struct Component {
    std::vector<double> left, danger, sum;
  };
  std::span<const Component> components() const { return components_; }
  std::span<const double> prices() const { return prices_; }

 private:
  Grid() = default;
  void build_exact();

  Problem problem_;
  int64_t last_ = 0;
  int64_t gap_ = 1;
  double cell_ = 0;
  std::vector<double> prices_;
  std::vector<Component> components_;
  // The exact costs by j - i, and the same for an interval that ends the job.
  std::vector<double> exact_, exact_end_;
};

}  // namespace holdfast
