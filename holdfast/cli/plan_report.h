// What `holdfast plan` shows a person.
#pragma once

#include <string>

#include "holdfast/models/resize.h"

namespace holdfast {

// A column of the report.
struct PlanColumn {
  std::string title;
  const Plan& plan;
};

// The figures of several plans beside each other, each with its lower bound.
std::string figures_text(const std::vector<PlanColumn>& columns);
// Bytes between hosts: a matrix while that can be read, else the busiest links.
std::string links_text(const Plan& plan, const Topology& topology);
// Where the positions go and which devices can be given up.
std::string placement_text(const Resize& resize);

}  // namespace holdfast
