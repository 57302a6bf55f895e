// How much memory of the machine a rank may use for its ring, beside the other ranks.
#pragma once

#include <optional>

#include "holdfast/env/env.h"
#include "holdfast/store/process.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

// How many ranks, this one included, share the memory of this rank's machine. Called by
// all ranks together, which compare the boot ids of their machines. Ranks that do not
// know their boot id are counted as being on one machine. If `self` is not set it is
// this process. `transport` is null for a job of one rank.
Result<int> ranks_here(Env& env, Transport* transport,
                       const std::optional<Identity>& self, Duration at_most);

// How many bytes each of the ranks on a machine may use for its ring: together they use
// a quarter of the free memory.
int64_t ring_share(Env& env, int ranks_here);

}  // namespace holdfast
