#include "holdfast/store/run.h"

#include "holdfast/env/collecting_sink.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/store/retention.h"
#include "holdfast/store/store_testing.h"

namespace holdfast {
namespace {

class RunTest : public testing::Test {
 protected:
  holdfast::Run run() { return holdfast::Run::create_or_open(disk, kTestRun).value(); }
  Owner take(int64_t pid) {
    return run().acquire(test_process(pid), {.alive = nobody_lives()}).value();
  }
  std::vector<std::string> names(const Result<StepList>& list) {
    std::vector<std::string> all;
    for (const Step& step : list.value().steps) all.push_back(step.name.text());
    return all;
  }
  std::string newest() {
    const Result<NewestWhole> found = run().newest_whole(Depth::kFull);
    return found.ok() ? found->step.name.text() : found.error().message();
  }

  MemoryEnv disk;
};

TEST(StepNames, ReadBackAndNothingElseDoes) {
  for (const StepName name : {StepName{.step = 0}, StepName{.step = 400},
                              StepName{.step = 400, .generation = 2},
                              StepName{.step = 123456789012, .generation = 17}}) {
    EXPECT_EQ(parse_step_name(name.text()), name) << name.text();
  }
  EXPECT_EQ((StepName{.step = 400, .generation = 2}).text(), "step-00000400.g2");
  for (const char* text :
       {"", "step-", "step-400", "step--0000400", "step-00000400.g1",
        "step-00000400.g0", "step-00000400.g02", "step-00000400.g", "step-00000400.x2",
        "step-000000400", "step-00000400.g2.", "Step-00000400",
        "step-00000400.0000000000000001.tmp", "step-00000400.pin",
        "step-99999999999999999999", "step-+0000400"}) {
    EXPECT_EQ(parse_step_name(text), std::nullopt) << text;
  }
  const AttemptName attempt{.step = 500, .attempt = 0x3f9a61};
  EXPECT_EQ(attempt.text(), "step-00000500.00000000003f9a61.tmp");
  EXPECT_EQ(parse_attempt_name(attempt.text()), attempt);
  EXPECT_EQ(parse_attempt_name("step-00000500.3f9a61.tmp"), std::nullopt);
  EXPECT_EQ(parse_attempt_name("step-00000500.g2.00000000003f9a61.tmp"), std::nullopt);
  EXPECT_EQ(parse_trash_name(trash_name({.step = 4, .generation = 3}, 5)),
            (StepName{.step = 4, .generation = 3}));
  EXPECT_EQ(parse_trash_name("my.0000000000000001.trash"), std::nullopt);
}

TEST_F(RunTest, AnIdIsMadeOnceAndKept) {
  const std::string id = run().id();
  EXPECT_EQ(id.size(), 32u);
  EXPECT_EQ(run().id(), id);
  EXPECT_EQ(holdfast::Run::open(disk, kTestRun).value().id(), id);
}

TEST_F(RunTest, WhatIsNoRunDoesNotOpen) {
  EXPECT_ERROR(holdfast::Run::open(disk, "/nowhere"), ErrorCode::kNotFound);
}

TEST_F(RunTest, ANewerLayoutIsNotSupported) {
  (void)run();
  ASSERT_OK(disk.write_file(Path(kTestRun) / "holdfast.json",
                            bytes_of("{\"holdfast\":\"run\",\"version\":3,\"x\":1}")));
  EXPECT_ERROR(holdfast::Run::create_or_open(disk, kTestRun), ErrorCode::kUnsupported);
}

TEST_F(RunTest, StepsWithoutTheRunsFileAreNotAdopted) {
  ASSERT_OK(save_tiny(run(), take(1), 400, 1));
  ASSERT_OK(disk.remove_file(Path(kTestRun) / "holdfast.json"));
  EXPECT_ERROR(holdfast::Run::create_or_open(disk, kTestRun), ErrorCode::kCorrupt);
}

TEST_F(RunTest, ARunThatWasRemovedIsMadeAnewForItsOwner) {
  const holdfast::Run own = run();
  Owner owner = own.acquire(test_process(1), {.alive = nobody_lives()}).value();
  ASSERT_OK(save_tiny(own, owner, 1, 1));
  CollectingSink sink;
  ASSERT_OK(own.remake_if_gone(owner, &sink));
  EXPECT_TRUE(sink.records().empty());  // nothing was missing
  ASSERT_OK(disk.remove_all(kTestRun));
  EXPECT_ERROR(owner.check(), ErrorCode::kNotFound);
  ASSERT_OK(own.remake_if_gone(owner, &sink));
  EXPECT_EQ(sink.records().size(), 1u);
  ASSERT_OK(save_tiny(own, owner, 2, 2));
  EXPECT_EQ(run().id(), own.id());
  EXPECT_EQ(newest(), "step-00000002");
  EXPECT_ERROR(own.acquire(test_process(2), {.alive = only_live({1})}),
               ErrorCode::kConflict);
  ASSERT_OK(own.acquire(test_process(2), {.alive = nobody_lives()}));
}

TEST_F(RunTest, WhateverOfARunIsRemovedFirstItsOwnerGoesOn) {
  for (const char* name : {"holdfast.json", "owner-00000001.json", "owner.json"}) {
    MemoryEnv memory;
    const auto own = holdfast::Run::create_or_open(memory, kTestRun).value();
    Owner owner = own.acquire(test_process(1), {.alive = nobody_lives()}).value();
    ASSERT_OK(save_tiny(own, owner, 1, 1));
    ASSERT_OK(memory.remove_file(Path(kTestRun) / name));
    SCOPED_TRACE(name);
    ASSERT_OK(own.remake_if_gone(owner, nullptr));
    ASSERT_OK(save_tiny(own, owner, 2, 2));
    EXPECT_EQ(holdfast::Run::open(memory, kTestRun).value().steps()->steps.size(), 2u);
  }
}

TEST_F(RunTest, ARunThatIsBeingRemovedIsTriedAgainLater) {
  const holdfast::Run own = run();
  Owner owner = own.acquire(test_process(1), {.alive = nobody_lives()}).value();
  ASSERT_OK(save_tiny(own, owner, 1, 1));
  for (const char* name : {"holdfast.json", "owner-00000001.json", "owner.json"}) {
    ASSERT_OK(disk.remove_file(Path(kTestRun) / name));
  }
  EXPECT_ERROR(own.remake_if_gone(owner, nullptr), ErrorCode::kUnavailable);
  ASSERT_OK(disk.remove_all(kTestRun));
  ASSERT_OK(own.remake_if_gone(owner, nullptr));
  EXPECT_OK(owner.check());
}

TEST_F(RunTest, ThePlaceOfARemovedRunIsLeftToWhoeverHasItNow) {
  const holdfast::Run own = run();
  Owner owner = own.acquire(test_process(1), {.alive = nobody_lives()}).value();
  ASSERT_OK(disk.remove_all(kTestRun));
  const holdfast::Run other = run();  // another training begins at the same place
  ASSERT_OK(other.acquire(test_process(2), {.alive = nobody_lives()}));
  const Result<void> remade = own.remake_if_gone(owner, nullptr);
  EXPECT_ERROR(remade, ErrorCode::kConflict);
  EXPECT_NE(remade.error().message().find(other.id()), std::string::npos);
  EXPECT_EQ(run().id(), other.id());
  EXPECT_EQ(read_owner(disk, kTestRun).value()->who.pid, 2);
}

TEST_F(RunTest, ARunIsMadeAnewWhereverAFailureHadStoppedThat) {
  for (int64_t k = 1, calls = 1; k <= calls; ++k) {
    MemoryEnv memory;
    FaultyEnv env(memory);
    const auto own = holdfast::Run::create_or_open(env, kTestRun).value();
    Owner owner = own.acquire(test_process(1), {.alive = nobody_lives()}).value();
    ASSERT_OK(memory.remove_all(kTestRun));
    const int64_t before = env.calls();
    env.fail_at(Op::kAny, k, ErrorCode::kNoSpace);
    (void)own.remake_if_gone(owner, nullptr);
    calls = env.calls() - before;
    SCOPED_TRACE(k);
    ASSERT_OK(own.remake_if_gone(owner, nullptr));
    ASSERT_OK(save_tiny(own, owner, 2, 2));
    EXPECT_EQ(holdfast::Run::open(memory, kTestRun).value().id(), own.id());
  }
}

TEST_F(RunTest, OfTwoMakersBothGetTheSameId) {
  for (int64_t k = 1, calls = 1; k <= calls; ++k) {
    MemoryEnv memory;
    FaultyEnv env(memory);
    std::string other;
    env.before(Op::kAny, k, [&] {
      other = holdfast::Run::create_or_open(memory, kTestRun).value().id();
    });
    const Result<holdfast::Run> made = holdfast::Run::create_or_open(env, kTestRun);
    ASSERT_OK(made);
    EXPECT_EQ(made->id(), other);
    calls = env.calls();
  }
}

TEST_F(RunTest, AnEmptyRunHasNothing) {
  EXPECT_ERROR(run().newest_whole(Depth::kFast), ErrorCode::kNotFound);
}

TEST_F(RunTest, TheLastCommitIsTheNewestNotTheGreatestStep) {
  const Owner owner = take(1);
  const holdfast::Run same = run();
  for (const int64_t step : {300, 400, 500}) {
    ASSERT_OK(save_tiny(same, owner, step, static_cast<uint64_t>(step)));
  }
  EXPECT_EQ(newest(), "step-00000500");
  // The job goes back to step 300 and continues from there.
  const Result<Path> again = save_tiny(same, owner, 400, 4001);
  ASSERT_OK(again);
  EXPECT_EQ(again->filename(), "step-00000400.g2");
  EXPECT_EQ(newest(), "step-00000400.g2");
  EXPECT_EQ(read_step(disk, *again).value(), files_of(tiny_step(4001)));
  EXPECT_EQ(names(run().steps()),
            (std::vector<std::string>{"step-00000400.g2", "step-00000500",
                                      "step-00000400", "step-00000300"}));
}

TEST_F(RunTest, TheNewBranchWinsAlsoAfterARestart) {
  ASSERT_OK(save_tiny(run(), take(1), 300, 1));
  ASSERT_OK(save_tiny(run(), take(2), 500, 2));
  ASSERT_OK(save_tiny(run(), take(3), 400, 3));
  EXPECT_EQ(newest(), "step-00000400");
  EXPECT_EQ(run().steps()->steps[0].manifest.sequence, 3);
}

TEST_F(RunTest, ACommitOfAnOwnerThatLostTheRunIsIgnored) {
  const Owner old = take(1);
  const holdfast::Run same = run();
  ASSERT_OK(save_tiny(same, old, 300, 1));
  FaultyEnv env(disk);
  const holdfast::Run slow = holdfast::Run::open(env, kTestRun).value();
  const Owner old_too = old;
  // Another process takes the run over between the owner's last check and its rename.
  Attempt attempt = Attempt::begin(slow, old_too, 400, 77).value();
  const auto files = write_tiny(env, attempt, 2);
  ASSERT_OK(files);
  env.before(Op::kRename, 1, [&] { (void)take(2); });
  const Result<Path> late = attempt.commit({.files = *files});
  ASSERT_OK(late);
  EXPECT_EQ(newest(), "step-00000300");
  const Result<StepList> list = run().steps();
  ASSERT_EQ(list->skipped.size(), 1u);
  EXPECT_EQ(list->skipped[0].folder, "step-00000400");
  EXPECT_EQ(list->skipped[0].error.code(), ErrorCode::kConflict);
  // The late step is also ignored after the next takeover, and if the steps of the new
  // owner are damaged.
  ASSERT_OK(save_tiny(run(), take(3), 310, 3));
  EXPECT_EQ(newest(), "step-00000310");
  ASSERT_OK(disk.remove_file(Path(kTestRun) / "step-00000310/objects.json"));
  EXPECT_EQ(newest(), "step-00000300");
}

TEST_F(RunTest, AStepThatCouldNotBeReadAtATakeoverIsNotShutOut) {
  const Owner old = take(1);
  ASSERT_OK(save_tiny(run(), old, 300, 1));
  FaultyEnv env(disk);
  const holdfast::Run sick = holdfast::Run::open(env, kTestRun).value();
  env.fail_from(Op::kRead, 1);
  EXPECT_FALSE(sick.acquire(test_process(2), {.alive = nobody_lives()}).ok());
  const Path manifest = Path(kTestRun) / "step-00000300/manifest.json";
  const Bytes good = disk.read_file(manifest).value();
  ASSERT_OK(disk.write_file(manifest, bytes_of("{}")));
  (void)take(3);
  ASSERT_OK(disk.write_file(manifest, good));
  EXPECT_EQ(newest(), "step-00000300");
}

TEST_F(RunTest, DamagedStepsAreWalkedOverAndNamed) {
  const Owner owner = take(1);
  const holdfast::Run same = run();
  for (const int64_t step : {1, 2, 3, 4}) {
    ASSERT_OK(save_tiny(same, owner, step, static_cast<uint64_t>(step)));
  }
  const Path root = kTestRun;
  ASSERT_OK(disk.remove_file(root / "step-00000004/manifest.json"));
  ASSERT_OK(
      disk.write_file(root / "step-00000003/objects.json", bytes_of("{\"seed\":4}")));
  CollectingSink events;
  const Result<NewestWhole> found = run().newest_whole(Depth::kFast, &events);
  ASSERT_OK(found);
  EXPECT_EQ(found->step.name.text(), "step-00000002");
  ASSERT_EQ(found->skipped.size(), 2u);
  EXPECT_EQ(found->skipped[0].folder, "step-00000004");
  EXPECT_EQ(found->skipped[1].folder, "step-00000003");
  EXPECT_NE(found->skipped[1].error.message().find("objects.json"), std::string::npos);
  EXPECT_EQ(events.records().size(), 2u);
}

TEST_F(RunTest, AStepOfAnotherRunOrNumberIsSkipped) {
  ASSERT_OK(save_tiny(run(), take(1), 1, 1));
  const Path root = kTestRun;
  ASSERT_OK(disk.rename(root / "step-00000001", root / "step-00000002"));
  EXPECT_ERROR(run().newest_whole(Depth::kFast), ErrorCode::kCorrupt);
  ASSERT_OK(disk.rename(root / "step-00000002", root / "step-00000001"));
  ASSERT_OK(
      disk.write_file(root / "holdfast.json",
                      bytes_of("{\"holdfast\":\"run\",\"version\":1,\"run\":\"x\"}")));
  EXPECT_ERROR(run().newest_whole(Depth::kFast), ErrorCode::kCorrupt);
}

TEST_F(RunTest, ADamagedFileIsWrittenAnewWithTheIdOfItsSteps) {
  const std::string id = run().id();
  ASSERT_OK(save_tiny(run(), take(1), 400, 1));
  const Path file = Path(kTestRun) / "holdfast.json";
  const Bytes whole = disk.read_file(file).value();
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    Bytes flipped = whole;
    flipped[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
    ASSERT_OK(disk.write_file(file, flipped));
    const Result<holdfast::Run> read = holdfast::Run::open(disk, kTestRun);
    ASSERT_OK(read);
    EXPECT_EQ(read->id(), id) << bit;
    EXPECT_TRUE(read->damage().has_value()) << bit;
    EXPECT_EQ(disk.read_file(file).value(), flipped);  // a reader changes nothing
    EXPECT_EQ(run().id(), id) << bit;
    EXPECT_EQ(disk.read_file(file).value(), whole);
  }
  EXPECT_EQ(newest(), "step-00000400");
}

TEST_F(RunTest, ADamagedFileWithoutAStepIsRefusedWithAdvice) {
  (void)run();
  ASSERT_OK(disk.write_file(Path(kTestRun) / "holdfast.json", {}));
  const Result<holdfast::Run> opened = holdfast::Run::create_or_open(disk, kTestRun);
  EXPECT_ERROR(opened, ErrorCode::kCorrupt);
  EXPECT_NE(message_of(opened).find("remove holdfast.json"), std::string::npos);
}

// Version 1 of holdfast.json has no digest: only the steps show that the id is wrong.
TEST_F(RunTest, NothingIsWrittenUnderAnIdThatNoStepHas) {
  const std::string id = run().id();
  ASSERT_OK(save_tiny(run(), take(1), 400, 1));
  const auto write = [&](const std::string& name) {
    ASSERT_OK(disk.write_file(
        Path(kTestRun) / "holdfast.json",
        bytes_of("{\"holdfast\":\"run\",\"version\":1,\"run\":\"" + name + "\"}\n")));
  };
  write(id);
  EXPECT_OK(run().acquire(test_process(2), {.alive = nobody_lives()}));
  write("x" + id.substr(1));
  const Result<Owner> owner = run().acquire(test_process(3), {.alive = nobody_lives()});
  EXPECT_ERROR(owner, ErrorCode::kCorrupt);
  EXPECT_NE(message_of(owner).find("put that id into the file"), std::string::npos);
}

// Before each call of a reader, another process commits a new step and removes the old
// one.
TEST_F(RunTest, AReaderNeverFindsNothingWhileRetentionRuns) {
  for (int64_t k = 1, calls = 1; k <= calls; ++k) {
    MemoryEnv memory;
    const holdfast::Run writer =
        holdfast::Run::create_or_open(memory, kTestRun).value();
    const Owner owner =
        writer.acquire(test_process(1), {.alive = nobody_lives()}).value();
    ASSERT_OK(save_tiny(writer, owner, 1, 1));
    FaultyEnv env(memory);
    const holdfast::Run reader = holdfast::Run::open(env, kTestRun).value();
    env.before(Op::kAny, k, [&] {
      ASSERT_OK(save_tiny(writer, owner, 2, 2));
      ASSERT_OK(Retention(writer, owner, {.last = 1}).run());
    });
    const Result<NewestWhole> found = reader.newest_whole(Depth::kFull);
    ASSERT_OK(found);
    calls = std::max(calls, env.calls());
    if (calls > 100) break;  // in the middle of the shard it is all the same
  }
}

TEST_F(RunTest, SweepingRemovesWhatCrashesLeftAndNothingElse) {
  const Owner owner = take(1);
  const holdfast::Run same = run();
  ASSERT_OK(save_tiny(same, owner, 1, 1));
  const Path root = kTestRun;
  for (const char* name :
       {"step-00000002.0000000000000001.tmp", "step-00000003.0000000000000002.tmp",
        "step-00000001.g2.0000000000000003.trash", "mine.tmp", "notes.trash"}) {
    ASSERT_OK(disk.create_folders(root / name));
    ASSERT_OK(disk.write_file(root / name / "file", bytes_of("x")));
  }
  for (const char* name : {"latest.0000000000000001.tmp", "draft.0000000000000001.tmp",
                           "owner-00000001.json.0000000000000001.tmp",
                           "owner-00000002.json.0000000000000001.tmp"}) {
    ASSERT_OK(disk.write_file(root / name, bytes_of("x")));
  }
  EXPECT_EQ(same.sweep(owner, {2}).value(), 4);
  EXPECT_EQ(disk.list(root).value(),
            (std::vector<std::string>{
                "draft.0000000000000001.tmp", "holdfast.json", "latest", "mine.tmp",
                "notes.trash", "owner-00000001.json",
                "owner-00000002.json.0000000000000001.tmp", "owner.json",
                "step-00000001", "step-00000003.0000000000000002.tmp"}));
}

// A tier gets the steps of a job that goes on in its own run directory.
TEST_F(RunTest, AnOwnerThatOnlyRemovesFencesNothingOff) {
  const holdfast::Run same = run();
  const Owner job = take(1);
  ASSERT_OK(save_tiny(same, job, 1, 1));
  const Bytes late = disk.read_file(Path(kTestRun) / "step-00000001/manifest.json").value();
  for (const char* name : {"owner.json", "owner-00000001.json"}) {
    ASSERT_OK(disk.remove_file(Path(kTestRun) / name));
  }
  for (int i = 0; i < 2; ++i) {
    Owner gc = same.acquire(test_process(7), {.fences = false, .alive = nobody_lives()})
                   .value();
    ASSERT_OK(std::move(gc).release());
  }
  Manifest next = decode_manifest(late, "m").value();
  next.step = 2;
  next.sequence += 1;
  ASSERT_OK(disk.create_folder(Path(kTestRun) / "step-00000002"));
  for (const ManifestFile& file : next.files) {
    ASSERT_OK(disk.link(Path(kTestRun) / "step-00000001" / file.name,
                        Path(kTestRun) / "step-00000002" / file.name));
  }
  ASSERT_OK(disk.write_file(Path(kTestRun) / "step-00000002/manifest.json",
                            encode_manifest(next)));
  EXPECT_EQ(same.steps().value().steps.front().name.step, 2);
}

TEST_F(RunTest, OnlyTheOwnerSweeps) {
  const Owner old = take(1);
  (void)take(2);
  EXPECT_ERROR(run().sweep(old, {}), ErrorCode::kConflict);
}

}  // namespace
}  // namespace holdfast
