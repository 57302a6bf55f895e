// Tests with file systems that can neither sync folders nor make hard links, as many
// file systems in user space.
#include <gtest/gtest.h>

#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/inspect/convert.h"

namespace holdfast::tests {
namespace {

std::vector<Tensor> one_tensor() {
  return {{.name = "w", .dtype = Dtype::kF32, .shape = {300, 100}}};
}

struct LimitedFileSystem : ::testing::Test {
  LimitedFileSystem() {
    env.fail_from(Op::kSyncFolder, 1, ErrorCode::kUnsupported);
    env.fail_from(Op::kLink, 1, ErrorCode::kUnsupported);
    Dice dice(1);
    values = random_values(dice, one_tensor());
    job.set(values);
  }

  MemoryEnv disk{1};
  FaultyEnv env{disk};
  Job job{replicated(one_tensor(), 1)};
  std::vector<Memory> values;
};

TEST_F(LimitedFileSystem, HoldsARun) {
  for (const int64_t step : {1, 2, 3}) {
    ASSERT_OK(save_alone(env, job, step, test_options(static_cast<int>(step))));
  }
  Job fresh(replicated(one_tensor(), 1));
  const Result<RestoredState> restored =
      restore_alone(env, fresh, {.verify_all = true});
  ASSERT_OK(restored);
  EXPECT_EQ(restored->step, 3);
  EXPECT_TRUE(fresh.has(values));
}

TEST_F(LimitedFileSystem, IsConvertedTo) {
  ASSERT_OK(save_alone(env, job, 1));
  EXPECT_OK(convert(env, kRun, "/out.safetensors"));
  EXPECT_OK(convert(env, kRun, "/out.pt"));
  EXPECT_OK(convert(env, kRun, "/out", {.format = "safetensors-folder"}));
  for (const char* made : {"/out.safetensors", "/out.pt", "/out"}) {
    EXPECT_TRUE(disk.info(made).ok()) << made;
  }
}

}  // namespace
}  // namespace holdfast::tests
