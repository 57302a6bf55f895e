// The study's measurements: COCI's own range of parameters, under every way to count.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "holdfast/schedule/comparison.h"
#include "holdfast/schedule/simulate.h"

namespace holdfast {

// Which failures a cell is measured under.
enum class Scenario { kPoisson, kNone, kOnce, kFirst10, kFirst25, kInjected, kStop25 };
inline constexpr size_t kScenarios = 7;

struct StudyCell {
  double stall;   // s
  double rate;    // failures a minute
  double theta1;  // of the loss, a minute
  std::vector<Contestant> plans;
  std::array<std::vector<Simulated>, kScenarios> seen;  // by plan

  std::vector<double> expected;  // of the paper's metric, by plan, to the first order

  double expected_change(std::string_view plan, std::string_view other) const;
  const Simulated& at(Scenario scenario, std::string_view plan) const;
  // The plan's mean over the other's, minus 1.
  double change(Scenario scenario, std::string_view plan, std::string_view other,
                Metric metric = Metric::kProgress) const;
};

// What counts in a scenario: all of it, or until the stop.
Metric progress_of(Scenario scenario);

// Stalls of 0.13 to 1.6 s, MTBF of 4 to 70 h, decay of 0.01 to 0.2 a minute, one hour.
Result<std::vector<StudyCell>> study_cells();

// The largest excess of the optimum over any planner on its own objective, over all cells,
// and how many exceed max(0.5 %, the confidence interval corrected for all comparisons).
struct OwnObjective {
  std::string objective, measured;
  int64_t comparisons = 0, beaten = 0;
  double worst = 0;     // relative excess of the optimum
  double worst_ci = 0;  // corrected, of that one
};
Result<std::vector<OwnObjective>> study_own_objectives();

// The repository's example under its injection, one entry a phase: COCI against Young.
Result<std::vector<double>> study_phases();

struct ShrinkingJob {
  std::string workers, job;
  std::vector<Simulated> plans;  // the first is what others are against
};
// A shrinking data-parallel job, its overhead in worker-seconds.
Result<std::vector<ShrinkingJob>> study_parallel();

}  // namespace holdfast
