// Placement: which device takes which position of a new parallel configuration, so that
// as many bytes as possible are already where they are needed; and, when a job shrinks,
// which devices it gives up.
//
// The worth of a device for a position is how many bytes of the position's boxes the
// device holds. Groups of positions that exchange much (tensor parallelism) stay inside
// one host:
//
//   a host takes at most one group   exact: an assignment of groups to hosts. The worth
//                                    of a host for a group is the best assignment
//                                    inside it.
//   a host takes several groups      an assignment of groups to places on hosts by the
//                                    same worth, exact inside each host; then groups
//                                    are swapped while that helps
//   a group is larger than a host    it fills whole hosts: hosts are assigned to groups
//                                    in the same way, and swapped
//
// In the last two cases the result may be worse than the best one. kept_bound says by
// how much at most: it is the result without the rule that groups stay together.
//
// The time of these assignments grows with the cube of the number of positions. So more
// than PlaceOptions::assigned_at_once positions are placed greedily first
// (large_placement.h). If that is not proven to be the best, they are assigned all the
// same, up to PlaceOptions::assigned_at_most.
#pragma once

#include <cstdint>
#include <vector>

#include "holdfast/state/collection.h"

namespace holdfast {

struct PlaceOptions {
  // Positions 0 .. positions-1 are the first holders of the target's layout.
  uint32_t positions = 0;
  // Positions [k*group, (k+1)*group) must stay together. It is the tensor-parallel
  // degree.
  uint32_t group = 1;
  uint32_t assigned_at_once = 1 << 9;   // takes less than a second
  uint32_t assigned_at_most = 1 << 13;  // takes minutes
};

struct Placement {
  std::vector<uint32_t> device_of_position;  // indices into `devices`
  std::vector<uint32_t> released;            // devices that get no position
  int64_t kept = 0;        // bytes that positions already have on their devices
  int64_t kept_bound = 0;  // no placement keeps more, even if groups are torn apart
  bool exact = false;      // true: no placement that keeps groups together is better
};

// `devices` are the memories that may be used; they may be holders of the source, which
// are found by name. Fails with kInvalid on more positions than devices or groups that
// do not fit the hosts, like place_greedily() on many positions, and like plan() on a
// source that lacks something.
Result<Placement> place(const Collection& source, const Collection& target,
                        const Topology& topology, const std::vector<Holder>& devices,
                        const PlaceOptions& options);

}  // namespace holdfast
