// Saving to one tier, with copies on others, and coming back from whichever is left.
#include <gtest/gtest.h>

#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/checkpoint/fetch.h"
#include "holdfast/checkpoint/open_any.h"
#include "holdfast/checkpoint/overview.h"
#include "holdfast/checkpoint/verify.h"
#include "holdfast/store/object_env.h"
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
    made.mirrors = {{.tier = disk},
                    {.tier = remote, .every = 2, .keep = Keep{.last = 1}}};
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

  int64_t count(std::string_view name) const {
    return std::ranges::count(events.records(), name, &EventRecord::name);
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
  EXPECT_EQ(restored->tier, "/disk/gpt");
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
  EXPECT_EQ(count("mirror_failed"), 1);
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

TEST_F(Tiers, ARunThatLostItsDirectoryGoesOnAsTheSameRun) {
  save(1, 3, 1);
  ASSERT_OK(env.remove_all(kRun));
  const std::vector tiers = {remote, disk};
  const Result<Fetched> fetched = fetch_newest(env, kRun, tiers, &events);
  ASSERT_OK(fetched);
  EXPECT_EQ(fetched->tier, "/disk/gpt");
  EXPECT_EQ(fetched->folder, kRun / "step-00000003");
  save(4, 4, 2);
  EXPECT_EQ(disk->steps()->front().manifest.step, 4);
  EXPECT_EQ(count("mirror_failed"), 0);
  EXPECT_EQ(count("step_fetched"), 1);
}

TEST_F(Tiers, WhatTheRunHasIsNotFetched) {
  save(1, 2, 1);
  const Result<Fetched> fetched = fetch_newest(env, kRun, std::vector{remote, disk});
  ASSERT_OK(fetched);
  EXPECT_TRUE(fetched->folder.empty());
}

TEST_F(Tiers, ATierThatCannotBeAskedStopsOnlyARunWithoutAStep) {
  save(1, 2, 1);
  store.die_after(0, false);
  const Result<Fetched> fetched = fetch_newest(env, kRun, std::vector{remote}, &events);
  ASSERT_OK(fetched);
  EXPECT_EQ(fetched->skipped.size(), 1u);
  EXPECT_EQ(count("mirror_failed"), 1);
  ASSERT_OK(env.remove_all(kRun));
  EXPECT_ERROR(fetch_newest(env, kRun, std::vector{remote}), ErrorCode::kUnavailable);
  EXPECT_EQ(fetch_newest(env, kRun, std::vector{remote, disk})->tier, "/disk/gpt");
}

TEST_F(Tiers, TheRunDirectoryIsNoTierOfItself) {
  const std::vector<std::shared_ptr<StorageTier>> itself = {
      make_folder_tier(env, kRun / ".")};
  EXPECT_ERROR(fetch_newest(env, kRun, itself), ErrorCode::kInvalid);
}

// Steps 1 and 2, and step 1 once more, in the bucket "runs" under "gpt".
struct Objects : Tiers {
  void SetUp() override {
    save(1, 2, 1);
    save(1, 1, 2);
    const auto tier = make_object_tier(ObjectTier::create(*bucket, "gpt").value());
    const auto run = make_folder_tier(env, kRun);
    for (const TierStep& step : run->steps().value()) {
      ASSERT_OK(copy_step(*run, step, *tier));
    }
  }
  void flip(const std::string& suffix) {
    for (const ObjectInfo& object : bucket->list("gpt/").value()) {
      if (!object.key.ends_with(suffix)) continue;
      Bytes bytes = bucket->get(object.key, kReadLimit).value();
      bytes[bytes.size() / 2] ^= std::byte{1};
      ASSERT_OK(bucket->put(object.key, bytes));
    }
  }

  const std::shared_ptr<MemoryObjectStore> bucket =
      std::make_shared<MemoryObjectStore>();
  ObjectEnv opened{
      env, [this](const std::string& name) -> Result<std::shared_ptr<ObjectStore>> {
        if (name != "runs") return not_found("s3://{}: no such bucket", name);
        return std::shared_ptr<ObjectStore>(bucket);
      }};
  const Path gpt = "s3://runs/gpt";
};

TEST_F(Objects, AreListedLikeARunDirectory) {
  const Result<Overview> seen = overview(opened, "s3://runs");
  ASSERT_OK(seen);
  ASSERT_EQ(seen->runs.size(), 1u);
  const RunView& run = seen->runs[0];
  EXPECT_EQ(run.path, gpt);
  ASSERT_EQ(run.steps.size(), 3u);
  EXPECT_EQ(run.steps[0].step.name.text(), "step-00000001.g2");
  EXPECT_EQ(run.steps[1].step.name.text(), "step-00000002");
  EXPECT_TRUE(run.steps[0].newest);
  EXPECT_ERROR(overview(opened, "s3://runs/other"), ErrorCode::kNotFound);
  EXPECT_ERROR(overview(opened, "s3://elsewhere/gpt"), ErrorCode::kNotFound);
}

TEST_F(Objects, AreFoundByStepAndRestoredWithoutACopy) {
  EXPECT_EQ(find_any(opened, "s3://runs/gpt@2")->path, gpt / "step-00000002");
  EXPECT_EQ(find_any(opened, "s3:/runs/gpt/")->path.filename(), "step-00000001.g2");
  EXPECT_ERROR(find_any(opened, "s3://runs/gpt@7"), ErrorCode::kNotFound);
  job.set(values_at(9));
  const LocalState state = job.state(0);
  const Result<RestoredState> restored =
      restore(opened, gpt, state, nullptr, {.step = 2});
  ASSERT_OK(restored);
  EXPECT_TRUE(job.has(values_at(2)));
}

TEST_F(Objects, AreVerifiedToTheLastByte) {
  const auto whole = verify(opened, gpt);
  ASSERT_OK(whole);
  ASSERT_EQ(whole->size(), 3u);
  for (const Verified& step : *whole) EXPECT_TRUE(step.whole());
  flip(".safetensors");
  for (const Verified& step : verify(opened, gpt).value()) EXPECT_FALSE(step.whole());
}

TEST_F(Objects, ADamagedManifestHasNoNumberAndTheNameOfItsKey) {
  const auto keys = bucket->list("gpt/manifest-").value();
  Bytes bytes = bucket->get(keys[1].key, kReadLimit).value();  // of step 2
  bytes[bytes.size() / 2] ^= std::byte{1};
  ASSERT_OK(bucket->put(keys[1].key, bytes));
  const Result<RunView> seen = view_run(opened, gpt);
  ASSERT_OK(seen);
  EXPECT_EQ(seen->steps.size(), 2u);
  ASSERT_EQ(seen->skipped.size(), 1u);
  EXPECT_EQ("gpt/" + seen->skipped[0].folder, keys[1].key);
  EXPECT_EQ(seen->skipped[0].error.code(), ErrorCode::kCorrupt);
  EXPECT_ERROR(find_any(opened, "s3://runs/gpt@0"), ErrorCode::kNotFound);
  const auto verified = verify(opened, gpt).value();
  ASSERT_EQ(verified.size(), 3u);
  EXPECT_EQ("s3://runs/" + keys[1].key, verified[2].path);
  EXPECT_FALSE(verified[2].whole());
}

TEST_F(Objects, ADamagedManifestIsNotPassedOver) {
  flip(".json");
  const auto seen = verify(opened, gpt);
  ASSERT_OK(seen);
  EXPECT_EQ(seen->size(), 3u);
  for (const Verified& step : *seen) EXPECT_FALSE(step.whole());
}

TEST_F(Objects, AreNotWrittenTo) {
  EXPECT_ERROR(opened.write_file(gpt / "latest", {}), ErrorCode::kUnsupported);
  EXPECT_ERROR(opened.create_folder(gpt / "step-00000009"), ErrorCode::kUnsupported);
  EXPECT_ERROR(opened.remove_file(gpt / "holdfast.json"), ErrorCode::kUnsupported);
  EXPECT_ERROR(opened.rename(kRun, gpt), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace holdfast::testing
