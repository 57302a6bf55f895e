// How often each storage tier is written: memory often, disk less, remote rarely.
//
// Each tier has its price per save and the failures that only it (or a further one) can
// mend. Intervals are nested: each is a whole number of the tier's before it, so that
// every save of a tier is one of all nearer tiers too.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "holdfast/base/result.h"

namespace holdfast {

struct TierCost {
  std::string name;
  double stall = 0;    // seconds that writing to this tier adds to a save
  double persist = 0;  // until it is there; the interval is not shorter
  // Mean time between failures that need this tier: the nearer ones did not survive.
  double mtbf = std::numeric_limits<double>::infinity();
};

struct TierInterval {
  double interval = 0;  // seconds of work
  int64_t each = 1;     // every so many saves of the nearest tier
  double overhead = 0;  // its stalls and lost work, as a share of time
};

// The nested intervals of least overhead, sum of stall/t + (t/2 + persist)/mtbf: the best
// common factors near the ratio of the tiers' own best intervals, and for them the exact
// minimum. Fails with kInvalid on negative costs or if no failure needs any tier.
Result<std::vector<TierInterval>> plan_tiers(std::span<const TierCost> tiers);

}  // namespace holdfast
