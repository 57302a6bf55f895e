// What a person should hear of while the job goes on: saves that were dropped, tiers that
// did not get their copy.
#pragma once

#include <string>
#include <vector>

#include "holdfast/base/event.h"

namespace holdfast {

// Passes events on, and keeps a sentence of some of them until it is asked for: a warning,
// or a note of what is as it should be and yet not to be done in silence. Safe from several
// threads.
class Warnings : public EventSink {
 public:
  // `next` may be null; else it must outlive this.
  explicit Warnings(EventSink* next = nullptr) : next_(next) {}

  void put(const EventRecord& record) override;
  // Those since the last call, in order.
  std::vector<std::string> take();
  std::vector<std::string> take_notes();

 private:
  EventSink* const next_;
  Mutex mutex_;
  std::vector<std::string> kept_ HOLDFAST_GUARDED_BY(mutex_);
  std::vector<std::string> notes_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
