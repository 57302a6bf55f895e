// How much memory the machine can still give, and to how many.
#pragma once

#include <optional>

#include "holdfast/env/env.h"
#include "holdfast/store/process.h"
#include "holdfast/transport/transport.h"

namespace holdfast {

// Bytes that can be used without swapping: what /proc/meminfo calls MemAvailable, or a
// GiB where there is no such file; not more than the control group of this process may
// still take.
int64_t free_memory(Env& env);

// How many ranks share the memory of this rank's machine, itself among them: all say which
// start of a machine they run on. A rank that does not know is with all others of the kind.
// Collective. `self` is this process if not set; `transport` is null for one rank.
Result<int> ranks_here(Env& env, Transport* transport,
                       const std::optional<Identity>& self, Duration at_most);

// What one of so many may take for a ring: all of them a quarter of what is free.
int64_t ring_share(Env& env, int ranks_here);

}  // namespace holdfast
