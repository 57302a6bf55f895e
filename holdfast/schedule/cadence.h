// How often to save, in the words of the user: `every="auto"`, "young", "500 steps",
// "10m".
//
// A cadence is a number of steps, a time, a policy that chooses the moments itself
// (scheduler.h), or "never", if only the program decides. parse_cadence() reads a
// cadence, and to_string() writes it so that parse_cadence() can read it again.
// SchedulerOptions say how the policies choose.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "holdfast/base/result.h"
#include "holdfast/env/env.h"

namespace holdfast {

// A rule by which a running job chooses when it makes its next save. policies.h has the
// rules that make the whole schedule of a job in advance.
enum class Policy {
  kAuto,       // the interval of least cost, and protection while no rate is known
  kYoung,      // sqrt(2 stall MTBF)
  kDaly,       // Daly's higher-order interval
  kCheckfreq,  // as short as the persist time and an overhead of 3.5 % allow
  kCoci,       // saves at equal steps of the loss, by the published formula
};

// The names are "auto", "young", "daly", "checkfreq" and "coci".
std::string_view name_of(Policy policy);

struct EverySteps {
  int64_t steps = 1;
  friend bool operator==(const EverySteps&, const EverySteps&) = default;
};

struct EveryTime {
  Duration time{};
  friend bool operator==(const EveryTime&, const EveryTime&) = default;
};

// No save by itself.
struct Never {
  friend bool operator==(const Never&, const Never&) = default;
};

using Cadence = std::variant<Policy, EverySteps, EveryTime, Never>;

// Fails with kInvalid if the text is not a cadence. A bare number is not one, because
// it has neither "steps" nor a unit of time. Steps are 1 to 10^15, times are 1 ms to 10
// years.
Result<Cadence> parse_cadence(std::string_view text);
std::string to_string(const Cadence& cadence);

// Reads "90", "90s", "1.5 h", "10m", "2d" or "250ms" as seconds. A bare number is in
// seconds, and "never" is infinity. The result is never negative and never NaN. `where`
// is named in error messages: "--mtbf".
Result<double> parse_seconds(std::string_view text, std::string_view where);

// What a schedule minimizes. V(x) is how far the loss has fallen after the work x, and
// C is the stall.
enum class Objective {
  // The expected time until the job is finished.
  kDelay,
  // The expected progress of the loss that stalls and rollbacks cost. A stall costs
  // V(x + C) - V(x), a rollback costs V(x) - V(the durable state).
  kProgress,
  // For a job that may be stopped at any time: the expected progress that is missing
  // from the state that is left then. Delay costs progress, and a stop without notice
  // costs what was not durable. In addition a second of delay has a price.
  kExplore,
  // Rollbacks cost the same as in kProgress, but each save costs the same, early or
  // late: its stall and a price, converted with the average progress per second.
  kPriced,
};

// The names are "delay", "progress", "explore" and "priced".
std::string_view name_of(Objective objective);
Result<Objective> parse_objective(std::string_view text);

// The options of a Scheduler (scheduler.h).
struct SchedulerOptions {
  Cadence every = Policy::kAuto;
  // What the schedule minimizes. By default kExplore if the job may be stopped (there
  // is a deadline, a stop rate or a durable step), otherwise kDelay.
  std::optional<Objective> objective{};
  // Seconds between failures of the whole job with `workers` workers. If it is not set,
  // a prior is used. Both are corrected by what is observed.
  std::optional<double> mtbf{};
  int64_t workers = 1;
  std::optional<int64_t> total_steps{};
  // If set, so many saves are made until total_steps.
  std::optional<int64_t> budget{};
  // How much dearer than the best interval auto's may be in order to write less, as a
  // share of wall time, once a failure rate is stated or a failure was seen.
  double slack = 0.001;
  // The share of the time in which a save of auto may be in flight, or a step on its way
  // to a further tier. Once a failure rate is stated or a failure was seen, saves keep to
  // it as far as slack allows.
  double duty = 0.2;
  // How many bytes auto may write a day, as durable() reports them. If it is not set, it
  // is 4e12 as far as slack allows, and as far as the interval stays within the bound
  // that holds while no failure rate is known (scheduler.h).
  std::optional<double> bytes_a_day{};

  // What may stop the job: a rate per second, the share of these stops that come
  // without notice, and the number of seconds after start() at which the job ends.
  double stop_rate = 0;
  double hard = 1;
  std::optional<double> deadline{};
  // These steps must be durable before the next step begins, because a tuner decides
  // then. If stops come with notice (durable_steps_hard is false), these steps are
  // saved when they are reached.
  std::vector<int64_t> durable_steps{};
  bool durable_steps_hard = true;
  // The learning rate drops after these steps.
  std::vector<int64_t> milestones{};
};

}  // namespace holdfast
