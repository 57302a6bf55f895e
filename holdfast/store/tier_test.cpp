#include "holdfast/store/tier.h"

#include <gtest/gtest.h>

#include "holdfast/base/testing.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/remote/object_memory_testing.h"
#include "holdfast/store/object_store_run.h"
#include "holdfast/store/run.h"
#include "holdfast/store/store_testing.h"

namespace holdfast {
namespace {

// A run with two steps, and one tier of each kind.
class TierTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    holdfast::Run run = Run::create_or_open(env, kTestRun).value();
    run_id = run.id();
    owner.emplace(run.acquire(test_process(1)).value());
    for (const int64_t step : {100, 200}) {
      ASSERT_OK(save_tiny(run, *owner, step, static_cast<uint64_t>(step)));
    }
    if (GetParam()) {
      to = make_object_tier(ObjectStoreRun::create(store, "gpt").value());
    } else {
      to = make_folder_tier(env, "/dev/shm/gpt");
    }
  }

  Bytes file(StorageTier& tier, const TierStep& step, const std::string& name) {
    const auto source = tier.open(step, name).value();
    return source->read_bytes(0, source->size()).value();
  }

  MemoryEnv env{1};
  MemoryObjectStore store;
  std::string run_id;
  std::optional<Owner> owner;
  std::unique_ptr<StorageTier> from = make_folder_tier(env, kTestRun);
  std::unique_ptr<StorageTier> to;
};

TEST_P(TierTest, ACopyIsTheSameCheckpoint) {
  for (const TierStep& step : from->steps().value()) {
    ASSERT_OK(copy_step(*from, step, *to));
  }
  const std::vector<TierStep> steps = to->steps().value();
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].manifest.step, 200);
  for (size_t i = 0; i < 2; ++i) {
    const TierStep original = from->steps().value()[i];
    EXPECT_EQ(steps[i].manifest_bytes, original.manifest_bytes);
    for (const ManifestFile& each : original.manifest.files) {
      EXPECT_EQ(file(*to, steps[i], each.name), file(*from, original, each.name));
    }
  }
}

TEST_P(TierTest, CopyingTwiceIsCopyingOnce) {
  const TierStep newest = from->steps().value()[0];
  ASSERT_OK(copy_step(*from, newest, *to));
  ASSERT_OK(copy_step(*from, newest, *to));
  EXPECT_EQ(to->steps().value().size(), 1u);
}

TEST_P(TierTest, ADamagedStepIsNotCopied) {
  const TierStep newest = from->steps().value()[0];
  const Path shard = Path(kTestRun) / newest.id / "rank-0000.safetensors";
  Bytes bytes = env.read_file(shard).value();
  bytes[700] ^= std::byte{8};
  ASSERT_OK(env.replace_file(shard, bytes));
  EXPECT_ERROR(copy_step(*from, newest, *to), ErrorCode::kCorrupt);
  EXPECT_TRUE(to->steps().value().empty());
}

// Overwrites the manifests of all steps in the object store.
void damage_manifests(MemoryObjectStore& store) {
  for (const ObjectInfo& object : store.list("gpt/manifest-").value()) {
    Bytes bytes = store.get(object.key, kReadLimit).value();
    bytes[bytes.size() / 2] ^= std::byte{1};
    ASSERT_OK(store.put(object.key, bytes));
  }
}

TEST_P(TierTest, DamagedStepsAreNamed) {
  ASSERT_OK(copy_step(*from, from->steps().value()[0], *to));
  if (GetParam()) {
    damage_manifests(store);
  } else {
    ASSERT_OK(env.replace_file("/dev/shm/gpt/step-00000200/manifest.json", {}));
  }
  const TierSteps held = to->list().value();
  EXPECT_TRUE(held.steps.empty());
  ASSERT_EQ(held.unusable.size(), 1u);
  EXPECT_TRUE(is_damage(held.unusable[0].error));
  EXPECT_EQ(held.unusable[0].epoch.has_value(), GetParam());
}

// Otherwise a fetch would take an older step in its place.
TEST_P(TierTest, WhatGoesWrongWhereAStepIsCopiedToIsNoDamageOfTheStep) {
  if (GetParam()) return;
  const TierStep newest = from->steps().value()[0];
  FaultyEnv faulty(env);
  const auto swept = make_folder_tier(faulty, "/dev/shm/gpt");
  for (const Op op : {Op::kOpen, Op::kWrite, Op::kSync, Op::kRename, Op::kCreateFolder}) {
    const int64_t before = faulty.calls(op);
    faulty.fail_at(op, 2, ErrorCode::kNotFound);
    const Result<void> copied = copy_step(*from, newest, *swept);
    if (faulty.calls(op) < before + 2) continue;  // it has only one such call
    ASSERT_FALSE(copied.ok()) << name_of(op);
    EXPECT_FALSE(is_damage(copied.error())) << name_of(op) << copied.error().message();
  }
  ASSERT_OK(copy_step(*from, newest, *to));
}

TEST_P(TierTest, AnotherRunsStepsAreRefused) {
  ASSERT_OK(copy_step(*from, from->steps().value()[0], *to));
  holdfast::Run other = Run::create_or_open(env, "/runs/other").value();
  const Owner its_owner = other.acquire(test_process(2)).value();
  ASSERT_OK(save_tiny(other, its_owner, 300, 3));
  const auto from_other = make_folder_tier(env, "/runs/other");
  const TierStep step = from_other->steps().value()[0];
  EXPECT_ERROR(copy_step(*from_other, step, *to), ErrorCode::kConflict);
  if (!GetParam()) return;
  damage_manifests(store);  // now nobody can tell which run the steps belong to
  EXPECT_ERROR(copy_step(*from_other, step, *to), ErrorCode::kCorrupt);
}

TEST_P(TierTest, WhatAKilledCopyLeftIsSwept) {
  ASSERT_OK(copy_step(*from, from->steps().value()[0], *to));
  const WallTime later = env.wall_now() + std::chrono::hours(1);
  EXPECT_EQ(to->sweep(run_id, later).value(), 0);
  if (GetParam()) {
    ASSERT_OK(store.put("gpt/data/00000000000000aa/rank-0000.safetensors", {}));
  } else {
    ASSERT_OK(env.create_folder("/dev/shm/gpt/step-00000300.00000000000000aa.tmp"));
  }
  EXPECT_EQ(to->sweep("another run", later).value(), 0);
  EXPECT_EQ(to->sweep(run_id, later).value(), 1);
  EXPECT_EQ(to->steps().value().size(), 1u);
}

TEST_P(TierTest, ARunDirectoryThatSomebodyOwnsIsNotSwept) {
  ASSERT_OK(env.create_folder(Path(kTestRun) / "step-00000300.00000000000000aa.tmp"));
  EXPECT_EQ(from->sweep(run_id, env.wall_now()).value(), 0);
}

TEST_P(TierTest, WhatTheRulesKeepStays) {
  for (const TierStep& step : from->steps().value()) {
    ASSERT_OK(copy_step(*from, step, *to));
  }
  ASSERT_OK(retain(*to, {.last = 1, .every = 100}));
  EXPECT_EQ(to->steps().value().size(), 2u);
  ASSERT_OK(retain(*to, {.last = 1}));
  const std::vector<TierStep> left = to->steps().value();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].manifest.step, 200);
}

INSTANTIATE_TEST_SUITE_P(Kinds, TierTest, ::testing::Values(false, true),
                         [](const auto& kind) {
                           return kind.param ? "Object" : "Folder";
                         });

TEST(ObjectStoreRun, StepFoldersThatWereCopiedThereAreNotOverlooked) {
  MemoryObjectStore store;
  ASSERT_OK(store.put("gpt/step-00000400/manifest.json", {}));
  ASSERT_OK(store.put("gpt/step-notes.txt", {}));
  const auto tier = make_object_tier(ObjectStoreRun::create(store, "gpt").value());
  const TierSteps held = tier->list().value();
  ASSERT_EQ(held.unusable.size(), 1u);
  EXPECT_EQ(held.unusable[0].id, "step-00000400");
}

TEST(FolderTier, ACopyThatIsKilledAnywhereIsThereWholeOrNotAtAll) {
  for (const Unsynced policy :
       {Unsynced::kKept, Unsynced::kLost, Unsynced::kReordered}) {
    for (int64_t call = 1;; ++call) {
      MemoryEnv disk(1);
      holdfast::Run run = Run::create_or_open(disk, kTestRun).value();
      const Owner owner = run.acquire(test_process(1)).value();
      ASSERT_OK(save_tiny(run, owner, 100, 7));
      const auto from = make_folder_tier(disk, kTestRun);
      const TierStep step = from->steps().value()[0];
      FaultyEnv faulty(disk);
      faulty.crash_at(Op::kAny, call);
      const auto to = make_folder_tier(faulty, "/mirror/gpt");
      const bool copied = copy_step(*from, step, *to).ok();
      const auto after = disk.after_crash({policy, static_cast<uint64_t>(call)});
      const auto found = make_folder_tier(*after, "/mirror/gpt")->steps();
      if (copied) {
        ASSERT_OK(found);
        ASSERT_EQ(found->size(), 1u);
      }
      if (found.ok() && !found->empty()) {
        const Path folder = Path("/mirror/gpt") / found->front().id;
        EXPECT_TRUE(check_step(*after, folder, Depth::kFull)->whole()) << call;
      }
      if (!faulty.crashed()) break;
    }
  }
}

}  // namespace
}  // namespace holdfast
