// The expected cost of any choice of saves among evenly spaced positions.
//
// Positions are x_j = j length / n, j = 0..n; a save at x_j is durable at d_j = x_j +
// persist. Between two neighbouring saves i and j of a plan the job pays
//
//   cost(i, j) = a_j + sum over c of  integral over [d_i, d_j) of
//                                     (G_c(x) - G_c(x_i)) dR_c(x)
//
// where a_j is the price of the stall (none at the end), and each component c is a danger
// with its rate R_c (which may jump) and what is lost per rollback, G_c: time, or the loss
// taken off. This is exact to the first order in the danger. For the objective delay
// without persist time and with constant danger the exact expectation for any number of
// failures replaces it:
//
//   cost(i, j) = (mtbf + restart) (e^((x_j - x_i + stall) / mtbf) - 1) - (x_j - x_i)
//
// Everything is kept as what remains from x to the end, not as what has been since the
// start: sums of what was lose a curve's tail in the rounding after 37 = ln 2^53 time
// constants.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "holdfast/schedule/problem.h"

namespace holdfast {

class Grid {
 public:
  // Fails as check() does.
  static Result<Grid> build(Problem problem);

  const Problem& problem() const { return problem_; }
  // The number of the last position, the end of the job.
  int64_t last() const { return last_; }
  double cell() const { return cell_; }
  double time(int64_t j) const { return static_cast<double>(j) * cell_; }

  // Of going from the save i (0: the start) to the next j > i (last(): the end).
  double cost(int64_t i, int64_t j) const;
  // Of a plan; +infinity if it starts a save before the previous one is durable.
  double cost(std::span<const int64_t> saves) const;
  double cost(const Schedule& schedule) const { return cost(snap(schedule)); }
  // The nearest positions. Of saves that come before the previous one is durable only the
  // first is kept, as a saver that has one in flight would.
  std::vector<int64_t> snap(const Schedule& schedule) const;
  Schedule schedule(std::span<const int64_t> saves) const;

  // From a save to the next one at least so many positions: one is in flight at a time.
  int64_t gap() const { return gap_; }
  // True if cost() is exact for any number of failures.
  bool exact() const { return !exact_.empty(); }

  // One danger: `left` is G(end) - G(x_j), `danger` the rate from d_j on, `sum` the
  // integral of left over it.
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
  std::vector<double> exact_, exact_end_;  // by j - i
};

}  // namespace holdfast
