// An EventSink that keeps all events in memory.
#pragma once

#include <vector>

#include "holdfast/base/mutex.h"
#include "holdfast/env/event.h"

namespace holdfast {

class CollectingSink : public EventSink {
 public:
  void put(const EventRecord& record) override {
    MutexLock lock(mutex_);
    records_.push_back(record);
  }
  std::vector<EventRecord> records() const {
    MutexLock lock(mutex_);
    return records_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<EventRecord> records_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
