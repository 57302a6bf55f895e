// How far long work is, on one line of a terminal that is overwritten and in the end gone:
//
//   verify step-00000400   42 %  1.26 GB of 3.00 GB  1.81 GB/s  0:01 left
#pragma once

#include <iosfwd>
#include <optional>
#include <string>

#include "holdfast/cli/command.h"
#include "holdfast/env/env.h"
#include "holdfast/store/step_check.h"

namespace holdfast {

// Silent unless the context's err is a terminal. One thread at a time; env and stream must
// outlive it. Wipes its line when it goes.
class ProgressBar {
 public:
  ProgressBar(const Context& context, std::string label);
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Draws at most ten times a second.
  void update(int64_t done, int64_t total);
  // Wipes the line; for output in between.
  void clear();
  // Calls update(); the bar must outlive it.
  Progress callback();

 private:
  std::string line(int64_t done, int64_t total, Duration passed) const;

  Env& env_;
  std::ostream* stream_;  // null: silent
  const std::string label_;
  const Instant began_;
  std::optional<Instant> drawn_{};
  bool visible_ = false;
};

}  // namespace holdfast
