// The log of a training: what it has measured at each step.
//
// A log is a file of JSON lines, each an object with "step" and metrics:
//
//   {"step": 0, "accuracy": 0.912}
//   {"step": 1, "loss": 0.3014}
//   {"step": 40, "loss": 0.2291, "accuracy": 0.943}
//
// Metrics are numbers. NaN and Infinity are accepted as Python writes them, also in
// quotes ("nan", "inf"), and null stands for NaN. Fields that are neither are ignored.
// "accuracy" is a fraction from 0 to 1. What is evaluated after loading stands in the
// line of step 0.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "holdfast/base/result.h"

namespace holdfast {

class JsonPlace;
class JsonWriter;

struct LogLine {
  int64_t step = 0;
  std::map<std::string, double> metrics{};

  std::optional<double> metric(const std::string& name) const;
};

struct TrainingLog {
  std::vector<LogLine> lines{};

  // The metric in the line of step 0, which is evaluated after loading. Nullopt if
  // nothing was evaluated then.
  std::optional<double> after_loading(const std::string& name) const;
  // The metric in the last line that has it.
  std::optional<double> last(const std::string& name) const;
  int64_t last_step() const { return lines.empty() ? 0 : lines.back().step; }
};

// Fails with kInvalid, naming the line, if a line is no such object, or if an accuracy is
// not from 0 to 1. An incomplete last line is left out if `torn` says that the training
// may have been interrupted.
Result<TrainingLog> parse_log(std::string_view text, const std::string& where,
                              bool torn);

// The first difference, such as "step 3: loss is 0.51 against 0.52", or nullopt if all
// numbers have equal bits. All NaNs count as equal.
std::optional<std::string> first_difference(const TrainingLog& a, const TrainingLog& b);

// A log is a list of its lines.
void put_json(JsonWriter& out, const TrainingLog& log);
Result<void> read_json(const JsonPlace& at, TrainingLog& log);

}  // namespace holdfast
