// Tests restoring, opening and converting while a disk or file system does not return
// what was saved, and while steps are removed.
#include <gtest/gtest.h>

#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/inspect/convert.h"
#include "holdfast/inspect/open_any.h"
#include "holdfast/inspect/verify.h"

namespace holdfast::tests::fallback_test {
namespace {

// A run with the steps 1 and 2 on a disk that the test can damage.
struct Fallback : ::testing::Test {
  void SetUp() override {
    for (int boots : {1, 2}) {
      SaverOptions options = test_options(boots);
      options.tiers = {{.tier = tier}};
      job.set(small_state_at(boots));
      ASSERT_OK(save_alone(disk, job, boots, options));
    }
    job.set(small_state_at(0));
    start = disk.now();
  }

  Path newest(const char* file) const { return kRun / "step-00000002" / file; }

  void expect_restores(int64_t step, const RestoreOptions& options = {}) {
    const Result<RestoredState> restored = restore_alone(env, job, options);
    ASSERT_OK(restored);
    EXPECT_EQ(restored->step, step);
    EXPECT_TRUE(job.has(small_state_at(step)));
  }

  void flip_in_newest_shard() {
    const auto file =
        disk.open(newest("rank-0000.safetensors"), {.mode = OpenMode::kUpdate}).value();
    Bytes one(1);
    const int64_t at = file->size().value() - 1;
    ASSERT_OK(file->read_at(at, one));
    one[0] ^= std::byte{1};
    ASSERT_OK(file->write_at(at, one));
  }

  MemoryEnv disk{1};
  FaultyEnv env{disk};
  std::shared_ptr<StorageTier> tier = make_folder_tier(disk, "/tier/gpt");
  Job job{replicated(small_state(), 1)};
  Instant start{};
};

constexpr const char* kShard = "rank-0000.safetensors";

TEST_F(Fallback, AReadThatFailsOnceIsMadeAgainAfterAPause) {
  for (const ErrorCode code :
       {ErrorCode::kIo, ErrorCode::kUnavailable, ErrorCode::kTimeout}) {
    for (const char* file : {kShard, "manifest.json", "rank-0000.index.json"}) {
      env.fail_file(Op::kRead, newest(file), code, 1);
      expect_restores(2);
    }
    env.fail_file(Op::kOpen, newest(kShard), code, 1);
    expect_restores(2);
  }
  EXPECT_GT(disk.now(), start);
}

TEST_F(Fallback, WhatTheDiskDoesNotGiveBackSendsTheRestoreToTheStepBefore) {
  for (const char* file : {kShard, "manifest.json", "rank-0000.index.json"}) {
    FaultyEnv bad(disk);
    bad.fail_file(Op::kRead, newest(file));
    const Result<RestoredState> restored = restore_alone(bad, job);
    ASSERT_OK(restored);
    EXPECT_EQ(restored->step, 1) << file;
    EXPECT_TRUE(job.has(small_state_at(1)));
    ASSERT_EQ(restored->skipped.size(), 1u);
    EXPECT_EQ(restored->skipped.front().folder, "step-00000002");
  }
}

TEST_F(Fallback, ABadSectorIsMendedFromATier) {
  env.fail_file(Op::kRead, newest(kShard));
  expect_restores(2, {.tiers = {tier}});
}

TEST_F(Fallback, AFailureThatSaysNothingOfTheStepIsRaised) {
  for (const ErrorCode code : {ErrorCode::kUnavailable, ErrorCode::kDenied}) {
    for (const char* file : {kShard, "manifest.json", "rank-0000.index.json"}) {
      FaultyEnv bad(disk);
      bad.fail_file(Op::kRead, newest(file), code);
      EXPECT_ERROR(restore_alone(bad, job), code);
      EXPECT_ERROR(convert(bad, kRun, "/out.safetensors"), code);
      EXPECT_ERROR(verify(bad, kRun), code);
    }
  }
  EXPECT_ERROR(disk.info("/out.safetensors"), ErrorCode::kNotFound);
}

TEST_F(Fallback, AllRanksGoBackWhereOneCannotRead) {
  Job wide(replicated(small_state(), 2));
  run_ranks(disk, 2, [&](int rank, Transport& transport) {
    FaultyEnv bad(disk);
    if (rank == 1) bad.fail_file(Op::kRead, newest(kShard));
    const auto restored = restore(bad, kRun, wide.state(rank), &transport);
    ASSERT_OK(restored);
    EXPECT_EQ(restored->step, 1);
  });
  EXPECT_TRUE(wide.has(small_state_at(1)));
}

TEST_F(Fallback, AllRanksRaiseWhereOneCannotTell) {
  Job wide(replicated(small_state(), 2));
  run_ranks(disk, 2, [&](int rank, Transport& transport) {
    FaultyEnv bad(disk);
    if (rank == 1) bad.fail_file(Op::kRead, newest(kShard), ErrorCode::kUnavailable);
    EXPECT_ERROR(restore(bad, kRun, wide.state(rank), &transport),
                 ErrorCode::kUnavailable);
  });
}

TEST_F(Fallback, ConvertTakesTheStepBeforeADamagedOneAndSaysSo) {
  flip_in_newest_shard();
  const Result<Written> done = convert(env, kRun, "/out.safetensors");
  ASSERT_OK(done);
  EXPECT_EQ(done->from.path.filename(), "step-00000001");
  ASSERT_EQ(done->from.skipped.size(), 1u);
  EXPECT_EQ(done->from.skipped.front().folder, "step-00000002");
  EXPECT_EQ(disk.list("/").value(),
            (std::vector<std::string>{"out.safetensors", "runs", "tier"}));
  EXPECT_ERROR(convert(env, kRun.native() + "@2", "/other.safetensors"),
               ErrorCode::kCorrupt);
  EXPECT_ERROR(disk.info("/other.safetensors"), ErrorCode::kNotFound);
}

TEST_F(Fallback, ConvertIntoAFolderThatIsMissingFailsAtOnce) {
  EXPECT_ERROR(convert(env, kRun, "/nowhere/out.safetensors"), ErrorCode::kNotFound);
}

// Before each call in turn, retention removes step 2, and step 3 is there by then.
TEST_F(Fallback, AStepThatVanishesWhileItIsOpenedIsLookedForAgain) {
  job.set(small_state_at(3));
  ASSERT_OK(save_alone(disk, job, 3, test_options(3)));
  ASSERT_OK(disk.rename(kRun / "step-00000003", "/later"));
  FaultyEnv counted(disk);
  ASSERT_OK(open_any(counted, kRun));
  const int64_t calls = counted.calls();
  for (int64_t k = 1; k <= calls; ++k) {
    FaultyEnv racing(disk);
    racing.before(Op::kAny, k, [&] {
      ASSERT_OK(disk.rename("/later", kRun / "step-00000003"));
      ASSERT_OK(disk.rename(kRun / "step-00000002", "/earlier"));
    });
    const Result<OpenedAny> opened = open_any(racing, kRun);
    ASSERT_TRUE(opened.ok()) << k << ": " << opened.error().message();
    ASSERT_OK(disk.rename("/earlier", kRun / "step-00000002"));
    ASSERT_OK(disk.rename(kRun / "step-00000003", "/later"));
  }
}

// convert() opens all files before it reads. So a step that is removed after that is
// still converted as a whole.
TEST_F(Fallback, ConvertGoesOnWhenStepsVanish) {
  job.set(small_state_at(3));
  ASSERT_OK(save_alone(disk, job, 3, test_options(3)));
  ASSERT_OK(disk.rename(kRun / "step-00000003", "/later"));
  FaultyEnv counted(disk);
  ASSERT_OK(convert(counted, kRun, "/counted.safetensors"));
  const int64_t calls = counted.calls();
  for (int64_t k = 1; k <= calls; k += 3) {
    FaultyEnv racing(disk);
    racing.before(Op::kAny, k, [&] {
      ASSERT_OK(disk.rename("/later", kRun / "step-00000003"));
      ASSERT_OK(disk.rename(kRun / "step-00000002", "/earlier"));
    });
    const Result<Written> done = convert(racing, kRun, "/out.safetensors");
    ASSERT_TRUE(done.ok()) << k << ": " << done.error().message();
    ASSERT_OK(disk.remove_file("/out.safetensors"));
    ASSERT_OK(disk.rename("/earlier", kRun / "step-00000002"));
    ASSERT_OK(disk.rename(kRun / "step-00000003", "/later"));
  }
}

}  // namespace
}  // namespace holdfast::tests::fallback_test
