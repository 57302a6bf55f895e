// What the records of campaigns say: rates with intervals, and comparisons of pairs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "holdfast/campaign/campaign_file.h"
#include "holdfast/campaign/statistics.h"
#include "holdfast/campaign/trial_record.h"

namespace holdfast {

struct CountedRate {
  int64_t count = 0;
  int64_t total = 0;
  Interval interval{};  // Wilson's

  double rate() const;  // 0 if the total is 0
};

struct OutcomeRate {
  Outcome outcome = Outcome::kBenign;
  CountedRate rate{};
};

// Trials whose flips have something in common.
struct TrialGroup {
  std::string name{};
  CountedRate nev{};
  CountedRate harm{};
  int64_t guessed = 0;  // trials with a flip whose role only a name suggests
};

struct CampaignAnalysis {
  CampaignFile file{};
  int64_t trials = 0;
  std::vector<OutcomeRate> outcomes{};  // all of them, in the order of the enum
  CountedRate harm{};                   // outcomes up to degraded
  // Trials whose accuracy after loading is below the golden one by what counts as
  // degraded at the end. Some of them recover. The total has only trials that have
  // evaluated an accuracy after loading; it is 0 if the golden run has not.
  CountedRate low_after_loading{};
  // By bit, if trials flip one bit each: "F32 bit 30". Otherwise by whether one of the
  // flips is the highest bit of an exponent: "with a top exponent bit", "without one".
  std::vector<TrialGroup> by_bit{};
  std::vector<TrialGroup> by_role{};   // "several" for trials with flips in several
  std::vector<TrialGroup> by_layer{};  // the same
};

// Reads the folder of a campaign. A campaign that is still running has the trials that
// are recorded so far.
Result<CampaignAnalysis> analyse_campaign(Env& env, const Path& folder);

// How much further one tensor's state is from the golden one in A than in B.
struct DistancePairs {
  std::string tensor{};
  int64_t pairs = 0;
  // Of log10(distance in A / distance in B). Distances that are equal count as 0.
  MedianInterval log_ratio{};
  double within_p = 1;       // median_within_p() for kDistanceMargin
  double within_holm_p = 1;  // the same, corrected for the number of tensors
};

inline constexpr double kDistanceMargin = 0.3;

struct PairedAnalysis {
  PairCounts harm{};
  double difference = 0;  // the rate of harm in A minus that in B
  Interval interval{};
  double p = 1;  // McNemar's
  int64_t equal = 0;  // pairs with the same outcome
  // The deadlines of A and B in seconds, and the pairs that timed out in one of them
  // only. If the deadlines differ, that may be all that makes these pairs differ.
  double deadline_a = 0, deadline_b = 0;
  int64_t timed_out_once = 0;
  // Pairs of which one has no finite distances are left out.
  std::vector<DistancePairs> distances{};
};

// Compares two campaigns with the same plans, trial by trial. Trials that only one of
// them has are left out. Fails with kConflict if the bases or plans are not the same, and
// with kNotFound if there is no common trial.
Result<PairedAnalysis> analyse_pairs(Env& env, const Path& a, const Path& b);

// Campaigns as parts of one population, each with the weight of its sites.
struct StrataAnalysis {
  int64_t trials = 0;
  RateEstimate harm{};
  RateEstimate nev{};
};

// Fails with kInvalid if a campaign has no number of sites (--anywhere, --plan).
Result<StrataAnalysis> analyse_strata(Env& env, std::span<const Path> folders);

}  // namespace holdfast
