// How often to save, in the words of the user: `every="auto"`, "young", "500 steps",
// "10m".
//
// A cadence is a number of steps, a time, a policy that chooses the moments itself
// (scheduler.h), or "never", if only the program decides. parse_cadence() reads a cadence, and to_string() writes it so that
// parse_cadence() can read it again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "holdfast/base/clock.h"
#include "holdfast/base/result.h"

namespace holdfast {

// A rule by which a running job chooses when it makes its next save. policies.h has the
// rules that make the whole schedule of a job in advance.
enum class Policy {
  kAuto,       // the longest even interval that costs hardly more than the optimum
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

}  // namespace holdfast
