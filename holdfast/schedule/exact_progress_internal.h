// The exact expected progress that stalls and failures cost, for any number of failures,
// interval by interval: the objectives progress and priced (cadence.h).
//
// First-order costs count each failure as if it were the only one near it. With few
// stalls between two failures they are too low for long intervals, so a schedule of
// least first-order cost has too few saves.
//
// Failures come at a constant rate r during work and stalls. V(x) is the progress that
// is left at x. A save at y costs A(y), stalls the job for C and is durable P after the
// stall; a failure before that goes back to the save before it, x, and loses
// V(x) - V(y) and what came after y. Let E(x) be the expected cost from a restart at the
// save x. Conditioning on the first failure gives, as for the delay
// (exact_delay_internal.h), a sum over intervals:
//
//   E(x) - E(y) = e^(rP) (e^(r(w + C)) I + A(y) + (1 - e^(-rP)) (V(x) - V(y)))
//
// where w = y - x, and I is the expectation of what the first failure loses if it comes
// before the end of the stall, and of 0 otherwise. The last interval has no save, so it
// costs e^(rw) I. With M(x) = the integral of r e^(-r (z - x)) V(z) from x to the end,
// which is known at all positions, I takes a few operations.
#pragma once

#include <cstdint>
#include <vector>

#include "holdfast/schedule/problem.h"

namespace holdfast {

// With at least so many stalls between two failures, first-order costs are good enough.
// By simulation of the objective progress, the first-order optimum costs 0.5 % more than
// Daly's exact interval at 20 stalls, 2 % more at 5 and 7 % more at 2.
inline constexpr double kManyStalls = 30;
inline bool has_few_stalls(const Problem& problem) {
  return problem.mean_failure_rate() * kManyStalls * problem.stall > 1;
}

class ExactProgress {
 public:
  // Whether the objective is progress, priced or not, failures come at a constant rate,
  // and they are so frequent that it matters.
  static bool holds_for(const Problem& problem);

  // `left` is V at the ends and middles of the cells, `prices` are A at their ends.
  ExactProgress(const Problem& problem, const std::vector<double>& left,
                const std::vector<double>& prices, double cell);

  // The cost from the save at position i (0 is the start) to the next one at j (the last
  // position is the end).
  double cost(int64_t i, int64_t j) const;
  // The same for saves at any time.
  double cost_between(double x, double y) const;

 private:
  // One end of an interval.
  struct End {
    double time = 0, left = 0;  // V
    double after = 0;           // M
    double price = 0;           // A
    // The integral of r e^(-ru) times what a stall that is cut short after u has lost.
    double cut = 0;
  };
  End end_at(double x) const;
  End end_at_position(size_t j) const;
  double interval(const End& x, const End& y) const;
  // An interval whose save is never durable before the end of the job.
  double late_interval(const End& x, const End& y) const;
  // The expectation of what a failure in the work from x to y loses.
  double lost(const End& x, const End& y) const;
  double lost_in_cut_stall(const Problem& problem, double x) const;
  // e^(r time), without overflow.
  double growth(double time) const;
  bool ends_late(double x) const { return x > 0 && length_ - x < persist_; }

  double rate_, length_, stall_, persist_, cell_;
  std::vector<double> left_;  // at the ends and middles of the cells
  std::vector<double> after_, prices_, cut_;
};

}  // namespace holdfast
