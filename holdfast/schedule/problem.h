// What is to be planned: a job, what a save costs it, what threatens it, and what counts.
//
// All times are seconds, `x` is the work clock (curve.h). Rates are per second, losses in
// the user's units; no plan depends on these units.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "holdfast/base/result.h"
#include "holdfast/schedule/curve.h"

namespace holdfast {

// What a plan makes small. With V the loss taken off so far, v = V', C the stall:
enum class Objective {
  kDelay,     // the expected time to finish
  kProgress,  // expected loss not taken off because of stalls and rollbacks: each stall
              // V(x + C) - V(x), each rollback V(x) - V(what was durable)
  kExplore,  // as the job may be stopped any time, the expected loss that is missing from
  // what is then left: by delay, and on a stop without notice by what was not
  // durable; a second of delay has a price besides
  kPriced,  // rollbacks as in kProgress, but a save costs the same early and late: its
            // stall and a price, as seconds of average progress
};

// "delay", "progress", "explore", "priced".
std::string_view name_of(Objective objective);
Result<Objective> parse_objective(std::string_view text);

// The chance that the job is stopped before its end.
struct Stops {
  // A known time at which a share of the jobs that reach it is stopped: a tuner's rung, or
  // with a share of 1 a deadline.
  struct At {
    double time = 0;
    double share = 1;
    bool hard = true;  // nothing can be saved any more
  };
  double rate = 0;  // of stopping in the next second
  double hard = 1;  // the share of these without notice
  std::vector<At> at;
};

struct Problem {
  double length = 0;   // the work to be done
  double stall = 0;    // a save stops the job for so long,
  double persist = 0;  // and is durable so much later
  double restart = 0;  // after a failure
  double step = 0;     // of training; 0 if it does not matter
  // Mean time between failures of one worker that need the checkpoint.
  double mtbf = std::numeric_limits<double>::infinity();
  Workers workers{};
  Curve curve{};
  Stops stops{};

  Objective objective = Objective::kDelay;
  double price = 0;  // kPriced: what a save costs besides its stall, in seconds
  // kExplore: the price of a second, in loss; by default the average progress of one.
  std::optional<double> second{};
  std::optional<int64_t> budget{};  // exactly so many saves
  int64_t positions = 0;  // where a save may stand: so many, or 0 for enough of them

  // The number of workers never changes.
  bool steady() const;
  double failure_rate(double x) const { return workers.at(x) / mtbf; }
  // Over the whole length.
  double mean_failure_rate() const { return workers.until(length) / length / mtbf; }
};

// Fails with kInvalid, naming what is negative, NaN, without bound or contradictory.
Result<void> check(const Problem& problem);

// Where to save, by the work clock, rising. The end of the job is no save.
struct Schedule {
  std::vector<double> times;
};

}  // namespace holdfast
