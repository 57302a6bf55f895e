// What `interval` and `simulate` print.
#pragma once

#include <span>
#include <string>

#include "holdfast/cli/schedule_options.h"
#include "holdfast/schedule/comparison.h"
#include "holdfast/schedule/recommend.h"
#include "holdfast/schedule/simulate.h"

namespace holdfast {

// "5.0 s", "4.4 min", "never"
std::string human_seconds(double seconds);

struct IntervalReport {
  ReadProblem read;
  Recommendation best;
  Comparison all;
  struct Sensitive {
    double factor;    // on the mean time between failures
    double interval;  // what would be right then
    double loss;      // of keeping the plan, as a share of what that one costs
  };
  std::vector<Sensitive> sensitivity;
  // The cost of even intervals, for the chart.
  std::vector<std::pair<double, double>> curve;
};

std::string interval_text(const IntervalReport& report);
std::string interval_json(const IntervalReport& report);

struct SimulationReport {
  ReadProblem read;
  SimulateOptions options;
  std::string failures;
  std::vector<Simulated> plans;
  std::vector<std::optional<double>> expected;  // overhead by the closed form
};

std::string simulation_text(const SimulationReport& report);
std::string simulation_json(const SimulationReport& report);

// A line of `#` that is `share` of the widest.
std::string bar(double share);

}  // namespace holdfast
