// What the events of earlier processes say about saves and failures.
#pragma once

#include <span>

#include "holdfast/env/event.h"
#include "holdfast/schedule/scheduler.h"

namespace holdfast {

// From one rank's events in their order (base/event_log.h). save_captured and save_durable
// give the costs. A process is from job_opened to job_closed. One that has no job_closed
// before another takes the run over was killed or failed: that is a failure, whatever step
// the next one restored. The last process in the list may still be running and is none.
//
// Logs of older versions have neither mark. There run_taken_over tells how a process ended:
// it is a failure unless the owner "let go"; and `restored` without such an event ends one.
//
// Exposure is the time from a process's first event to its last, or to the moment at which
// run_taken_over says that its lease was last renewed: the time until the next start is
// none. Other events and fields of another type are passed over. `workers` were at work all
// the time.
Learned learn(std::span<const EventRecord> events, int64_t workers = 1);

}  // namespace holdfast
