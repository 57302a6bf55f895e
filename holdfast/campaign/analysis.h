// What the records of campaigns say: rates with intervals, and comparisons of pairs.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "holdfast/campaign/campaign_file.h"
#include "holdfast/campaign/harm_rule.h"
#include "holdfast/campaign/trial_record.h"
#include "holdfast/statistics/statistics.h"

namespace holdfast {

struct CountedRate {
  int64_t count = 0;
  int64_t total = 0;
  Interval interval{};  // Wilson's

  double rate() const;  // 0 if the total is 0
};

CountedRate counted_rate(int64_t count, int64_t total);

// How many trials have each outcome, in the order of the enum.
using OutcomeCounts = std::array<int64_t, kAllOutcomes.size()>;

// Trials whose flips have something in common, or all of them.
struct TrialGroup {
  std::string name{};
  int64_t trials = 0;
  OutcomeCounts outcomes{};
  OutcomeCounts top_exponent{};  // those that flip the highest bit of an exponent
  OutcomeCounts sign_only{};     // those that flip a sign, and no such bit
  CountedRate nev{};
  CountedRate harm{};  // by the rule that was asked for
  int64_t harm_top_exponent = 0, harm_sign_only = 0;  // those of top_exponent, sign_only
  // Trials whose accuracy after loading is below the golden one by what counts as
  // degraded at the end. Some of them recover. The total has only trials that have
  // evaluated an accuracy after loading; it is 0 if the golden run has not.
  CountedRate low_after_loading{};
  double seconds = 0;   // that they took together
  int64_t guessed = 0;  // trials with a flip whose role only a name suggests
};

struct CampaignAnalysis {
  CampaignFile file{};  // that of the first part
  HarmRule rule{};
  TrialGroup all{};
  // By bit, if trials flip one bit each: "F32 bit 30". Otherwise by whether one of the
  // flips is the highest bit of an exponent: "with a top exponent bit", "without one".
  std::vector<TrialGroup> by_bit{};
  std::vector<TrialGroup> by_role{};   // "several" for trials with flips in several
  std::vector<TrialGroup> by_layer{};  // the same
};

// Reads the folder of a campaign, or those of its parts, which are counted together. A
// campaign that is still running has the trials that are recorded so far. Fails with
// kConflict unless all parts have the same base, thresholds and golden run, and with
// kInvalid if the golden run has no accuracy and the rule needs one.
Result<CampaignAnalysis> analyse_campaign(Env& env, std::span<const Path> parts,
                                          const HarmRule& rule = {});

// How much further one tensor's state is from the golden one in A than in B.
struct DistancePairs {
  std::string tensor{};
  int64_t pairs = 0;
  int64_t above = 0, below = 0;  // pairs whose ratio is at least the margin away from 0
  // Of log10(distance in A / distance in B). Distances that are equal count as 0.
  QuantileInterval log_ratio{};
  // Of the sign test that the median lies within the margin: small if it surely does.
  double within_p = 1;
  double within_holm_p = 1;  // the same, corrected for the number of tensors
};

inline constexpr double kDistanceMargin = 0.3;

struct PairedAnalysis {
  HarmRule rule{};
  PairCounts harm{};
  double difference = 0;  // the rate of harm in A minus that in B
  Interval interval{};
  double p = 1;  // McNemar's
  int64_t equal = 0;  // pairs with the same outcome
  // Pairs that ended with equal numbers. Those that are not finite do not count: all NaNs
  // are recorded alike, so they say nothing about bits.
  int64_t equal_bits = 0;
  int64_t nev_once = 0;     // pairs with N-EV in one only
  int64_t without_end = 0;  // pairs of which one has no finite state at its end
  bool same_golden = false;
  // The deadlines of A and B in seconds, and the pairs that timed out in one of them
  // only. If the deadlines differ, that may be all that makes these pairs differ.
  double deadline_a = 0, deadline_b = 0;
  int64_t timed_out_once = 0;
  // Pairs without an end or a finite distance are left out.
  std::vector<DistancePairs> distances{};
};

struct PairedFolders {
  std::vector<Path> a{}, b{};  // the parts of two campaigns, as many of both
  // Whether the base of B is that of A in another format, with other names and places of
  // the same numbers. Then plans are the same if they change the same numbers alike.
  bool converted = false;
  HarmRule rule{};
};

// Compares two campaigns with the same plans, part by part and trial by trial. Trials
// that only one of them has are left out. Fails with kConflict if the bases or plans are
// not the same, and with kNotFound if there is no common trial.
Result<PairedAnalysis> analyse_pairs(Env& env, const PairedFolders& folders);

// Campaigns as parts of one population, each with the weight of its sites.
struct StrataAnalysis {
  HarmRule rule{};
  int64_t trials = 0;
  RateEstimate harm{};
  RateEstimate nev{};
};

// Fails with kInvalid if a campaign has no number of sites (--anywhere, --plan).
Result<StrataAnalysis> analyse_strata(Env& env, std::span<const Path> folders,
                                      const HarmRule& rule = {});

}  // namespace holdfast
