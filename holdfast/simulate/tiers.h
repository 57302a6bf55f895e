// Chooses how often each storage tier is written: memory often, disk less often, remote
// storage rarely.
//
// Each tier has a cost for each save, and failures that only it or a further tier can
// repair. Intervals are nested: each is a whole multiple of the interval of the tier
// before it, so that every save to a tier is also a save to all nearer tiers.
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
  double persist = 0;  // seconds until it is there; the interval is never shorter
  // Mean time between failures that need this tier, because nearer tiers do not survive
  // them.
  double mtbf = std::numeric_limits<double>::infinity();
};

struct TierInterval {
  double interval = 0;  // seconds of work
  int64_t each = 1;     // one of so many saves to the nearest tier goes to this tier
  double overhead = 0;  // stalls and lost work of this tier, as a share of time
};

// The nested intervals of least overhead, which is the sum of stall/t + (t/2 +
// persist)/mtbf. Tries multiples near the ratio of the intervals that the tiers would
// have alone, and computes the exact minimum for each. Fails with kInvalid for negative
// costs, or if no failure needs any tier.
Result<std::vector<TierInterval>> tier_intervals(std::span<const TierCost> tiers);

}  // namespace holdfast
