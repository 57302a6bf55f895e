// `holdfast interval RUN --log-budget`: which borders of a pipeline to log, by what its events say.
#pragma once

#include <string>

#include "holdfast/cli/command.h"

namespace holdfast {

struct LogArguments {
  std::string budget;      // bytes of all logs; empty if no report is wanted
  std::string host_limit;  // bytes of the log of one rank
  std::string bandwidth = "1250MB";
  std::optional<int64_t> steps{};  // between two saves; by default as the run has saved
};

// Fails with kInvalid if the run's events do not tell what its messages cost.
Result<void> report_log(const Context& context, const std::string& run,
                        const LogArguments& arguments);

}  // namespace holdfast
