// A scheduling problem: a job, what a save costs it, what can happen to it, and what
// counts.
//
// All times are in seconds, and `x` is the work clock (curve.h). Rates are per second.
// Losses are in the user's units; no schedule depends on these units.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "holdfast/base/result.h"
#include "holdfast/schedule/cadence.h"
#include "holdfast/schedule/curve.h"

namespace holdfast {

// When the job may be stopped before its end.
struct Stops {
  // A known time at which a share of the jobs that reach it is stopped: the rung of a
  // tuner, or, with a share of 1, a deadline.
  struct At {
    double time = 0;
    double share = 1;
    // A hard stop leaves no time to save.
    bool hard = true;
  };
  double rate = 0;  // the rate per second at which the job is stopped
  double hard = 1;  // the share of these stops that come without notice
  std::vector<At> at;
};

struct Problem {
  double length = 0;   // how much work is to be done
  double stall = 0;    // how long a save stops the job
  double persist = 0;  // how long it takes after the stall until the save is durable
  double restart = 0;  // how long a restart takes after a failure
  double step = 0;     // how long a training step takes; 0 if it does not matter
  // The mean time between failures of one worker that need the checkpoint.
  double mtbf = std::numeric_limits<double>::infinity();
  Workers workers{};
  Curve curve{};
  Stops stops{};

  Objective objective = Objective::kDelay;
  // For kPriced: what a save costs in addition to its stall, in seconds.
  double price = 0;
  // For kExplore: the price of a second, in loss. By default the average progress per
  // second.
  std::optional<double> second{};
  // If set, exactly so many saves are made.
  std::optional<int64_t> budget{};
  // The number of positions at which a save can be made. 0 means as many as are needed.
  int64_t positions = 0;

  // Whether the number of workers never changes.
  bool steady() const;
  double failure_rate(double x) const { return workers.at(x) / mtbf; }
  // The mean failure rate over the whole length.
  double mean_failure_rate() const { return workers.until(length) / length / mtbf; }
};

// Fails with kInvalid, naming the value, if a value is negative, NaN or infinite, or if
// values contradict each other.
Result<void> check(const Problem& problem);

// The times of the saves on the work clock, in rising order. The end of the job is not
// a save.
struct Schedule {
  std::vector<double> times;
};

}  // namespace holdfast
