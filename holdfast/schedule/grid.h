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
// of the loss. This is exact to the first order in the danger. With a constant danger,
// the exact expectation for any number of failures is used instead: always for the
// objective delay (exact_delay_internal.h), and for progress and priced if there are few
// stalls between two failures (exact_progress_internal.h).
//
// A schedule whose saves are not at positions has a cost too, by the same integrals at
// the times of its saves.
//
// All sums are kept as what remains from x to the end, and not as what has been added
// since the start. Sums from the start would lose the tail of a curve in the rounding
// after 37 = ln 2^53 time constants.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "holdfast/schedule/exact_delay_internal.h"
#include "holdfast/schedule/exact_progress_internal.h"
#include "holdfast/schedule/mesh_integral_internal.h"
#include "holdfast/schedule/problem.h"
#include "holdfast/schedule/weights_internal.h"

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
  // The cost of saves at any times. If a save comes before the previous one is durable,
  // it is left out, as a saver with one save in flight would do.
  double cost(const Schedule& schedule) const;
  // The same with each save at the nearest position, which takes a tenth of the time.
  double cost_at_positions(const Schedule& schedule) const;
  // The cost from a save at x (0 is the start) to the next save at y (the length is the
  // end).
  double cost_between(double x, double y) const;
  Schedule schedule(std::span<const int64_t> saves) const;

  // The least number of positions from one save to the next, because only one save may
  // be in flight.
  int64_t gap() const { return gap_; }
  // True if cost() is exact for any number of failures.
  bool exact() const { return exact_.has_value() || progress_.has_value(); }

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
  void add_danger(Danger danger);
  // What cost_between() needs to know about one end of an interval.
  struct End {
    double time = 0, price = 0;
    std::array<double, 2> left{}, danger{}, sum{};
  };
  End end_at(double x) const;
  double cost_between(const End& from, const End& to) const;
  double price_at(double x) const;

  Problem problem_;
  int64_t last_ = 0;
  int64_t gap_ = 1;
  double cell_ = 0;
  std::vector<double> prices_;
  std::vector<Component> components_;
  // The same dangers at any time.
  struct AnyTime {
    std::vector<double> left;
    MeshIntegral danger, sum;
    std::vector<Danger::Jump> jumps;
  };
  std::vector<AnyTime> any_time_;
  std::optional<ExactDelay> exact_;
  std::optional<ExactProgress> progress_;
  // ExactDelay::growth() by j - i, and the same for an interval that ends the job.
  std::vector<double> growth_, growth_to_end_;
};

}  // namespace holdfast
