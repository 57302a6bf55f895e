// The exact expected wall time of a job for any number of failures, interval by interval.
//
// Failures come at a constant rate 1 / M during work and stalls, and a restart takes R.
// A save that begins at x stalls the job for C and is durable P after the stall. A
// failure before that goes back to the save before it. Let E be the expected time from
// a restart at a save, and F the expected time from the end of its stall, when the save
// is still in flight. Conditioning on the first failure gives two equations for each
// save, and E and F of its neighbours cancel. What remains is a sum over intervals: an
// interval from x to the next save y takes
//
//   (M + R) (e^((y - x + C + P) / M) - e^(P / M)),
//
// with 1 in place of e^(P / M) for the first interval, because nothing is in flight at
// the start, and without C + P for the last interval. A save less than P before the end
// is never durable, so it only delays the end by its stall. The formula holds if each
// save begins only after the save before it is durable.
#pragma once

#include <cmath>

#include "holdfast/schedule/problem.h"
#include "holdfast/base/reproducible_math.h"

namespace holdfast {

class ExactDelay {
 public:
  // The number of workers must not change, and there must be failures.
  explicit ExactDelay(const Problem& problem)
      : mtbf_(1 / problem.failure_rate(0)),
        scale_(mtbf_ + problem.restart),
        in_flight_(growth(problem.persist)),
        length_(problem.length),
        stall_(problem.stall),
        persist_(problem.persist) {}

  static bool holds_for(const Problem& problem) {
    return problem.steady() && std::isfinite(problem.mtbf);
  }

  // The expected time beyond the work from the save at x (0 is the start) to the next
  // save at y (the length is the end).
  double interval(double x, double y) const {
    if (y >= length_) return ends_late(x) ? 0 : beyond_work(x, length_ - x, 0);
    if (ends_late(y)) return beyond_work(x, length_ - x, stall_);
    return beyond_work(x, y - x, stall_ + persist_);
  }

  // e^(time / M) - 1. From e^600 on it continues as a straight line, so that it stays
  // convex and sums stay finite.
  double growth(double time) const {
    const double y = time / mtbf_;
    if (y <= 600) return reproducible::expm1(y);
    return reproducible::exp(600) * (1 + (y - 600));
  }
  double beyond_work(double x, double work, double extra) const {
    return of_growth(x, work, growth(work + extra));
  }
  // The same for a growth that is known.
  double of_growth(double x, double work, double grown) const {
    return scale_ * (grown - (x > 0 ? in_flight_ : 0)) - work;
  }
  // Whether a save at x is not durable before the end.
  bool ends_late(double x) const { return x > 0 && length_ - x < persist_; }

 private:
  double mtbf_, scale_, in_flight_, length_, stall_, persist_;
};

}  // namespace holdfast
