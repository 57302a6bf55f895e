// Tests saves that are copied to further tiers, and restores from a tier when the run
// directory is lost.
#include <gtest/gtest.h>

#include "holdfast/checkpoint/checkpoint_testing.h"
#include "holdfast/checkpoint/fetch.h"
#include "holdfast/env/collecting_sink.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/remote/object_memory_testing.h"
#include "holdfast/store/object_store_run.h"
#include "holdfast/store/retention.h"

namespace holdfast::tests::tiers_test {
namespace {

struct Tiers : ::testing::Test {
  SaverOptions options(int boots) {
    SaverOptions made = test_options(boots);
    made.tier = "memory";
    made.tiers = {{.tier = disk},
                  {.tier = remote, .every = 2, .keep = Keep{.last = 1}}};
    made.events = &events;
    return made;
  }
  void save(int64_t first, int64_t last, int boots) {
    const auto saver = Saver::open(env, kRun, nullptr, options(boots));
    ASSERT_OK(saver);
    for (int64_t step = first; step <= last; ++step) {
      job.set(small_state_at(step));
      const LocalState state = job.state(0);
      const Result<SaveHandle> handle = (*saver)->save({.step = step, .state = &state});
      ASSERT_OK(handle);
      ASSERT_OK(handle->durable());
      EXPECT_EQ(handle->durable()->tier, "memory");
    }
    ASSERT_OK((*saver)->close());
  }

  // Saves one step and copies it to these tiers only.
  void save_to(const std::vector<std::shared_ptr<StorageTier>>& tiers, int64_t step,
               int boots, const Path& run = kRun) {
    SaverOptions made = test_options(boots);
    for (const auto& tier : tiers) made.tiers.push_back({.tier = tier});
    const auto saver = Saver::open(env, run, nullptr, made);
    ASSERT_OK(saver);
    job.set(small_state_at(step));
    const LocalState state = job.state(0);
    ASSERT_OK((*saver)->save({.step = step, .state = &state}));
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
      make_object_tier(ObjectStoreRun::create(store, "gpt").value());
  Job job{replicated(small_state(), 1)};
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
  EXPECT_TRUE(job.has(small_state_at(3)));
  save(4, 4, 2);  // the run continues after step 3
  EXPECT_EQ(restore_alone(env, job)->step, 4);
}

TEST_F(Tiers, AMachineThatLostEverythingComesBackFromTheObjectStore) {
  save(1, 3, 1);
  MemoryEnv fresh(2);
  const Result<RestoredState> restored = restore_alone(fresh, job, {.tiers = {remote}});
  ASSERT_OK(restored);
  EXPECT_EQ(restored->step, 2);
  EXPECT_TRUE(job.has(small_state_at(2)));
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
  EXPECT_TRUE(job.has(small_state_at(2)));
}

TEST_F(Tiers, ATierThatFailsIsAnEventAndNothingMore) {
  save(1, 1, 1);
  store.die_after(0, false);
  save(2, 3, 2);
  EXPECT_EQ(restore_alone(env, job)->step, 3);
  EXPECT_EQ(count("tier_copy_failed"), 1);
}

// Makes each copy take ten seconds.
struct SlowCopies : EventSink {
  explicit SlowCopies(MemoryEnv& slowed) : env(slowed) {}
  void put(const EventRecord& record) override {
    if (record.name == "step_copied") env.advance(std::chrono::seconds(10));
  }
  MemoryEnv& env;
};

// Copies may be under way for a fifth of the time, so the tier pauses for 40 s after
// each. It gets the newest step when the saver is closed.
TEST_F(Tiers, ASlowTierGetsFewerSteps) {
  SlowCopies slow(env);
  SaverOptions made = test_options(1);
  made.tiers = {{.tier = disk}};
  made.tier_duty = 0.2;
  made.events = &slow;
  const auto saver = Saver::open(env, kRun, nullptr, made);
  ASSERT_OK(saver);
  for (int64_t step = 1; step <= 5; ++step) {
    job.set(small_state_at(step));
    const LocalState state = job.state(0);
    ASSERT_OK((*saver)->save({.step = step, .state = &state}));
    env.advance(std::chrono::seconds(15));
  }
  EXPECT_EQ(disk->steps()->size(), 2u);  // 1, and 4 after 45 s
  ASSERT_OK((*saver)->close());
  std::vector<int64_t> steps;
  for (const TierStep& step : *disk->steps()) steps.push_back(step.manifest.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{5, 4, 1}));
}

TEST_F(Tiers, BackgroundCopiesAreDoneWhenTheSaverIsClosed) {
  SaverOptions with_threads = options(1);
  with_threads.background = true;
  job.set(small_state_at(8));
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
  const Result<Fetched> fetched = fetch_newest(env, kRun, tiers, {.events = &events});
  ASSERT_OK(fetched);
  EXPECT_EQ(fetched->tier, "/disk/gpt");
  EXPECT_EQ(fetched->folder, kRun / "step-00000003");
  save(4, 4, 2);
  EXPECT_EQ(disk->steps()->front().manifest.step, 4);
  EXPECT_EQ(count("tier_copy_failed"), 0);
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
  const Result<Fetched> fetched =
      fetch_newest(env, kRun, std::vector{remote}, {.events = &events});
  ASSERT_OK(fetched);
  EXPECT_EQ(fetched->skipped.size(), 1u);
  EXPECT_EQ(count("tier_copy_failed"), 1);
  ASSERT_OK(env.remove_all(kRun));
  EXPECT_ERROR(fetch_newest(env, kRun, std::vector{remote}), ErrorCode::kUnavailable);
  EXPECT_EQ(fetch_newest(env, kRun, std::vector{remote, disk})->tier, "/disk/gpt");
}

TEST_F(Tiers, TheRunDirectoryIsNoTierOfItself) {
  const std::vector<std::shared_ptr<StorageTier>> itself = {
      make_folder_tier(env, kRun / ".")};
  EXPECT_ERROR(fetch_newest(env, kRun, itself), ErrorCode::kInvalid);
}

// A run that has lost its directory and whose steps are on further tiers.
struct LostRun : Tiers {
  // Flips a bit in all manifests of the object store, and in the manifests of the disk
  // tier of steps whose name ends with `of`.
  void damage_manifests(const std::string& of = "") {
    for (const std::string& name : env.list("/disk/gpt").value()) {
      if (!name.starts_with("step-") || !name.ends_with(of)) continue;
      flip(Path("/disk/gpt") / name / kManifestName);
    }
    for (const ObjectInfo& object : store.list("gpt/manifest-").value()) {
      Bytes bytes = store.get(object.key, kReadLimit).value();
      bytes[bytes.size() / 2] ^= std::byte{1};
      ASSERT_OK(store.put(object.key, bytes));
    }
  }
  void flip(const Path& file) {
    Bytes bytes = env.read_file(file).value();
    bytes[bytes.size() / 2] ^= std::byte{1};
    ASSERT_OK(env.replace_file(file, bytes));
  }
  void SetUp() override {
    save(1, 4, 1);
    ASSERT_OK(env.remove_all(kRun));
  }
  Result<void> open(std::vector<std::shared_ptr<StorageTier>> tiers,
                    bool allow = false) {
    SaverOptions opened = test_options(2);
    for (auto& tier : tiers) opened.tiers.push_back({.tier = tier});
    opened.allow_unreachable_tiers = allow;
    const auto saver = Saver::open(env, kRun, nullptr, opened);
    return saver.ok() ? (*saver)->close() : Result<void>(saver.error());
  }
};

TEST_F(LostRun, DoesNotBeginAnewBesideDamagedManifests) {
  damage_manifests();
  for (const auto& tier : {disk, remote}) {
    const std::vector<std::shared_ptr<StorageTier>> tiers = {tier};
    EXPECT_ERROR(fetch_newest(env, kRun, tiers), ErrorCode::kCorrupt);
    EXPECT_ERROR(restore_alone(env, job, {.tiers = tiers}), ErrorCode::kCorrupt);
    EXPECT_ERROR(open(tiers), ErrorCode::kCorrupt);
    EXPECT_ERROR(open(tiers, true), ErrorCode::kCorrupt);
  }
  EXPECT_FALSE(env.info(kRun / "holdfast.json").ok());
}

TEST_F(LostRun, SaysWhichNewerStepsOfATierAreDamaged) {
  damage_manifests("4");
  const Result<Fetched> fetched =
      fetch_newest(env, kRun, std::vector{disk}, {.events = &events});
  ASSERT_OK(fetched);
  EXPECT_EQ(fetched->folder.filename(), "step-00000003");
  ASSERT_EQ(fetched->skipped.size(), 1u);
  EXPECT_EQ(fetched->skipped[0].folder, "/disk/gpt/step-00000004");
  EXPECT_EQ(count("tier_copy_failed"), 1);
  const Result<RestoredState> restored = restore_alone(env, job, {.tiers = {disk}});
  ASSERT_OK(restored);
  EXPECT_EQ(restored->skipped.size(), 1u);
}

TEST_F(LostRun, ComesBackFromATierWithoutARunFile) {
  ASSERT_OK(env.remove_file("/disk/gpt/holdfast.json"));
  ASSERT_OK(fetch_newest(env, kRun, std::vector{disk}, {.events = &events}));
  EXPECT_EQ(count("tier_copy_failed"), 1);  // reports that the run file is missing
  const Result<RestoredState> restored = restore_alone(env, job, {.tiers = {disk}});
  ASSERT_OK(restored);
  EXPECT_EQ(restored->step, 4);
  EXPECT_TRUE(job.has(small_state_at(4)));
}

TEST_F(LostRun, DoesNotBeginAnewWithoutARunFileAndWithDamagedManifests) {
  ASSERT_OK(env.remove_file("/disk/gpt/holdfast.json"));
  damage_manifests();
  EXPECT_ERROR(fetch_newest(env, kRun, std::vector{disk}), ErrorCode::kCorrupt);
  EXPECT_ERROR(open({disk}), ErrorCode::kCorrupt);
}

TEST_F(LostRun, IsFetchedBeforeASaverOpensIt) {
  EXPECT_ERROR(open({disk}), ErrorCode::kConflict);
  EXPECT_ERROR(open({remote}), ErrorCode::kConflict);
  ASSERT_OK(fetch_newest(env, kRun, std::vector{disk}));
  EXPECT_OK(open({disk, remote}));
}

TEST_F(LostRun, DoesNotMixWithAnotherOfItsTiers) {
  ASSERT_OK(env.remove_all("/disk/gpt"));
  save_to({disk}, 9, 2, "/runs/other");
  const std::vector<std::shared_ptr<StorageTier>> both = {disk, remote};
  EXPECT_ERROR(fetch_newest(env, kRun, both), ErrorCode::kConflict);
  EXPECT_ERROR(restore_alone(env, job, {.tiers = both}), ErrorCode::kConflict);
}

TEST_F(LostRun, IsNotOverwrittenByANewRunOfTheSamePlace) {
  const size_t held = remote->steps()->size();
  ASSERT_OK(open({}));  // makes a run directory with another id and without a step
  EXPECT_ERROR(fetch_newest(env, kRun, std::vector{remote}), ErrorCode::kConflict);
  EXPECT_ERROR(open({remote}), ErrorCode::kConflict);
  damage_manifests();
  EXPECT_ERROR(open({remote}), ErrorCode::kCorrupt);
  EXPECT_EQ(remote->list()->unusable.size(), held);
}

TEST_F(LostRun, DoesNotBeginAnewWhileATierIsSilentUnlessAllowed) {
  store.die_after(0, false);
  const std::vector<std::shared_ptr<StorageTier>> tiers = {remote};
  EXPECT_ERROR(fetch_newest(env, kRun, tiers), ErrorCode::kUnavailable);
  EXPECT_ERROR(restore_alone(env, job, {.tiers = tiers}), ErrorCode::kUnavailable);
  const Result<void> opened = open(tiers);
  EXPECT_ERROR(opened, ErrorCode::kUnavailable);
  EXPECT_NE(message_of(opened).find("allow_unreachable_tiers"), std::string::npos);
  EXPECT_OK(fetch_newest(env, kRun, tiers, {.allow_unreachable_tiers = true}));
  EXPECT_OK(open(tiers, true));
  EXPECT_ERROR(
      restore_alone(env, job, {.tiers = tiers, .allow_unreachable_tiers = true}),
      ErrorCode::kNotFound);
}

// The disk has steps of the first owner, the object store has steps of later owners.
// While the object store did not answer, the run resumed from the disk.
TEST_F(LostRun, WhatIsSavedInAnOutageIsNewerThanWhatTheSilentTierHas) {
  for (int boots = 2; boots < 5; ++boots) {
    ASSERT_OK(fetch_newest(env, kRun, std::vector{disk, remote}));
    save_to({remote}, 100, boots);
    ASSERT_OK(env.remove_all(kRun));
  }
  store.die_after(0, false);
  ASSERT_OK(fetch_newest(env, kRun, std::vector{disk, remote}));
  save_to({disk, remote}, 5, 5);
  store.revive();
  const Result<RestoredState> restored =
      restore_alone(env, job, {.tiers = {disk, remote}});
  ASSERT_OK(restored);
  EXPECT_EQ(restored->step, 5);
}

TEST_F(LostRun, AFullDiskIsNoDamage) {
  FaultyEnv full(env);
  // Only one write fails, so an older step could be copied. It must not be used.
  full.fail_at(Op::kWrite, 2, ErrorCode::kNoSpace);
  const auto fetched = fetch_newest(full, kRun, std::vector{disk});
  EXPECT_ERROR(fetched, ErrorCode::kNoSpace);
  EXPECT_NE(message_of(fetched).find("step 4 "), std::string::npos);
  full.fail_at(Op::kWrite, 1, ErrorCode::kNoSpace);
  EXPECT_ERROR(restore_alone(full, job, {.tiers = {disk}}), ErrorCode::kNoSpace);
  EXPECT_EQ(restore_alone(full, job, {.tiers = {disk}})->step, 4);
}

TEST_F(LostRun, ATierThatBreaksOffIsNoDamage) {
  store.die_after(2, false);  // answers the listing and the manifest, then no more
  EXPECT_ERROR(fetch_newest(env, kRun, std::vector{remote}), ErrorCode::kUnavailable);
  store.die_after(2, false);
  EXPECT_ERROR(restore_alone(env, job, {.tiers = {remote}}), ErrorCode::kUnavailable);
  store.revive();
  EXPECT_EQ(restore_alone(env, job, {.tiers = {remote}})->step, 4);
}

TEST_F(LostRun, AllRanksHearThatTheirStepCannotBeFetched) {
  FaultyEnv full(env);
  full.fail_at(Op::kWrite, 2, ErrorCode::kNoSpace);
  Job two(replicated(small_state(), 2));
  run_ranks(env, 2, [&](int rank, Transport& transport) {
    const Result<RestoredState> restored =
        restore(full, kRun, two.state(rank), &transport, {.tiers = {disk}});
    EXPECT_ERROR(restored, ErrorCode::kNoSpace);
  });
}

TEST_F(LostRun, AnotherCopyOfTheSameStepWillDo) {
  store.die_after(2, false);
  const Result<RestoredState> restored =
      restore_alone(env, job, {.tiers = {remote, disk}});
  ASSERT_OK(restored);
  EXPECT_EQ(restored->step, 4);
  EXPECT_EQ(restored->tier, "/disk/gpt");
}

TEST_F(LostRun, ATierThatAnswersAgainIsAskedAgain) {
  FaultyEnv weak(env);
  weak.fail_at(Op::kWrite, 1, ErrorCode::kIo);
  EXPECT_EQ(fetch_newest(weak, kRun, std::vector{disk})->folder.filename(),
            "step-00000004");
}

TEST_F(Tiers, RemovalsFromATierAreEvents) {
  save(1, 4, 1);
  EXPECT_EQ(count("tier_step_removed"), 1);  // step 2 was removed when step 4 came
}

TEST_F(Tiers, APinnedStepStaysInThem) {
  save(1, 2, 1);
  ASSERT_OK(pin(Run::open(env, kRun).value(), {.step = 2}));
  save(3, 8, 2);
  const std::vector<TierStep> left = remote->steps().value();
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].manifest.step, 8);
  EXPECT_EQ(left[1].manifest.step, 2);
}

TEST_F(Tiers, AStepThatIsPinnedInATierStaysThere) {
  save(1, 2, 1);
  ASSERT_OK(pin(Run::open(env, "/disk/gpt").value(), {.step = 1}));
  ASSERT_OK(retain(*disk, {.last = 1}));
  EXPECT_EQ(disk->steps()->size(), 2u);
}

}  // namespace
}  // namespace holdfast::tests::tiers_test
