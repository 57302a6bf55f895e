// Who a process is, so that another one can tell whether it still lives.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "holdfast/base/variables.h"
#include "holdfast/env/env.h"

namespace holdfast {

struct Identity {
  std::string host{};
  std::string boot{};  // id of the machine's start
  int64_t pid = 0;
  int64_t started = 0;  // of the process, in ticks since the machine's start
  // Of the process numbers: a container has its own. 0 where it is not known.
  int64_t pid_space = 0;
  // The scheduler's job and how often it was restarted (SchedulerJob); empty without one.
  std::string job{};
  int64_t restart = 0;

  friend bool operator==(const Identity&, const Identity&) = default;
};

// What the scheduler and the launcher call the job that this process is of. A job that is
// started again, maybe on another host, has the same name and a greater `restart`.
struct SchedulerJob {
  std::string name{};  // empty: it cannot be told
  int64_t restart = 0;
  friend bool operator==(const SchedulerJob&, const SchedulerJob&) = default;
};

// By the variables of Slurm (SLURM_JOB_ID, or SLURM_ARRAY_JOB_ID and SLURM_ARRAY_TASK_ID;
// SLURM_CLUSTER_NAME; SLURM_RESTART_COUNT) and torchrun (TORCHELASTIC_RUN_ID unless it is
// "none", which is its default; MASTER_ADDR, so that equal ids of different jobs are told
// apart; TORCHELASTIC_RESTART_COUNT). Under both the job is Slurm's, and torchrun's restarts
// count after Slurm's. A count that is no number makes the job unknown.
SchedulerJob scheduler_job(const Variables& variables);

// Reads /proc. `job` and `restart` are those of the SchedulerJob.
Result<Identity> this_process(Env& env, std::string job = "", int64_t restart = 0);

// When the process with this number was started (Identity::started), or nullopt if there
// is none: one that has ended and was not waited for is none. An error means that it
// cannot be told.
using Liveness = std::function<Result<std::optional<int64_t>>(int64_t pid)>;

Result<std::optional<int64_t>> start_of_process(Env& env, int64_t pid);

}  // namespace holdfast
