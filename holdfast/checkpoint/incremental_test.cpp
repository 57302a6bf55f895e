// Tests saves that write only what has changed.
#include <gtest/gtest.h>

#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/checkpoint/step_files.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/store/run.h"

namespace holdfast::tests::incremental_test {
namespace {

std::vector<Tensor> tensors() {
  return {{.name = "frozen", .dtype = Dtype::kF32, .shape = {500, 100}},
          {.name = "moving", .dtype = Dtype::kF32, .shape = {7, 9}},
          {.name = "empty", .dtype = Dtype::kF32, .shape = {0}}};
}

// The values of a step. `frozen` is the same for all steps of an era.
std::vector<Memory> values_at(int64_t era, int64_t step) {
  Dice era_dice(static_cast<uint64_t>(era)), dice(static_cast<uint64_t>(step));
  std::vector<Memory> values = random_values(era_dice, tensors());
  values[1] = random_values(dice, tensors())[1];
  return values;
}

class Incremental : public ::testing::TestWithParam<int> {
 protected:
  SaverOptions options(int boots) {
    SaverOptions made = test_options(boots);
    made.incremental = true;
    made.full_every = 16;
    made.keep = Keep{.last = 1};
    return made;
  }

  // Saves the steps from `first` to `last`, all by the same process. Before each of
  // them, calls `before`.
  void save(int64_t era, int64_t first, int64_t last, const SaverOptions& how,
            const std::function<void(int64_t step)>& before = {}) {
    run_ranks(env, ranks, [&](int rank, Transport& transport) {
      const auto saver = Saver::open(env, kRun, &transport, how);
      ASSERT_OK(saver);
      for (int64_t step = first; step <= last; ++step) {
        ASSERT_OK(transport.barrier(kNoDeadline));
        if (rank == 0) job.set(values_at(era, step));
        if (rank == 0 && before) before(step);
        ASSERT_OK(transport.barrier(kNoDeadline));
        const LocalState state = job.state(rank);
        const Result<SaveHandle> handle =
            (*saver)->save({.step = step, .state = &state});
        ASSERT_OK(handle);
        ASSERT_OK(handle->durable());
      }
    });
  }

  // Returns the bytes of the shards that the step wrote itself, without their headers.
  int64_t written(const char* folder) {
    const StepFiles step = open_step(env, kRun / folder).value();
    int64_t bytes = 0;
    for (const ShardFile& file : step.files) {
      if (file.name.starts_with("rank-")) bytes += file.bytes - file.chunks[0].bytes;
    }
    return bytes;
  }

  void expect_restored(int64_t era, int64_t step) {
    Job fresh(replicated(tensors(), 1));
    const Result<RestoredState> restored =
        restore_alone(env, fresh, {.verify_all = true});
    ASSERT_OK(restored);
    EXPECT_EQ(restored->step, step);
    EXPECT_TRUE(fresh.has(values_at(era, step)));
  }

  const int ranks = GetParam();
  MemoryEnv env{1};
  Job job{replicated(tensors(), ranks)};
};

constexpr int64_t kMoving = 7 * 9 * 4;

TEST_P(Incremental, OnlyWhatChangedIsWrittenAndTheRestIsLinked) {
  save(1, 1, 3, options(1));
  EXPECT_EQ(written("step-00000003"), kMoving);
  expect_restored(1, 3);
  // The step that wrote the frozen part is gone, but its shards live on as links.
  EXPECT_EQ(Run::open(env, kRun)->steps()->steps.size(), 1u);
}

TEST_P(Incremental, ChangedPiecesAreWrittenEvenIfTheyWereLinkedBefore) {
  save(1, 1, 2, options(1));
  save(2, 3, 4, options(2));
  EXPECT_EQ(written("step-00000004"), kMoving);
  expect_restored(2, 4);
}

TEST_P(Incremental, DamagedParityIsNotLinked) {
  SaverOptions how = options(1);
  how.parity = 0.05;
  how.keep = Keep{.last = 9};
  const Path parity = kRun / "step-00000001" / parity_name(shard_name(0, false));
  Bytes good;
  save(1, 1, 3, how, [&](int64_t step) {
    if (step != 2) return;
    good = env.read_file(parity).value();
    Bytes bytes = good;
    std::fill(bytes.begin() + 100, bytes.end(), std::byte{0});
    ASSERT_OK(env.write_file(parity, bytes));
  });
  // The damage is that of the first step alone, also after it is mended.
  EXPECT_FALSE(check_step(env, kRun / "step-00000001", Depth::kFull)->whole());
  EXPECT_TRUE(check_step(env, kRun / "step-00000003", Depth::kFull)->whole());
  ASSERT_OK(env.write_file(parity, good));
  EXPECT_TRUE(check_step(env, kRun / "step-00000003", Depth::kFull)->whole());
}

TEST_P(Incremental, EverySixteenthIsFull) {
  save(1, 1, 17, options(1));
  EXPECT_EQ(written("step-00000017"), 500 * 100 * 4 + kMoving);
  expect_restored(1, 17);
}

// The disk has room for the pieces that have changed, but not for the whole state once
// more.
TEST_P(Incremental, NeedsRoomOnlyForWhatHasChanged) {
  SaverOptions how = options(1);
  how.space_reserve = 4096;
  int64_t used = 0;
  run_ranks(env, ranks, [&](int rank, Transport& transport) {
    const auto saver = Saver::open(env, kRun, &transport, how);
    ASSERT_OK(saver);
    for (const int64_t step : {1, 2, 3}) {
      ASSERT_OK(transport.barrier(kNoDeadline));
      if (rank == 0) {
        // The additional 40 KiB are for headers and the small files of two ranks.
        const int64_t all = int64_t{1} << 40;
        env.set_capacity(all);
        used = all - env.free_space(kRun).value();
        if (step > 1) env.set_capacity(used + how.space_reserve + kMoving + (40 << 10));
        job.set(values_at(1, step));
      }
      ASSERT_OK(transport.barrier(kNoDeadline));
      const LocalState state = job.state(rank);
      const Result<SaveHandle> handle = (*saver)->save({.step = step, .state = &state});
      ASSERT_OK(handle);
      EXPECT_OK(handle->durable());
    }
  });
  env.set_capacity(int64_t{1} << 40);
  expect_restored(1, 3);
}

TEST_P(Incremental, WithoutRoomForWhatHasChangedIsRefused) {
  SaverOptions how = options(1);
  how.space_reserve = 64 << 10;
  run_ranks(env, ranks, [&](int rank, Transport& transport) {
    const auto saver = Saver::open(env, kRun, &transport, how);
    ASSERT_OK(saver);
    for (const int64_t step : {1, 2}) {
      ASSERT_OK(transport.barrier(kNoDeadline));
      if (rank == 0) {
        const int64_t all = int64_t{1} << 40;
        env.set_capacity(all);
        const int64_t free = env.free_space(kRun).value();
        if (step > 1) env.set_capacity(all - free + how.space_reserve);
        job.set(values_at(1, step));
      }
      ASSERT_OK(transport.barrier(kNoDeadline));
      const LocalState state = job.state(rank);
      const Result<SaveHandle> handle = (*saver)->save({.step = step, .state = &state});
      ASSERT_OK(handle);
      if (step == 1) EXPECT_OK(handle->durable());
      if (step == 2) EXPECT_ERROR(handle->durable(), ErrorCode::kNoSpace);
    }
  });
}

// The following tests run with one rank, which is enough for them.
using IncrementalAlone = Incremental;

TEST_P(IncrementalAlone, WithoutHardLinksTheNextSaveIsFull) {
  FaultyEnv no_links(env);
  no_links.fail_from(Op::kLink, 1, ErrorCode::kUnsupported);
  const auto saver = Saver::open(no_links, kRun, nullptr, options(1));
  ASSERT_OK(saver);
  std::vector<bool> durable;
  for (int64_t step = 1; step <= 4; ++step) {
    job.set(values_at(1, step));
    const LocalState state = job.state(0);
    const Result<SaveHandle> handle = (*saver)->save({.step = step, .state = &state});
    ASSERT_OK(handle);
    durable.push_back(handle->durable().ok());
  }
  EXPECT_EQ(durable, (std::vector<bool>{true, false, true, true}));
  expect_restored(1, 4);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Incremental, ::testing::Values(1, 2));
INSTANTIATE_TEST_SUITE_P(Ranks, IncrementalAlone, ::testing::Values(1));

}  // namespace
}  // namespace holdfast::tests::incremental_test
