#include "holdfast/store/attempt.h"

#include "holdfast/env/collecting_sink.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/store/events.h"
#include "holdfast/store/retention.h"
#include "holdfast/store/store_testing.h"

namespace holdfast {
namespace {

Result<Owner> take(const holdfast::Run& run, int64_t pid) {
  return run.acquire(test_process(pid), {.alive = nobody_lives()});
}

class AttemptTest : public testing::Test {
 protected:
  AttemptTest()
      : run(holdfast::Run::create_or_open(disk, kTestRun).value()),
        owner(take(run, 1).value()) {}

  MemoryEnv disk;
  holdfast::Run run;
  Owner owner;
  CollectingSink events;
};

TEST_F(AttemptTest, ACommittedStepHasAllFilesAndAManifestThatNamesThem) {
  const Result<Path> folder = save_tiny(run, owner, 400, 5, {{"loss", 0.5}}, &events);
  ASSERT_OK(folder);
  EXPECT_EQ(*folder, Path(kTestRun) / "step-00000400");
  EXPECT_EQ(read_step(disk, *folder).value(), files_of(tiny_step(5)));
  const Manifest manifest = read_manifest(disk, *folder).value();
  EXPECT_EQ(manifest.step, 400);
  EXPECT_EQ(manifest.run, run.id());
  EXPECT_EQ(manifest.epoch, 1);
  EXPECT_EQ(manifest.sequence, 1);
  EXPECT_EQ(manifest.created, disk.wall_now());
  EXPECT_EQ(manifest.metrics.at("loss"), 0.5);
  EXPECT_EQ(manifest.files.size(), 3u);
  EXPECT_EQ(disk.read_text(Path(kTestRun) / "latest").value(), "step-00000400\n");
  ASSERT_EQ(events.records().size(), 2u);
  EXPECT_EQ(events.records()[0].name, AttemptStarted::kName);
  EXPECT_EQ(event_as<StepCommitted>(events.records()[1]).value().folder,
            "step-00000400");
}

TEST_F(AttemptTest, SeveralRanksWriteInOneFolder) {
  Attempt first = Attempt::begin(run, owner, 7, 99).value();
  Attempt second = Attempt::join(run, 7, 99).value();
  Manifest manifest{.world = 2, .files = {first.put_file("a", bytes_of("1")).value()}};
  manifest.files.push_back(second.put_file("b", bytes_of("22")).value());
  ASSERT_OK(second.sync());
  ASSERT_OK(first.sync());
  EXPECT_ERROR(run.committed(7, 99), ErrorCode::kNotFound);
  ASSERT_OK(first.commit(manifest));
  EXPECT_EQ(run.committed(7, 99)->folder.filename(), "step-00000007");
  EXPECT_ERROR(run.committed(7, 98), ErrorCode::kNotFound);
  ASSERT_OK(second.abandon("heard nothing"));
  EXPECT_TRUE(check_step(disk, run.path() / "step-00000007", Depth::kFull)->whole());
}

TEST_F(AttemptTest, JoiningWhatWasNotBegunFails) {
  EXPECT_ERROR(Attempt::join(run, 7, 99), ErrorCode::kNotFound);
}

TEST_F(AttemptTest, AFileThatIsMissingOrHasAnotherSizeIsNotCommitted) {
  for (const ManifestFile& file : {ManifestFile{"missing", 1, xxh3_digest({})},
                                   ManifestFile{"a", 2, xxh3_digest({})},
                                   ManifestFile{"../a", 1, xxh3_digest({})}}) {
    Attempt attempt = Attempt::begin(run, owner, 7, disk.random64()).value();
    ASSERT_OK(attempt.put_file("a", bytes_of("1")));
    EXPECT_FALSE(attempt.commit({.files = {file}}).ok()) << file.name;
  }
  EXPECT_TRUE(run.steps()->steps.empty());
}

TEST_F(AttemptTest, AManifestThatReadersWouldRefuseIsNotCommitted) {
  Attempt attempt = Attempt::begin(run, owner, 7, 99).value();
  EXPECT_ERROR(attempt.commit({.world = 0}), ErrorCode::kCorrupt);
}

TEST_F(AttemptTest, AnAttemptThatIsDroppedLeavesNothing) {
  {
    Attempt attempt = Attempt::begin(run, owner, 7, 99, &events).value();
    ASSERT_OK(attempt.put_file("a", bytes_of("1")));
  }
  EXPECT_ERROR(run.committed(7, 99), ErrorCode::kNotFound);
  EXPECT_EQ(events.records().back().name, AttemptAbandoned::kName);
}

TEST_F(AttemptTest, WhoLostTheRunCommitsNothing) {
  Attempt attempt = Attempt::begin(run, owner, 7, 99).value();
  const auto files = write_tiny(disk, attempt, 1);
  ASSERT_OK(take(run, 2));
  EXPECT_ERROR(attempt.commit({.files = *files}), ErrorCode::kConflict);
  EXPECT_ERROR(Attempt::begin(run, owner, 8, 1), ErrorCode::kConflict);
  EXPECT_TRUE(run.steps()->steps.empty());
}

TEST_F(AttemptTest, ALostAnswerOfTheRenameIsLookedUp) {
  FaultyEnv env(disk);
  const holdfast::Run slow = holdfast::Run::open(env, kTestRun).value();
  env.fail_after(Op::kRename, 1);
  const Result<Path> folder = save_tiny(slow, owner, 7, 1);
  ASSERT_OK(folder);
  EXPECT_EQ(folder->filename(), "step-00000007");
  env.fail_after(Op::kRename, 1, ErrorCode::kConflict);
  EXPECT_OK(save_tiny(slow, owner, 8, 1));
  EXPECT_EQ(run.steps()->steps.size(), 2u);
}

TEST_F(AttemptTest, WhereNothingCanBeLookedUpTheOutcomeIsUnknown) {
  FaultyEnv env(disk);
  const holdfast::Run slow = holdfast::Run::open(env, kTestRun).value();
  Attempt attempt = Attempt::begin(slow, owner, 7, 99).value();
  const auto files = write_tiny(env, attempt, 1);
  env.crash_at(Op::kRename, 1);
  EXPECT_ERROR(attempt.commit({.files = *files}), ErrorCode::kUnavailable);
  EXPECT_ERROR(run.committed(7, 99), ErrorCode::kNotFound);
}

TEST_F(AttemptTest, AFailedSyncOfTheRunIsNeverForgotten) {
  FaultyEnv env(disk);
  const holdfast::Run sick = holdfast::Run::open(env, kTestRun).value();
  ASSERT_OK(save_tiny(sick, owner, 1, 1));
  Attempt attempt = Attempt::begin(sick, owner, 2, 99).value();
  const auto files = write_tiny(env, attempt, 2);
  env.before(Op::kRename, 1, [&] { env.fail_at(Op::kSyncFolder, 1); });
  const Result<Path> folder = attempt.commit({.files = *files});
  EXPECT_ERROR(folder, ErrorCode::kIo);
  EXPECT_NE(message_of(folder).find("committed as step-00000002"), std::string::npos);
  ASSERT_OK(attempt.abandon("failed"));
  EXPECT_TRUE(check_step(disk, run.path() / "step-00000002", Depth::kFull)->whole());
  EXPECT_ERROR(Retention(sick, owner, {.last = 1}).run(), ErrorCode::kIo);
  EXPECT_ERROR(save_tiny(sick, owner, 3, 3), ErrorCode::kIo);
  EXPECT_OK(save_tiny(run, owner, 3, 3));
}

TEST_F(AttemptTest, AHintThatCannotBeWrittenIsOnlyAnEvent) {
  FaultyEnv env(disk);
  const holdfast::Run sick = holdfast::Run::open(env, kTestRun).value();
  env.fail_at(Op::kRename, 2, ErrorCode::kNoSpace);
  ASSERT_OK(save_tiny(sick, owner, 1, 1, {}, &events));
  EXPECT_EQ(events.records().back().name, LatestNotWritten::kName);
}

TEST_F(AttemptTest, SpaceIsCheckedWithAReserve) {
  disk.set_capacity(1'000'000);
  const int64_t free = disk.free_space(kTestRun).value();
  EXPECT_OK(check_space(run, free - 10, 10));
  EXPECT_ERROR(check_space(run, free - 10, 11), ErrorCode::kNoSpace);
  EXPECT_ERROR(check_space(run, INT64_MAX, 11), ErrorCode::kNoSpace);
}

// --- Crashes -------------------------------------------------------------------------

// How far second_save() got.
struct Progressed {
  bool saved = false;
  bool ended = false;
};

// Does what a job does: opens the run, takes it, sweeps, saves step 2, removes step 1.
Progressed second_save(Env& env) {
  Progressed seen;
  const Result<holdfast::Run> run = holdfast::Run::create_or_open(env, kTestRun);
  if (!run.ok()) return seen;
  const Result<Owner> owner = take(*run, 2);
  if (!owner.ok() || !run->sweep(*owner, {}).ok()) return seen;
  seen.saved = save_tiny(*run, *owner, 2, 2).ok();
  if (seen.saved) seen.ended = Retention(*run, *owner, {.last = 1}).run().ok();
  return seen;
}

// Makes step 1 durable on the disk, and leaves an attempt as a crash would.
void first_save(Env& env) {
  const holdfast::Run run = holdfast::Run::create_or_open(env, kTestRun).value();
  const Owner owner = take(run, 1).value();
  ASSERT_OK(save_tiny(run, owner, 1, 1));
  ASSERT_OK(env.create_folders(run.path() / "step-00000009.0000000000000009.tmp"));
}

// Expects that the newest whole step is 1 or 2 with the right bytes, and that it is 2
// if `saved` says that the save of step 2 succeeded.
void expect_kept(Env& env, bool saved, const std::string& what) {
  SCOPED_TRACE(what);
  const Result<holdfast::Run> run = holdfast::Run::create_or_open(env, kTestRun);
  ASSERT_OK(run);
  const Result<NewestWhole> newest = run->newest_whole(Depth::kFull);
  ASSERT_OK(newest);
  const int64_t step = newest->step.name.step;
  EXPECT_TRUE(step == 2 || (step == 1 && !saved)) << step;
  EXPECT_EQ(read_step(env, newest->step.folder).value(),
            files_of(tiny_step(static_cast<uint64_t>(step))));
}

// Expects also that the next job can take the run, save step 3 and remove all
// leftovers.
void expect_recovers(Env& env, bool saved, const std::string& what) {
  expect_kept(env, saved, what);
  SCOPED_TRACE(what);
  const Result<holdfast::Run> run = holdfast::Run::create_or_open(env, kTestRun);
  ASSERT_OK(run);
  const Result<Owner> owner = take(*run, 3);
  ASSERT_OK(owner);
  ASSERT_OK(run->sweep(*owner, {}));
  ASSERT_OK(save_tiny(*run, *owner, 3, 3));
  EXPECT_EQ(run->newest_whole(Depth::kFull)->step.name.step, 3);
  ASSERT_OK(Retention(*run, *owner, {.last = 1}).run());
  for (const std::string& name : env.list(kTestRun).value()) {
    EXPECT_FALSE(name.ends_with(".tmp") || name.ends_with(".trash")) << name;
  }
}

// A new copy of the disk on each call. The first save is made only once.
std::unique_ptr<MemoryEnv> disk_with_first_save() {
  static const std::unique_ptr<MemoryEnv> kDisk = [] {
    auto made = std::make_unique<MemoryEnv>();
    first_save(*made);
    return made;
  }();
  return kDisk->after_crash({Unsynced::kKept});
}

int64_t calls_of_second_save() {
  const auto disk = disk_with_first_save();
  FaultyEnv env(*disk);
  EXPECT_TRUE(second_save(env).ended);
  return env.calls();
}

TEST(CommitCrash, AtEveryCallTheNewestWholeIsTheNewOneOrThePreviousOne) {
  const int64_t calls = calls_of_second_save();
  EXPECT_GT(calls, 80);
  for (int64_t k = 1; k <= calls + 1; ++k) {
    const auto disk = disk_with_first_save();
    FaultyEnv env(*disk);
    env.crash_at(Op::kAny, k);
    const Progressed seen = second_save(env);
    ASSERT_EQ(env.crashed(), k <= calls);
    ASSERT_TRUE(seen.ended || k <= calls);
    for (const auto& [left, seeds] :
         {std::pair(Unsynced::kKept, 1), std::pair(Unsynced::kLost, 1),
          std::pair(Unsynced::kReordered, 4)}) {
      for (int seed = 0; seed < seeds; ++seed) {
        const auto after = disk->after_crash({left, static_cast<uint64_t>(seed + k)});
        const auto expect = seed == 0 ? expect_recovers : expect_kept;
        expect(*after, seen.saved, fmt::format("call {}, {}", k, seed));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// The process survives the failure. In a second variant the power fails after it.
TEST(CommitCrash, AFailureOfAnyCallLosesNoCommittedStep) {
  const int64_t calls = calls_of_second_save();
  for (int64_t k = 1; k <= calls; ++k) {
    for (int way = 0; way < 4; ++way) {
      const auto disk = disk_with_first_save();
      FaultyEnv env(*disk);
      if (way == 0) env.fail_at(Op::kAny, k);
      if (way == 1) env.fail_at(Op::kAny, k, ErrorCode::kNoSpace);
      if (way == 2) env.fail_after(Op::kAny, k);
      if (way == 3) env.fail_from(Op::kWrite, k, ErrorCode::kNoSpace);
      const Progressed seen = second_save(env);
      for (const Unsynced left : {Unsynced::kLost, Unsynced::kReordered}) {
        const auto after = disk->after_crash({left, static_cast<uint64_t>(k)});
        expect_kept(*after, seen.saved, fmt::format("call {}, way {}, off", k, way));
      }
      expect_recovers(*disk, seen.saved, fmt::format("call {}, way {}", k, way));
      if (testing::Test::HasFailure()) return;
    }
  }
}

// After a failure the same job saves again on the same disk, where a failed sync stays
// failed.
TEST(CommitCrash, TryingAgainAfterAFailureNeverLosesThePreviousStep) {
  const int64_t calls = calls_of_second_save();
  for (int64_t k = 1; k <= calls; ++k) {
    const auto disk = disk_with_first_save();
    FaultyEnv env(*disk);
    const Result<holdfast::Run> run = holdfast::Run::create_or_open(env, kTestRun);
    ASSERT_OK(run);
    const Result<Owner> owner = take(*run, 2);
    ASSERT_OK(owner);
    env.fail_at(Op::kAny, k);
    bool saved = save_tiny(*run, *owner, 2, 2).ok();
    for (int i = 0; i < 2 && !saved; ++i) saved = save_tiny(*run, *owner, 2, 2).ok();
    (void)Retention(*run, *owner, {.last = 1}).run();
    for (const Unsynced left :
         {Unsynced::kKept, Unsynced::kLost, Unsynced::kReordered}) {
      const auto after = disk->after_crash({left, static_cast<uint64_t>(k)});
      expect_kept(*after, saved, fmt::format("call {}", k));
    }
    if (testing::Test::HasFailure()) return;
  }
}

// While the first job saves, another job tries to take the run before each call, and is
// refused each time.
TEST(CommitCrash, TwoWritersOnOneFolderAreRefusedAtEveryCall) {
  const Liveness both = only_live({1, 2});
  for (int64_t k = 1, calls = 1; k <= calls; ++k) {
    MemoryEnv disk;
    FaultyEnv env(disk);
    const holdfast::Run run = holdfast::Run::create_or_open(env, kTestRun).value();
    const Owner owner = run.acquire(test_process(1), {.alive = both}).value();
    env.before(Op::kAny, k, [&] {
      const holdfast::Run other = holdfast::Run::open(disk, kTestRun).value();
      EXPECT_ERROR(other.acquire(test_process(2), {.alive = both}),
                   ErrorCode::kConflict);
    });
    const int64_t before = env.calls();
    ASSERT_OK(save_tiny(run, owner, 1, 1));
    calls = env.calls() - before;
  }
}

}  // namespace
}  // namespace holdfast
