// Placement of more positions than can be assigned exactly: thousands of positions have
// few kinds of contents, or few bytes in common with most devices. So it works on kinds
// and on the pairs that have something in common, and takes the best pairs first.
#pragma once

#include "holdfast/plan/placement.h"

namespace holdfast {

// Like place(), with two differences: groups are given to hosts greedily, by the bytes
// that they find there, and only the devices of a host are assigned exactly. And
// kept_bound is a bound that may not be reached: no position keeps more than on its best
// device, and no device more than for its best position. The arguments must have been
// checked. Fails with kUnsupported if more than 2^26 pairs of kinds have bytes in common.
Result<Placement> place_greedily(const Collection& source, const Collection& target,
                                 const Topology& topology,
                                 const std::vector<Holder>& devices,
                                 const PlaceOptions& options);

}  // namespace holdfast
