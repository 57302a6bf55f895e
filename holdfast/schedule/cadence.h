// How often to save, as the user says it: `every="auto"`, "young", "500 steps", "10m".
//
// A cadence is a number of steps, a length of time, or a policy that finds the moments by
// itself (scheduler.h). parse_cadence reads them, to_string writes what it would read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "holdfast/base/clock.h"
#include "holdfast/base/result.h"

namespace holdfast {

// Who decides where the next save is.
enum class Policy {
  kAuto,       // the longest even interval that is as good as the optimum
  kYoung,      // sqrt(2 stall MTBF)
  kDaly,       // Daly's higher-order interval
  kCheckfreq,  // what the persist time and an overhead of 3.5 % allow
  kCoci,       // equal steps of loss, by the published formula
};

// "auto", "young", "daly", "checkfreq", "coci".
std::string_view name_of(Policy policy);

struct EverySteps {
  int64_t steps = 1;
  friend bool operator==(const EverySteps&, const EverySteps&) = default;
};

struct EveryTime {
  Duration time{};
  friend bool operator==(const EveryTime&, const EveryTime&) = default;
};

using Cadence = std::variant<Policy, EverySteps, EveryTime>;

// Fails with kInvalid on what is no cadence: a bare number says neither steps nor a unit
// of time. Steps are 1 to 10^15, times 1 ms to 10 years.
Result<Cadence> parse_cadence(std::string_view text);
std::string to_string(const Cadence& cadence);

// "90", "90s", "1.5 h", "10m", "2d", "250ms" as seconds; a bare number is seconds, "never"
// is infinity. Never negative and never a NaN. `where` names it in messages: "--mtbf".
Result<double> parse_seconds(std::string_view text, std::string_view where);

}  // namespace holdfast
