// A value that one thread owes others, who wait for it.
#pragma once

#include <chrono>
#include <optional>
#include <utility>

#include "holdfast/base/mutex.h"

namespace holdfast {

template <typename T>
class Future {
 public:
  // The first one counts.
  void keep(T value) {
    MutexLock lock(mutex_);
    if (!value_.has_value()) value_ = std::move(value);
    kept_.notify_all();
  }
  // As long as the promise lives.
  const T& wait() {
    MutexLock lock(mutex_);
    while (!value_.has_value()) kept_.wait(mutex_);
    return *value_;
  }
  // For a moment; it may not be there then.
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
