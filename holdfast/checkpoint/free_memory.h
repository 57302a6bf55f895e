// How much memory the machine can still give.
#pragma once

#include "holdfast/base/env.h"

namespace holdfast {

// Bytes that can be used without swapping: what /proc/meminfo calls MemAvailable, or a
// GiB where there is no such file; not more than the control group of this process may
// still take.
int64_t free_memory(Env& env);

}  // namespace holdfast
