// What `interval` and `simulate` are told about a job, and the scheduling problem that
// follows from it.
#pragma once

#include "holdfast/cli/command.h"
#include "holdfast/schedule/problem.h"
#include "holdfast/schedule/scheduler.h"

namespace holdfast {

struct ScheduleArguments {
  std::string run;  // a run directory to learn from; may be empty
  std::string length = "24h", stall, persist, restart, step, mtbf, workers;
  std::string objective, stop, hard, deadline, rungs, price, second, reallocate;
  std::vector<std::string> curves, events;
  std::optional<int64_t> budget, allocate, positions;
  bool graceful = false;
};

// The options that fill `arguments`, which must outlive them.
std::vector<Option> schedule_options(ScheduleArguments& arguments);

struct ReadProblem {
  Problem problem;
  // Why this objective was chosen.
  std::string why;
  Learned learned{};
  // False if the mean time between failures is only a prior.
  bool mtbf_known = false;
};

// Reads the files that the arguments name. Fails with kInvalid if the arguments
// contradict each other.
Result<ReadProblem> read_problem(const Context& context,
                                 const ScheduleArguments& arguments);

// Reads a file that was named in the call. If it is not found, the call is wrong: fails
// with kInvalid.
Result<std::string> read_named_file(const Context& context, const std::string& path);

}  // namespace holdfast
