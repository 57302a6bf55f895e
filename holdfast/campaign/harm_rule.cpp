#include "holdfast/campaign/harm_rule.h"

#include "holdfast/base/number_text.h"

namespace holdfast {

Result<HarmRule> parse_harm_rule(std::string_view text) {
  constexpr std::string_view kAccuracy = "accuracy:";
  if (text == "outcome") return HarmRule{};
  if (text.starts_with(kAccuracy)) {
    const auto points = number_in<double>(text.substr(kAccuracy.size()));
    if (points && *points > 0 && *points <= 100) return HarmRule{*points};
  }
  return invalid(
      "rule \"{}\": expected outcome, or accuracy:POINTS with a number above 0 and up to "
      "100, such as accuracy:5",
      text);
}

std::string to_string(const HarmRule& rule) {
  if (!rule.accuracy_points) return "outcome";
  return fmt::format("accuracy:{}", *rule.accuracy_points);
}

Result<bool> is_harmed(const TrialRecord& record, const TrainingLog& golden,
                       const HarmRule& rule) {
  if (!rule.accuracy_points) return is_harm(record.outcome);
  const auto normal = golden.last("accuracy");
  if (!normal) {
    return invalid("rule {}: the golden run has no accuracy; expected one at its last step",
                   to_string(rule));
  }
  if (record.outcome <= Outcome::kTimedOut || !record.final_accuracy) return true;
  // An accuracy that is not a number is low, too. A little is left to rounding.
  return !(100 * (*normal - *record.final_accuracy) < *rule.accuracy_points - 1e-4);
}

}  // namespace holdfast
