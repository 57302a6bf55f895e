// Identifies a process, so that another process can tell whether it still lives.
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
  // Identifies the last start of the machine.
  std::string boot{};
  int64_t pid = 0;
  // When the process was started, in clock ticks since the start of the machine.
  int64_t started = 0;
  // Identifies the namespace of process numbers, because a container has its own. 0 if
  // it is not known.
  int64_t pid_space = 0;
  // The scheduler's job and how often it was restarted (SchedulerJob). Empty without
  // one.
  std::string job{};
  int64_t restart = 0;

  friend bool operator==(const Identity&, const Identity&) = default;
};

// The job that this process belongs to, in the words of the scheduler or launcher. If
// the job is started again, perhaps on another host, the name stays and `restart` is
// greater.
struct SchedulerJob {
  // Empty if the job cannot be told.
  std::string name{};
  int64_t restart = 0;
  friend bool operator==(const SchedulerJob&, const SchedulerJob&) = default;
};

// Reads the job from environment variables:
//   Slurm     SLURM_JOB_ID, or SLURM_ARRAY_JOB_ID and SLURM_ARRAY_TASK_ID;
//             SLURM_CLUSTER_NAME; SLURM_RESTART_COUNT
//   torchrun  TORCHELASTIC_RUN_ID, unless it is the default "none"; MASTER_ADDR, which
//             tells apart jobs with equal ids; TORCHELASTIC_RESTART_COUNT
// If both are there, the job is named by Slurm, and restarts by torchrun count after
// those by Slurm. If a restart count is not a number, the job is unknown.
SchedulerJob scheduler_job(const Variables& variables);

// Reads the identity of this process from /proc. `job` and `restart` are those of the
// SchedulerJob.
Result<Identity> this_process(Env& env, std::string job = "", int64_t restart = 0);

// Returns when the process with this number was started (Identity::started), or nullopt
// if there is no such process. A process that has ended counts as gone even if its
// parent has not waited for it yet. An error means that it cannot be told.
using Liveness = std::function<Result<std::optional<int64_t>>(int64_t pid)>;

// The Liveness of this machine: reads /proc.
Result<std::optional<int64_t>> start_of_process(Env& env, int64_t pid);

}  // namespace holdfast
