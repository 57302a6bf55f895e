#include "holdfast/campaign/campaign_options.h"

#include <cmath>

namespace holdfast {
namespace {

constexpr int64_t kMostTrials = 10'000'000;

}  // namespace

Result<void> check_options(const CampaignOptions& options) {
  if (options.trials < 1 || options.trials > kMostTrials) {
    return invalid("{} trials; expected from 1 to {}", options.trials, kMostTrials);
  }
  if (!options.plans.empty() && options.trials > std::ssize(options.plans)) {
    return invalid("{} trials with {} plans; expected at most a trial for each plan",
                   options.trials, options.plans.size());
  }
  if (options.deadline && !(*options.deadline > 0 && *options.deadline <= 1e9)) {
    return invalid("a deadline of {} s; expected more than 0", *options.deadline);
  }
  const Thresholds& limits = options.thresholds;
  if (!(limits.extreme_loss >= 1 && limits.degraded_loss >= 1 &&
        limits.spiked_loss >= 1 && limits.degraded_accuracy > 0 &&
        std::isfinite(limits.extreme_loss + limits.degraded_loss + limits.spiked_loss +
                      limits.degraded_accuracy))) {
    return invalid(
        "thresholds: {}; expected finite factors from 1 up and more than 0 points",
        to_string(limits));
  }
  return check_command(options.command, options.state, options.serve);
}

}  // namespace holdfast
