// Policies that make the whole schedule of a job in advance, from what is known about
// the job: Young, Daly, CheckFreq, COCI, the exact optimum and others.
//
// All policies get the same grid (grid.h), which holds the problem and can compute the
// cost of any schedule, so that they can be compared. A user's own policy is a class
// derived from SchedulePolicy and needs no registration.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "holdfast/schedule/grid.h"

namespace holdfast {

// A policy has no state, and is safe from several threads.
class SchedulePolicy {
 public:
  virtual ~SchedulePolicy() = default;
  virtual std::string_view name() const = 0;
  // One line that says what the policy does and what its schedule minimizes.
  virtual std::string_view about() const = 0;
  // Chooses the times of the saves. They need not lie on the grid.
  virtual Schedule schedule(const Grid& grid) const = 0;
};

// All policies in this order: optimal, even, young, daly-first, daly, daly-exact,
// checkfreq, coci, coci-normalised, coci-parallel, equal-progress.
std::span<const SchedulePolicy* const> policies();
// Their names in this order, separated by commas.
std::string policy_names();
// Fails with kInvalid, naming all policies, if there is none with this name.
Result<const SchedulePolicy*> find_policy(std::string_view name);

// A save after each `interval` of work, at most 5 million. No saves if the interval is
// not positive and finite.
Schedule every(double interval, double length);

// The evenly spaced schedule of least cost on the grid, over all numbers of saves. If
// the problem has a budget, the number is the budget. If `at_positions` is true, costs
// are those at the nearest positions.
Schedule best_even(const Grid& grid, bool at_positions = false);

// The loss exp(theta1 t + theta2), with t in minutes, that COCI would fit to the curve.
// A single exponential is taken as it is; any other curve is fitted by least squares on
// the logarithm of its loss. theta1 is negative, or 0 if the loss does not fall or is
// not positive.
struct CociFit {
  double theta1 = 0, theta2 = 0;
};
CociFit coci_fit(const Curve& curve, double length);

// What the schedules of all policies cost on the same grid.
struct Comparison {
  struct Row {
    const SchedulePolicy* policy;
    Schedule schedule;
    double cost;
  };
  std::vector<Row> rows;  // in the order of policies()
  const Row& row(std::string_view name) const;
};
Comparison compare(const Grid& grid);

}  // namespace holdfast
