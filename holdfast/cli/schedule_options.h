// What `interval` and `simulate` are told about a job, and the problem that it makes.
#pragma once

#include "holdfast/cli/command.h"
#include "holdfast/schedule/problem.h"
#include "holdfast/schedule/scheduler.h"

namespace holdfast {

struct ScheduleArguments {
  std::string length = "24h", stall, persist, restart, step, mtbf, workers;
  std::string objective, stop, hard, deadline, rungs, price;
  std::vector<std::string> curves, events;
  std::optional<int64_t> budget, allocate, positions;
  bool graceful = false;
  bool json = false;
};

// The options that fill it; it must outlive them.
std::vector<Option> schedule_options(ScheduleArguments& arguments);

struct ReadProblem {
  Problem problem;
  std::string why;  // the objective was chosen
  Learned learned{};
  bool mtbf_known = false;  // else it is a prior
};

// Reads the files that the arguments name. Fails with kInvalid on what contradicts itself.
Result<ReadProblem> read_problem(const Context& context,
                                 const ScheduleArguments& arguments);

// A file named in the call that is not there is a wrong call.
Result<std::string> read_named_file(const Context& context, const std::string& path);

}  // namespace holdfast
