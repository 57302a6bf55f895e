// Saving to one tier, with copies on others, and coming back from whichever is left.
#include <gtest/gtest.h>

#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/store/object_memory_testing.h"

namespace holdfast::testing {
namespace {

std::vector<Tensor> tensors() {
  return {{.name = "w", .dtype = Dtype::kF32, .shape = {30, 100}}};
}

std::vector<Memory> values_at(int64_t step) {
  Dice dice(static_cast<uint64_t>(step));
  return random_values(dice, tensors());
}

struct Tiers : ::testing::Test {
  SaverOptions options(int boots) {
    SaverOptions made = test_options(boots);
    made.tier = "memory";
    made.mirrors = {{.tier = disk}, {.tier = remote, .every = 2, .keep_last = 1}};
    made.events = &events;
    return made;
  }
  void save(int64_t first, int64_t last, int boots) {
    const auto saver = Saver::open(env, kRun, nullptr, options(boots));
    ASSERT_OK(saver);
    for (int64_t step = first; step <= last; ++step) {
      job.set(values_at(step));
      const LocalState state = job.state(0);
      const Result<SaveHandle> handle = (*saver)->save({.step = step, .state = &state});
      ASSERT_OK(handle);
      ASSERT_OK(handle->durable());
      EXPECT_EQ(handle->durable()->tier, "memory");
    }
    ASSERT_OK((*saver)->close());
  }

  MemoryEnv env{1};
  MemoryObjectStore store;
  CollectingSink events;
  std::shared_ptr<StorageTier> disk = make_folder_tier(env, "/disk/gpt");
  std::shared_ptr<StorageTier> remote =
      make_object_tier(ObjectTier::create(store, "gpt").value());
  Job job{replicated(tensors(), 1)};
};

TEST_F(Tiers, EachGetsItsShareOfTheSteps) {
  save(1, 4, 1);
  EXPECT_EQ(disk->steps()->size(), 4u);
  ASSERT_EQ(remote->steps()->size(), 1u);
  EXPECT_EQ(remote->steps()->front().manifest.step, 4);
}

TEST_F(Tiers, AMachineThatLostItsMemoryComesBackFromTheDisk) {
  save(1, 3, 1);
  ASSERT_OK(env.remove_all(kRun));
  const Result<RestoredState> restored =
      restore_alone(env, job, {.tiers = {remote, disk}});
  ASSERT_OK(restored);
  EXPECT_EQ(restored->step, 3);
  EXPECT_TRUE(job.has(values_at(3)));
  save(4, 4, 2);  // the run goes on where it was
  EXPECT_EQ(restore_alone(env, job)->step, 4);
}

TEST_F(Tiers, AMachineThatLostEverythingComesBackFromTheObjectStore) {
  save(1, 3, 1);
  MemoryEnv fresh(2);
  const Result<RestoredState> restored = restore_alone(fresh, job, {.tiers = {remote}});
  ASSERT_OK(restored);
  EXPECT_EQ(restored->step, 2);
  EXPECT_TRUE(job.has(values_at(2)));
}

TEST_F(Tiers, ADamagedStepIsTakenFromAnotherTier) {
  save(1, 2, 1);
  const Path shard = kRun / "step-00000002" / "rank-0000.safetensors";
  Bytes bytes = env.read_file(shard).value();
  bytes.back() ^= std::byte{1};
  ASSERT_OK(env.replace_file(shard, bytes));
  const Result<RestoredState> restored = restore_alone(env, job, {.tiers = {disk}});
  ASSERT_OK(restored);
  EXPECT_EQ(restored->step, 2);
  EXPECT_TRUE(job.has(values_at(2)));
}

TEST_F(Tiers, ATierThatFailsIsAnEventAndNothingMore) {
  store.die_after(0, false);
  save(1, 2, 1);
  EXPECT_EQ(restore_alone(env, job)->step, 2);
  int failed = 0;
  for (const EventRecord& record : events.records())
    failed += record.name == "mirror_failed";
  EXPECT_EQ(failed, 1);
}

TEST_F(Tiers, BackgroundCopiesAreDoneWhenTheSaverIsClosed) {
  SaverOptions with_threads = options(1);
  with_threads.background = true;
  job.set(values_at(8));
  const auto saver = Saver::open(env, kRun, nullptr, with_threads);
  ASSERT_OK(saver);
  const LocalState state = job.state(0);
  ASSERT_OK((*saver)->save({.step = 8, .state = &state}));
  ASSERT_OK((*saver)->close());
  EXPECT_EQ(disk->steps()->front().manifest.step, 8);
}

}  // namespace
}  // namespace holdfast::testing
