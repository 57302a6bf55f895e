// Points in time. Only an Env knows what time it is.
#pragma once

#include <chrono>

namespace holdfast {

using Duration = std::chrono::nanoseconds;
// A time that never goes back, for deadlines and measuring. Meaningless outside this
// process.
using Instant = std::chrono::time_point<std::chrono::steady_clock, Duration>;
// The time since 1970 UTC, for people and for comparing machines. May jump.
using WallTime = std::chrono::sys_time<Duration>;

inline constexpr Instant kNoDeadline = Instant::max();

}  // namespace holdfast
