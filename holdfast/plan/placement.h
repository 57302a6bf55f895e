// Allocation: which device takes which position of a new parallel configuration, so that
// the most bytes are where they are wanted already; and, when a job shrinks, which devices
// to give up.
//
// A position's worth on a device is the bytes of its target boxes that the device holds.
// Groups of positions that talk much (tensor parallelism) stay inside one host:
//
//   a host takes at most one group   exact: an assignment of groups to hosts, where a pair
//                                    is worth its best inner assignment
//   a host takes several groups      groups to host slots by the same worth, exact inside
//                                    each host, then swaps of groups while they help
//   a group is larger than a host    it fills whole hosts: hosts to groups likewise
//
// In the last two the result may miss the best; it says by how much at most, as the gap to
// the assignment without any host constraint.
#pragma once

#include <cstdint>
#include <vector>

#include "holdfast/state/collection.h"

namespace holdfast {

struct PlaceOptions {
  // Positions 0 .. positions-1 are the first holders of the target's layout.
  uint32_t positions = 0;
  // Positions [k*group, (k+1)*group) belong together: the tensor-parallel degree.
  uint32_t group = 1;
};

struct Placement {
  std::vector<uint32_t> device_of_position;  // indices into `devices`
  std::vector<uint32_t> released;            // devices that get no position
  int64_t kept = 0;        // bytes that positions find on their devices
  int64_t kept_bound = 0;  // the most without the host constraint
  bool exact = false;      // no placement that keeps groups together is better
};

// `devices` are the memories that may be used; the source's holders among them are known
// by name. Fails with kInvalid on more positions than devices, or groups that do not fit
// the hosts, with kUnsupported on more than 8192 positions, and as plan() does on a source that lacks something.
Result<Placement> place(const Collection& source, const Collection& target,
                        const Topology& topology, const std::vector<Holder>& devices,
                        const PlaceOptions& options);

}  // namespace holdfast
