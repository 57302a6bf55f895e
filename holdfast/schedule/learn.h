// Learns from the events of earlier processes what saves cost and how often the job
// fails.
#pragma once

#include <span>

#include "holdfast/env/event.h"
#include "holdfast/schedule/scheduler.h"

namespace holdfast {

// `events` are the events of one rank in their order (env/event_log.h). save_cost gives
// the costs, and in logs of older versions save_captured and save_durable do, whose
// stalls are too long. A process lasts from job_opened to job_closed. If a
// process has no job_closed before another process takes the run over, it was killed or
// has failed. That counts as a failure, whatever step the next process restored. The
// last process in the list may still be running and does not count as a failure.
//
// job_rejoined, and a job_opened that says that it joined others, show that a rank was
// lost and the others went on. Nothing was read from a checkpoint then, so that counts as
// recovered and not as a failure.
//
// Logs of older versions have neither job_opened nor job_closed. In them run_taken_over
// tells how a process ended: it has failed unless its owner "let go". `restored`
// without run_taken_over ends a process too.
//
// Exposure is the time from the first event of a process to its last event, or to the
// last renewal of its lease that run_taken_over names. The time until the next start
// does not count. Other events, and fields of another type, are ignored. `workers` is
// the number of workers all the time.
Learned learn(std::span<const EventRecord> events, int64_t workers = 1);

}  // namespace holdfast
