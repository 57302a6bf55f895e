// When a save that failed is tried again: at once, and then after pauses that grow.
#pragma once

#include <algorithm>
#include <optional>

#include "holdfast/env/env.h"

namespace holdfast {

class Retries {
 public:
  void failed(Instant now) {
    constexpr Duration kFirst = std::chrono::seconds(1);
    constexpr Duration kLongest = std::chrono::seconds(60);
    next_ = now + pause_;
    pause_ = std::clamp(pause_ * 2, kFirst, kLongest);
    failing_ = true;
  }
  void succeeded() { *this = {}; }

  // True from the first failure until a save succeeds. Meanwhile the schedule asks for
  // no saves.
  bool failing() const { return failing_; }
  // True once after each failure, when it is time to try again.
  bool is_due(Instant now) {
    if (!next_.has_value() || now < *next_) return false;
    next_.reset();
    return true;
  }

 private:
  std::optional<Instant> next_;
  Duration pause_ = Duration::zero();
  bool failing_ = false;
};

}  // namespace holdfast
