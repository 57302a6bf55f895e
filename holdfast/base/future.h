// A value that one thread delivers later and that other threads wait for. All calls are
// safe from several threads.
#pragma once

#include <chrono>
#include <optional>
#include <utility>

#include "holdfast/base/mutex.h"

namespace holdfast {

template <typename T>
class Future {
 public:
  // Sets the value and wakes all waiting threads. Only the first call sets it; later
  // calls change nothing.
  void keep(T value) {
    MutexLock lock(mutex_);
    if (!value_.has_value()) value_ = std::move(value);
    kept_.notify_all();
  }
  // Waits for the value, without a limit. The reference is valid as long as this
  // object.
  const T& wait() {
    MutexLock lock(mutex_);
    while (!value_.has_value()) kept_.wait(mutex_);
    return *value_;
  }
  // Waits for the value, but not longer than `at_most`. Afterwards the value may still
  // be missing.
  void await_a_moment(std::chrono::milliseconds at_most) {
    MutexLock lock(mutex_);
    if (!value_.has_value()) kept_.wait_for(mutex_, at_most);
  }

 private:
  Mutex mutex_;
  Condition kept_;
  std::optional<T> value_ HOLDFAST_GUARDED_BY(mutex_);
};

}  // namespace holdfast
