// The output of `interval` and `simulate`.
#pragma once

#include <span>
#include <string>

#include "holdfast/cli/schedule_options.h"
#include "holdfast/schedule/policies.h"
#include "holdfast/schedule/recommend.h"
#include "holdfast/schedule/simulate.h"

namespace holdfast {

// A time for people: "5.0 s", "4.4 min", "never".
std::string human_seconds(double seconds);

struct IntervalReport {
  ReadProblem read;
  Recommendation best;
  Comparison all;
  struct Sensitive {
    double factor;    // the factor on the mean time between failures
    double interval;  // the interval that would be right then
    double loss;  // what keeping the schedule costs more, as a share of the least cost
  };
  std::vector<Sensitive> sensitivity;
  // Even intervals and their costs, for the chart.
  std::vector<std::pair<double, double>> curve;
};

std::string interval_text(const IntervalReport& report);
std::string interval_json(const IntervalReport& report);

struct SimulationReport {
  ReadProblem read;
  SimulateOptions options;
  std::string failures;
  std::vector<SimulatedSchedule> schedules;
  // The overhead by the closed form, if there is one for the schedule.
  std::vector<std::optional<double>> expected;
};

std::string simulation_text(const SimulationReport& report);
std::string simulation_json(const SimulationReport& report);

// A bar of `#` characters. Its length is `share` of the widest bar.
std::string bar(double share);

}  // namespace holdfast
