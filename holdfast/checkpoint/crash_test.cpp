// Kills a save, a retention pass and a commit of several ranks at every call that they
// make. A restart must find the new step whole, or the one before it.
#include <gtest/gtest.h>

#include <cstdlib>

#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/env/faulty_env.h"

namespace holdfast::tests::crash_test {
namespace {

constexpr Unsynced kPolicies[] = {Unsynced::kKept, Unsynced::kLost,
                                  Unsynced::kReordered};

std::vector<Tensor> tensors() {
  return {{.name = "w", .dtype = Dtype::kF32, .shape = {64, 9}},
          {.name = "b", .dtype = Dtype::kBf16, .shape = {7}}};
}

std::vector<Memory> values_at(int64_t step) {
  Dice dice(static_cast<uint64_t>(step));
  return random_values(dice, tensors());
}

SaverOptions keeping_one(int boots) {
  SaverOptions options = test_options(boots);
  options.ring_bytes = 128 << 10;
  options.keep = Keep{.last = 1};
  return options;
}

// All ranks save, each on its own Env; a rank stops at its first error.
void save_by_all(const std::vector<Env*>& envs, Env& clock, Job& job, int64_t step,
                 const SaverOptions& options) {
  run_ranks(clock, job.ranks(), [&](int rank, Transport& transport) {
    Env& env = *envs[static_cast<size_t>(rank)];
    const auto saver = Saver::open(env, kRun, &transport, options);
    if (!saver.ok()) return;
    const LocalState state = job.state(rank);
    const Result<SaveHandle> handle = (*saver)->save({.step = step, .state = &state});
    if (handle.ok()) static_cast<void>(handle->durable());
    static_cast<void>((*saver)->close());
  });
}

// Restarts after a power loss: expects step 200 or, unless `needs_new`, step 100, and
// that the run can go on from there.
void expect_one_of_two_and_go_on(const MemoryEnv& disk, Unsynced policy, int64_t call,
                                 bool needs_new) {
  const auto after = disk.after_crash({policy, static_cast<uint64_t>(call)});
  Job job(replicated(tensors(), 1));
  const Result<RestoredState> restored = restore_alone(*after, job);
  ASSERT_OK(restored);
  EXPECT_TRUE(restored->step == 200 || (!needs_new && restored->step == 100))
      << "call " << call << " left step " << restored->step;
  EXPECT_TRUE(job.has(values_at(restored->step))) << "call " << call;
  job.set(values_at(300));
  ASSERT_OK(save_alone(*after, job, 300, keeping_one(3)));
  const Result<RestoredState> next = restore_alone(*after, job);
  ASSERT_OK(next);
  EXPECT_EQ(next->step, 300);
}

class Crash : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    job.set(values_at(100));
    save_by_all(all_on(disk), disk, job, 100, keeping_one(1));
    job.set(values_at(200));
  }
  std::vector<Env*> all_on(Env& env) const {
    return std::vector<Env*>(static_cast<size_t>(ranks), &env);
  }

  const int ranks = GetParam();
  MemoryEnv disk{1};
  Job job{replicated(tensors(), ranks)};
};

// HOLDFAST_LONG=1 also runs it with three ranks, which takes a quarter of a minute.
TEST_P(Crash, EveryCallOfASaveWithRetentionLeavesTheNewStepOrTheOldOne) {
  if (ranks == 3 && std::getenv("HOLDFAST_LONG") == nullptr) {
    GTEST_SKIP() << "needs HOLDFAST_LONG=1";
  }
  for (int victim = 0; victim < ranks; ++victim) {
    for (int64_t call = 1;; ++call) {
      const auto copy = disk.after_crash({Unsynced::kKept, 0});
      FaultyEnv faulty(*copy);
      faulty.crash_at(Op::kAny, call);
      std::vector<Env*> envs = all_on(*copy);
      envs[static_cast<size_t>(victim)] = &faulty;
      save_by_all(envs, *copy, job, 200, keeping_one(2));
      for (const Unsynced policy : kPolicies) {
        expect_one_of_two_and_go_on(*copy, policy, call, false);
        if (HasFatalFailure()) return;
      }
      if (!faulty.crashed()) break;
      ASSERT_LT(call, 2000) << "never ends";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, Crash, ::testing::Values(1, 2, 3));

// Here a single call fails instead of the whole machine, so the process lives on and
// must report the error.
TEST(FailingCall, EachOfASaveEndsInAWholeCheckpointOrAnError) {
  for (const ErrorCode code : {ErrorCode::kNoSpace, ErrorCode::kIo}) {
    for (int64_t call = 1;; ++call) {
      MemoryEnv disk(1);
      Job job(replicated(tensors(), 1));
      job.set(values_at(100));
      ASSERT_OK(save_alone(disk, job, 100, keeping_one(1)));
      job.set(values_at(200));
      FaultyEnv faulty(disk);
      faulty.fail_at(Op::kAny, call, code);
      const Result<Durable> saved = save_alone(faulty, job, 200, keeping_one(2));
      const bool ended = faulty.calls() < call;
      const Result<RestoredState> restored = restore_alone(disk, job);
      ASSERT_OK(restored);
      EXPECT_TRUE(job.has(values_at(restored->step)));
      EXPECT_TRUE(!saved.ok() || restored->step == 200) << "call " << call;
      if (ended) break;
      ASSERT_LT(call, 2000) << "never ends";
    }
  }
}

TEST(FailingCall, AFullDiskKeepsTheOldCheckpointAndTheNextSaveWorksOnceThereIsRoom) {
  MemoryEnv disk(1);
  Job job(replicated(tensors(), 1));
  job.set(values_at(100));
  ASSERT_OK(save_alone(disk, job, 100, keeping_one(1)));
  disk.set_capacity(14'000);
  job.set(values_at(200));
  EXPECT_ERROR(save_alone(disk, job, 200, keeping_one(2)), ErrorCode::kNoSpace);
  const Result<RestoredState> restored = restore_alone(disk, job);
  ASSERT_OK(restored);
  EXPECT_EQ(restored->step, 100);
  disk.set_capacity(1 << 20);
  job.set(values_at(300));
  EXPECT_OK(save_alone(disk, job, 300, keeping_one(3)));
}

// A restore must refuse damage of any kind in any file of a step.
class Damaged : public ::testing::Test {
 protected:
  void SetUp() override {
    job.set(values_at(100));
    const LocalState state = job.state(0);
    const auto saver = Saver::open(disk, kRun, nullptr, keeping_one(1));
    ASSERT_OK(saver);
    ASSERT_OK((*saver)->save({.step = 100,
                              .state = &state,
                              .objects = {.of_all = Object(Object::Value(int64_t{7})),
                                          .of_rank = Object(Object::Value(0.5))}}));
    for (const std::string& name : disk.list(folder).value()) {
      files.emplace_back(name, disk.read_file(folder / name).value());
    }
    ASSERT_EQ(files.size(), 5u);
  }

  void expect_refused(const std::string& name, const Bytes& damaged) {
    ASSERT_OK(disk.replace_file(folder / name, damaged));
    EXPECT_ERROR(restore_alone(disk, job), ErrorCode::kCorrupt);
  }

  MemoryEnv disk{1};
  Job job{replicated(tensors(), 1)};
  const Path folder = kRun / "step-00000100";
  std::vector<std::pair<std::string, Bytes>> files;
};

// HOLDFAST_LONG=1 flips 10,000 bits instead of 2,000.
TEST_F(Damaged, FlippedBitsAreAllRefused) {
  Dice dice(2026);
  const int flips = std::getenv("HOLDFAST_LONG") != nullptr ? 10'000 : 2'000;
  for (int i = 0; i < flips; ++i) {
    const auto& [name, bytes] =
        files[static_cast<size_t>(dice.below(static_cast<int64_t>(files.size())))];
    Bytes damaged = bytes;
    const auto bit =
        static_cast<size_t>(dice.below(static_cast<int64_t>(bytes.size()) * 8));
    damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    expect_refused(name, damaged);
    ASSERT_OK(disk.replace_file(folder / name, bytes));
    if (HasFailure()) FAIL() << name << ", bit " << bit;
  }
  EXPECT_OK(restore_alone(disk, job));
}

TEST_F(Damaged, TruncatedAndLengthenedFilesAreAllRefused) {
  Dice dice(2027);
  for (const auto& [name, bytes] : files) {
    for (int i = 0; i < 100; ++i) {
      const auto size =
          static_cast<size_t>(dice.below(static_cast<int64_t>(bytes.size())));
      expect_refused(name,
                     Bytes(bytes.begin(), bytes.begin() + static_cast<long>(size)));
      if (HasFailure()) FAIL() << name << " cut to " << size;
    }
    Bytes longer = bytes;
    longer.push_back(std::byte{0});
    expect_refused(name, longer);
    ASSERT_OK(disk.remove_file(folder / name));
    EXPECT_FALSE(restore_alone(disk, job).ok()) << name << " missing";
    ASSERT_OK(disk.replace_file(folder / name, bytes));
  }
  EXPECT_OK(restore_alone(disk, job));
}

}  // namespace
}  // namespace holdfast::tests::crash_test
