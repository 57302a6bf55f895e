// The output of `interval` and `simulate`.
#pragma once

#include <span>
#include <string>

#include "holdfast/base/json_fields.h"
#include "holdfast/cli/schedule_options.h"
#include "holdfast/schedule/policies.h"
#include "holdfast/schedule/recommend.h"
#include "holdfast/simulate/simulate.h"

namespace holdfast {

struct IntervalReport {
  ReadProblem read;
  Recommendation best;
  Comparison all;
  // Whether costs are exact for any number of failures, and not only to the first order.
  bool exact = false;
  // What the same rule recommends for another failure rate, and what the schedule of
  // this report costs then.
  struct Sensitive {
    double factor;        // the factor on the mean time between failures
    Recommendation best;  // even or uneven, as the recommendation of this report
    double kept;          // the cost of keeping the schedule of this report
  };
  std::vector<Sensitive> sensitivity;
  // Even intervals and their costs, for the chart.
  std::vector<std::pair<double, double>> curve;
};

std::string interval_text(const IntervalReport& report);
void put_members(FieldWriter& field, const IntervalReport& report);  // as JSON

struct SimulationReport {
  ReadProblem read;
  SimulateOptions options;
  std::string failures;
  std::vector<SimulatedSchedule> schedules;
  // The overhead by the closed form, if there is one for the schedule.
  std::vector<std::optional<double>> expected;
};

std::string simulation_text(const SimulationReport& report);
void put_members(FieldWriter& field, const SimulationReport& report);  // as JSON

// A bar of `#` characters. Its length is `share` of the widest bar.
std::string bar(double share);

}  // namespace holdfast
