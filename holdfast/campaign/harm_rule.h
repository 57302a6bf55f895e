// Which trials count as harmed: by their outcome, or by the accuracy at their end alone.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "holdfast/campaign/training_log.h"
#include "holdfast/campaign/trial_record.h"

namespace holdfast {

// By default, harm is an outcome up to degraded. A rule of accuracy looks at the accuracy
// alone: a trial is harmed if it was refused, crashed or timed out, or if its last accuracy
// is at least so many points below the golden one, or is not a number. Losses do not count,
// so a trial that is N-EV or degraded is harmed only if its accuracy is low.
struct HarmRule {
  std::optional<double> accuracy_points{};
};

// Reads "outcome" or "accuracy:5". Fails with kInvalid for anything else.
Result<HarmRule> parse_harm_rule(std::string_view text);
std::string to_string(const HarmRule& rule);

// Fails with kInvalid if the rule needs an accuracy that the golden run does not have.
Result<bool> is_harmed(const TrialRecord& record, const TrainingLog& golden,
                       const HarmRule& rule);

}  // namespace holdfast
