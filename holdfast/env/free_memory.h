// How much memory is free on this machine.
#pragma once

#include "holdfast/env/env.h"

namespace holdfast {

// Bytes that can be used without swapping: MemAvailable of /proc/meminfo, or one GiB if
// there is no such file, but not more than the control group of this process, and each
// group around it, may still use.
int64_t free_memory(Env& env);

}  // namespace holdfast
