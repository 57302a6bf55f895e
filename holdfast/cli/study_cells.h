// The measurements of the study: the range of parameters that COCI used, measured in
// every way that changes the answer.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "holdfast/schedule/comparison.h"
#include "holdfast/schedule/simulate.h"

namespace holdfast {

// The failures that a measurement simulates.
enum class Scenario { kPoisson, kNone, kOnce, kFirst10, kFirst25, kInjected, kStop25 };
inline constexpr size_t kScenarios = 7;

struct StudyCell {
  double stall;   // in seconds
  double rate;    // failures per minute
  double theta1;  // how fast the loss falls, per minute
  std::vector<Contestant> plans;
  std::array<std::vector<Simulated>, kScenarios> seen;  // for each scenario, by plan

  // The expected value of the paper's metric to the first order, by plan.
  std::vector<double> expected;

  double expected_change(std::string_view plan, std::string_view other) const;
  const Simulated& at(Scenario scenario, std::string_view plan) const;
  // The mean of `plan` divided by the mean of `other`, minus 1.
  double change(Scenario scenario, std::string_view plan, std::string_view other,
                Metric metric = Metric::kProgress) const;
};

// The metric of a scenario: the progress of the whole run, or until the stop.
Metric progress_of(Scenario scenario);

// Measures stalls of 0.13 to 1.6 s, MTBF of 4 to 70 h and a decay of 0.01 to 0.2 per
// minute, each for one hour of training.
Result<std::vector<StudyCell>> study_cells();

// Compares the optimum with all other planners on its own objective, over all cells.
// `worst` is the largest excess of the optimum, and `beaten` counts how often the
// excess is above max(0.5 %, the confidence interval corrected for all comparisons).
struct OwnObjective {
  std::string objective, measured;
  int64_t comparisons = 0, beaten = 0;
  double worst = 0;     // the largest relative excess of the optimum
  double worst_ci = 0;  // the corrected confidence interval of that excess
};
Result<std::vector<OwnObjective>> study_own_objectives();

// Compares COCI with Young on the example of COCI's public repository with its injected
// failures. There is one entry for each phase of the failures.
Result<std::vector<double>> study_phases();

struct ShrinkingJob {
  std::string workers, job;
  // The first plan is the one that the others are compared with.
  std::vector<Simulated> plans;
};
// Simulates shrinking data-parallel jobs and measures the overhead in worker-seconds.
Result<std::vector<ShrinkingJob>> study_parallel();

}  // namespace holdfast
