// Who a process is, so that another one can tell whether it still lives.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "holdfast/base/env.h"

namespace holdfast {

struct Identity {
  std::string host{};
  std::string boot{};  // id of the machine's start
  int64_t pid = 0;
  int64_t started = 0;  // of the process, in ticks since the machine's start
  // Of the process numbers: a container has its own. 0 where it is not known.
  int64_t pid_space = 0;
  // The scheduler's job and how often it was restarted; empty without a scheduler.
  std::string job{};
  int64_t restart = 0;

  friend bool operator==(const Identity&, const Identity&) = default;
};

// Reads /proc. `job` and `restart` are what the scheduler calls this process
// (SLURM_JOB_ID and SLURM_RESTART_COUNT).
Result<Identity> this_process(Env& env, std::string job = "", int64_t restart = 0);

// When the process with this number was started (Identity::started), or nullopt if there
// is none: one that has ended and was not waited for is none. An error means that it
// cannot be told.
using Liveness = std::function<Result<std::optional<int64_t>>(int64_t pid)>;

Result<std::optional<int64_t>> start_of_process(Env& env, int64_t pid);

}  // namespace holdfast
