// A campaign: many trials, each of which alters a copy of a checkpoint by a plan of its
// own, lets a program continue the training from it, and says what has become of it
// (outcome.h).
//
//   1. The golden run: the program continues from an unaltered copy, twice. Both runs
//      must agree in every bit, because otherwise nothing can be said about a fault.
//   2. Trial i makes the plan of (seed, i), alters a copy, runs the program, and judges
//      its log, and its state if that is asked for, against the golden run.
//   3. The record of a trial is appended to trials.jsonl and made durable. A campaign
//      that was interrupted continues with the trials that have no record.
//
// If trials share a process (serve), something may leak from one into the next. So the
// golden run is repeated after every 50 trials, and at the end. If it is not as before,
// the trials since the last golden run are repeated, each in a process of its own.
// Records are written after such a golden run only.
//
// A campaign's folder holds:
//
//   campaign.json   the settings, the golden log, what is predicted (campaign_file.h)
//   trials.jsonl    the records (trial_record.h)
//   golden-state    the state at the end of the golden run, if states are compared
//   work.*          the files of the trial that runs; each call has a folder of its own
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "holdfast/campaign/outcome.h"
#include "holdfast/campaign/trial_runner.h"
#include "holdfast/corruption/alter.h"
#include "holdfast/corruption/make_plan.h"
#include "holdfast/store/step_check.h"

namespace holdfast {

struct CampaignOptions {
  Path base{};
  Path folder{};
  // The plan of a trial, whose number replaces PlanRequest::trial.
  PlanRequest request{};
  RoleMap roles{};  // the user's, if there is one
  // The request as its author wrote it, for campaign.json: {{"tensors", "model.*"}, ...}.
  std::vector<std::pair<std::string, std::string>> selection{};
  bool anywhere = false;          // any bit of the files, not only of tensors
  std::vector<FlipPlan> plans{};  // if not empty, the plans of the trials
  Fixing fixing = Fixing::kConsistent;
  int64_t trials = 1;
  std::vector<std::string> command{};
  bool state = false;
  bool serve = false;
  Thresholds thresholds{};
  // How long a trial or a golden run may take. By default 10 times the golden run, at
  // least 10 s.
  std::optional<double> deadline{};
  int64_t golden_every = 50;  // trials, for programs that serve many
};

// What a campaign knows after its golden runs.
struct GoldenReport {
  int64_t runs = 0;      // of this call
  double seconds = 0;    // of one run
  int64_t steps = 0;
  int64_t trials = 0;    // of the whole campaign
  int64_t recorded = 0;  // before this call
  double deadline = 0;
};

struct CampaignWatch {
  std::function<void(const GoldenReport&)> golden{};
  Progress progress{};  // in trials of this call
  // Asks to stop. If trials that shared a process are unchecked, the trial under way may
  // end, and the golden run checks them, each within its deadline.
  Stopped stopped{};
  // Called once, when a stop waits for that, with the number of unchecked trials.
  std::function<void(int64_t unchecked)> waits{};
  // Asks to stop at once. Trials that are unchecked then stay to do.
  Stopped stopped_again{};
};

struct CampaignResult {
  GoldenReport golden{};
  int64_t done = 0;      // trials of this call
  int64_t repeated = 0;  // of these: in a process of their own, after a leak
  // Drawn sites of this call that were passed over because they were never written.
  int64_t unwritten = 0;
  bool stopped = false;  // before all trials were done
};

// Failures, besides those of make_plan(), check_alteration() and the program's start:
//   kInvalid      the options make no sense
//   kConflict     the folder holds something else than this campaign, or another
//                 process works in it
//   kUnavailable  the golden run failed, or the golden runs differ; the message names
//                 the step and the metric, or the tensor
// Before the first golden run is known to be good, nothing is left behind.
Result<CampaignResult> run_campaign(Env& env, const CampaignOptions& options,
                                    const CampaignWatch& watch = {});

}  // namespace holdfast
