// What a fault has done to a training: the outcomes of trials.
//
// A trial has the first outcome of this list that fits:
//
//   refused    the program did not accept the checkpoint (is_refusal())
//   crashed    it failed, or ended before the last step
//   timed out  it did not end before the deadline
//   N-EV       "not a number or extreme value": a metric is not finite where that of the
//              golden run is, or a loss is more than 1,000 times that of the golden run
//   degraded   at the end the accuracy is at least 5 points below that of the golden
//              run, or the loss is more than 1.1 times that of the golden run
//   spiked     a loss was more than twice that of the golden run, and recovered
//   benign     the numbers differ from those of the golden run, and that is all
//   masked     all numbers, and the state if it is compared, have equal bits
//
// A trial up to "degraded" counts as harm.
#pragma once

#include <array>
#include <string>

#include "holdfast/campaign/training_log.h"

namespace holdfast {

enum class Outcome {
  kRefused,
  kCrashed,
  kTimedOut,
  kNev,
  kDegraded,
  kSpiked,
  kBenign,
  kMasked,
};

inline constexpr std::array kAllOutcomes{
    Outcome::kRefused,  Outcome::kCrashed, Outcome::kTimedOut, Outcome::kNev,
    Outcome::kDegraded, Outcome::kSpiked,  Outcome::kBenign,   Outcome::kMasked};

std::string_view name_of(Outcome outcome);  // "refused", "timed out", "N-EV", ...
Result<Outcome> parse_outcome(std::string_view name);

inline bool is_harm(Outcome outcome) { return outcome <= Outcome::kDegraded; }

struct Thresholds {
  double extreme_loss = 1000;      // times the golden loss
  double degraded_accuracy = 5;    // points below the golden accuracy
  double degraded_loss = 1.1;      // times the golden loss
  double spiked_loss = 2;          // times the golden loss

  static void fields(auto& self, auto&& field) {  // base/json_fields.h
    field("extreme_loss", self.extreme_loss);
    field("degraded_accuracy", self.degraded_accuracy);
    field("degraded_loss", self.degraded_loss);
    field("spiked_loss", self.spiked_loss);
    field.allow_unknown();
  }
  friend bool operator==(const Thresholds&, const Thresholds&) = default;
};

// "N-EV above 1000 x, degraded from 5 points or above 1.1 x, spiked above 2 x".
std::string to_string(const Thresholds& thresholds);

// How the program of a trial has ended.
struct TrialEnd {
  enum class Kind {
    kFinished,
    kFailed,
    kTimedOut,
    kStopped,  // the campaign was asked to stop; the trial has no outcome
  };
  Kind kind = Kind::kFinished;
  int code = 0;         // the exit code if it failed and exited
  std::string how{};    // "exit code 1", "signal 9 (Killed)"
  std::string said{};   // the end of what it printed on stderr, or its exception
  double seconds = 0;
};

// Whether a program that failed has refused the checkpoint: it exited with 3, which is
// Holdfast's exit code for damage, or it failed before it had logged anything and said
// one of the words with which known libraries report a damaged file.
bool is_refusal(const TrialEnd& end, const TrainingLog& log);

// Fails with kInvalid, naming the first step, unless all losses of a golden run are above
// 0 or not finite. Losses are compared as ratios, which say nothing at 0 and below.
Result<void> check_losses(const TrainingLog& golden);

struct Judged {
  Outcome outcome = Outcome::kBenign;
  std::string why{};
};

// `same_state` is false if the state at the end differs from that of the golden run.
Judged judge(const TrialEnd& end, const TrainingLog& log, const TrainingLog& golden,
             bool same_state, const Thresholds& thresholds);

}  // namespace holdfast
