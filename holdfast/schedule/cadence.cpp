#include "holdfast/schedule/cadence.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "holdfast/base/number_text.h"

namespace holdfast {
namespace {

constexpr double kLongest = 10 * 365 * 86400.0;
constexpr int64_t kMostSteps = 1'000'000'000'000'000;

struct Unit {
  std::string_view name;
  double seconds;
};

constexpr std::array<Unit, 12> kUnits{{{"ms", 1e-3},
                                       {"s", 1},
                                       {"sec", 1},
                                       {"seconds", 1},
                                       {"m", 60},
                                       {"min", 60},
                                       {"minutes", 60},
                                       {"h", 3600},
                                       {"hours", 3600},
                                       {"d", 86400},
                                       {"day", 86400},
                                       {"days", 86400}}};

constexpr std::array<std::pair<std::string_view, Policy>, 5> kPolicyNames{
    {{"auto", Policy::kAuto},
     {"young", Policy::kYoung},
     {"daly", Policy::kDaly},
     {"checkfreq", Policy::kCheckfreq},
     {"coci", Policy::kCoci}}};

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

struct Amount {
  double number;
  std::string_view unit;
};

// Splits a number from its unit. The number must begin with a digit, so that neither a
// sign nor "inf" is accepted.
std::optional<Amount> split(std::string_view text) {
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  const auto number = take_number<double>(text);
  if (!number) return std::nullopt;
  return Amount{*number, trimmed(text)};
}

std::optional<double> unit_seconds(std::string_view name) {
  const auto* found = std::ranges::find(kUnits, name, &Unit::name);
  if (found == kUnits.end()) return std::nullopt;
  return found->seconds;
}

Result<Cadence> steps_of(double number, std::string_view text) {
  const bool whole =
      number ==
      static_cast<double>(static_cast<int64_t>(std::min(number, double{kMostSteps})));
  if (number < 1 || number > double{kMostSteps} || !whole) {
    return invalid("every: \"{}\"; expected a whole number of steps from 1 to 10^15",
                   text);
  }
  return Cadence(EverySteps{static_cast<int64_t>(number)});
}

Result<Cadence> time_of(double seconds, std::string_view text) {
  if (!(seconds >= 1e-3 && seconds <= kLongest)) {
    return invalid("every: \"{}\" is {} s; expected 1 ms to 10 years", text, seconds);
  }
  return Cadence(EveryTime{Duration(std::llround(seconds * 1e9))});
}

}  // namespace

std::string_view name_of(Policy policy) {
  const auto* found = std::ranges::find(kPolicyNames, policy,
                                        [](const auto& each) { return each.second; });
  return found->first;
}

Result<Cadence> parse_cadence(std::string_view text) {
  const std::string_view word = trimmed(text);
  for (const auto& [name, policy] : kPolicyNames) {
    if (word == name) return Cadence(policy);
  }
  if (word == "never") return Cadence(Never{});
  if (const auto amount = split(word)) {
    if (amount->unit == "steps" || amount->unit == "step") {
      return steps_of(amount->number, word);
    }
    if (const auto unit = unit_seconds(amount->unit)) {
      return time_of(amount->number * *unit, word);
    }
  }
  return invalid(
      "every: \"{}\"; expected auto, young, daly, checkfreq, coci, never, \"500 "
      "steps\" "
      "or a time such as \"10m\"",
      text);
}

std::string to_string(const Cadence& cadence) {
  if (const auto* policy = std::get_if<Policy>(&cadence)) {
    return std::string(name_of(*policy));
  }
  if (const auto* steps = std::get_if<EverySteps>(&cadence)) {
    return fmt::format("{} step{}", steps->steps, steps->steps == 1 ? "" : "s");
  }
  if (std::holds_alternative<Never>(cadence)) return "never";
  const double seconds =
      std::chrono::duration<double>(std::get<EveryTime>(cadence).time).count();
  for (const Unit unit : {Unit{"d", 86400}, Unit{"h", 3600}, Unit{"m", 60}}) {
    const double number = seconds / unit.seconds;
    if (number >= 1 && number == static_cast<double>(static_cast<int64_t>(number))) {
      return fmt::format("{}{}", number, unit.name);
    }
  }
  return fmt::format("{}s", seconds);
}

Result<double> parse_seconds(std::string_view text, std::string_view where) {
  const std::string_view word = trimmed(text);
  if (word == "never") return std::numeric_limits<double>::infinity();
  if (const auto amount = split(word)) {
    const auto unit =
        amount->unit.empty() ? std::optional(1.0) : unit_seconds(amount->unit);
    if (unit && amount->number * *unit <= 1e15) return amount->number * *unit;
  }
  return invalid("{}: \"{}\"; expected a time such as 90s, 10m, 8h or 2d", where, text);
}

}  // namespace holdfast
