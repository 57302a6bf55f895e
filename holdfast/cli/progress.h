// Shows the progress of long work on one line of a terminal. The line is overwritten by
// each update and cleared at the end:
//
//   verify step-00000400   42 %  1.26 GB of 3.00 GB  1.81 GB/s  0:01 left
//   campaign   42 %  162 of 385  0.65/s  5:43 left
#pragma once

#include <iosfwd>
#include <optional>
#include <string>

#include "holdfast/cli/command.h"
#include "holdfast/env/env.h"
#include "holdfast/store/step_check.h"

namespace holdfast {

// What is counted.
enum class ProgressUnit { kBytes, kTrials };

// Prints nothing unless err is a terminal. Only one thread at a time may use it. The
// Env and the stream of the context must outlive it. The destructor clears the line.
class ProgressBar {
 public:
  ProgressBar(const Context& context, const std::string& label,
              ProgressUnit unit = ProgressUnit::kBytes);
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Updates the line at most ten times a second.
  void update(int64_t done, int64_t total);
  // Clears the line, so that other output can be printed.
  void clear();
  // Returns a function that calls update(). The bar must outlive it.
  Progress callback();

 private:
  std::string amount(int64_t count) const;
  std::string rate(double each_second) const;
  std::string line(int64_t done, int64_t total, Duration passed) const;

  Env& env_;
  // Null if nothing is shown.
  std::ostream* stream_;
  const std::string label_;
  const ProgressUnit unit_;
  const Instant began_;
  std::optional<Instant> drawn_{};
  bool visible_ = false;
};

}  // namespace holdfast
