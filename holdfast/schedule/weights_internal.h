// For each objective: what a save costs at x, and what a failure at x costs for each
// second of age. grid.h integrates these functions.
#pragma once

#include <vector>

#include "holdfast/schedule/problem.h"

namespace holdfast {

// One danger at the nodes of an even mesh over [0, length].
struct Danger {
  bool in_time = true;  // whether a rollback loses seconds; otherwise it loses loss
  std::vector<double> left;  // what can still be gained from x on, in that unit
  std::vector<double> rate;
  // Jumps of the rate: at this time a share of all jobs is stopped.
  struct Jump {
    double time = 0, mass = 0, left = 0;
  };
  std::vector<Jump> jumps;
};

struct Weights {
  // The price of a save at every second node.
  std::vector<double> price;
  std::vector<Danger> dangers;
};

// Computes the weights on 2n + 1 nodes. The problem must have passed check().
Weights weigh(const Problem& problem, int64_t n);

// The shortest interval between saves that the job needs anywhere. To the first order
// the density of saves is sqrt(B / 2A), where A is the price of a save and B is what
// failures cost for each second of age.
double shortest_interval(const Problem& problem);

}  // namespace holdfast
