// The report of `holdfast plan` for people.
#pragma once

#include <string>

#include "holdfast/models/resize.h"

namespace holdfast {

// A column of the report.
struct PlanColumn {
  std::string title;
  const Plan& plan;
};

// The figures of several plans side by side, each with its lower bound.
std::string figures_text(const std::vector<PlanColumn>& columns);
// The bytes between hosts: as a matrix for up to 8 hosts, otherwise the 10 busiest links,
// or `all` of them.
std::string links_text(const Plan& plan, const Topology& topology, bool all);
// What each device sends, passes on and receives.
std::string holders_text(const Plan& plan, const Topology& topology);
// The speed at which times were counted.
std::string speed_text(const Topology& topology);
// How long the plan takes by the speeds that were given.
std::string cost_text(const Cost& cost);
// Prints the device of each position, the devices that can be released, and what it costs
// that groups of `group` positions stay together. Of more than 64 positions, only the
// first are printed unless `all`.
std::string placement_text(const Resize& resize, int64_t group, bool all);

}  // namespace holdfast
