#include "holdfast/store/process.h"

#include <gtest/gtest.h>

#include <map>

namespace holdfast {
namespace {

// The job that scheduler_job() finds if exactly the environment variables in `set` are
// set.
SchedulerJob job_by(std::map<std::string, std::string> set) {
  return scheduler_job([&](const std::string& name) -> std::optional<std::string> {
    const auto found = set.find(name);
    return found == set.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(Process, IsOfTheJobThatSchedulerAndLauncherName) {
  EXPECT_EQ(job_by({}), SchedulerJob{});
  const SchedulerJob first = job_by({{"SLURM_JOB_ID", "77"}});
  const SchedulerJob again =
      job_by({{"SLURM_JOB_ID", "77"}, {"SLURM_RESTART_COUNT", "1"}});
  EXPECT_EQ(first.name, "slurm 77");
  EXPECT_EQ(first.name, again.name);
  EXPECT_LT(first.restart, again.restart);
  EXPECT_EQ(job_by({{"SLURM_JOB_ID", "78"},
                    {"SLURM_ARRAY_JOB_ID", "70"},
                    {"SLURM_ARRAY_TASK_ID", "3"},
                    {"SLURM_CLUSTER_NAME", "big"}})
                .name,
            "slurm 70_3 of big");

  // torchrun uses "none" as the id of a job that nobody has named.
  EXPECT_EQ(
      job_by({{"TORCHELASTIC_RUN_ID", "none"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}),
      SchedulerJob{});
  const SchedulerJob launched = job_by({{"TORCHELASTIC_RUN_ID", "gpt"},
                                        {"TORCHELASTIC_RESTART_COUNT", "2"},
                                        {"MASTER_ADDR", "node1"}});
  EXPECT_EQ(launched, (SchedulerJob{.name = "torchrun gpt at node1", .restart = 2}));

  // Holdfast's own launcher counts generations.
  EXPECT_EQ(job_by({{"HOLDFAST_LAUNCH_ID", "12"},
                    {"HOLDFAST_GENERATION", "3"},
                    {"TORCHELASTIC_RUN_ID", "gpt"},
                    {"TORCHELASTIC_RESTART_COUNT", "1"}}),
            (SchedulerJob{.name = "launch 12", .restart = 3}));
  EXPECT_EQ(job_by({{"SLURM_JOB_ID", "77"},
                    {"HOLDFAST_LAUNCH_ID", "12"},
                    {"HOLDFAST_GENERATION", "3"}}),
            (SchedulerJob{.name = "slurm 77", .restart = 3}));

  // Slurm restarts torchrun, whose own count then begins at 0 again.
  const SchedulerJob inner = job_by({{"SLURM_JOB_ID", "77"},
                                     {"TORCHELASTIC_RUN_ID", "gpt"},
                                     {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(inner.name, first.name);
  EXPECT_GT(inner.restart, first.restart);
  EXPECT_LT(inner.restart, again.restart);
  EXPECT_EQ(job_by({{"SLURM_JOB_ID", "77"}, {"SLURM_RESTART_COUNT", "one"}}),
            SchedulerJob{});
}

}  // namespace
}  // namespace holdfast
