// What the events of earlier processes say about saves and failures.
#pragma once

#include <span>

#include "holdfast/base/event.h"
#include "holdfast/schedule/scheduler.h"

namespace holdfast {

// From one rank's events in their order (base/event_log.h): save_captured and save_durable
// give the costs, `restored` ends a process. Such an end is a failure unless the state
// restored was the last one captured: then nothing was lost, as on a planned stop. Time
// between a process's last event and the next one's first is no exposure. Other events
// and fields of another type are passed over. `workers` were at work all the time.
Learned learn(std::span<const EventRecord> events, int64_t workers = 1);

}  // namespace holdfast
