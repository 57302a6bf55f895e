// Identifies a process, so that another process can tell whether it still lives.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "holdfast/base/variables.h"
#include "holdfast/env/env.h"
#include "holdfast/store/records.h"

namespace holdfast {

// Reads the job from environment variables:
//   Slurm     SLURM_JOB_ID, or SLURM_ARRAY_JOB_ID and SLURM_ARRAY_TASK_ID;
//             SLURM_CLUSTER_NAME; SLURM_RESTART_COUNT
//   holdfast launch  HOLDFAST_LAUNCH_ID; HOLDFAST_GENERATION
//   torchrun  TORCHELASTIC_RUN_ID, unless it is the default "none"; MASTER_ADDR, which
//             tells apart jobs with equal ids; TORCHELASTIC_RESTART_COUNT
// If Slurm and a launcher are there, the job is named by Slurm, and restarts by the
// launcher count after those by Slurm. If a restart count is not a number, the job is unknown.
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
