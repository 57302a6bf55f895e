// What a save costs and what a failure at x costs per second of age, for each objective:
// the functions of which grid.h takes the integrals.
#pragma once

#include <vector>

#include "holdfast/schedule/problem.h"

namespace holdfast {

// One danger at the nodes of an even mesh over [0, length].
struct Danger {
  bool in_time = true;       // a rollback loses seconds, else loss
  std::vector<double> left;  // what can still be gained from x on, in that unit
  std::vector<double> rate;
  // Jumps of the rate: a share of all jobs is stopped just then.
  struct Jump {
    double time = 0, mass = 0, left = 0;
  };
  std::vector<Jump> jumps;
};

struct Weights {
  std::vector<double> price;  // of a save, at each second node
  std::vector<Danger> dangers;
};

// On 2n + 1 nodes. The problem has been checked.
Weights weigh(const Problem& problem, int64_t n);

// The shortest interval that the first-order density sqrt(B / 2A) asks for anywhere.
double shortest_interval(const Problem& problem);

}  // namespace holdfast
