#include "holdfast/env/faulty_env.h"

#include <gtest/gtest.h>

#include "holdfast/base/testing.h"
#include "holdfast/env/memory_env.h"

namespace holdfast {
namespace {

class FaultyEnvTest : public ::testing::Test {
 protected:
  std::string text_at(const Path& path) {
    const auto text = disk_.read_text(path);
    return text.ok() ? *text : std::string(name_of(text.error().code()));
  }
  std::unique_ptr<File> create(const Path& path) {
    return env_.open(path, {.mode = OpenMode::kCreate}).value();
  }

  MemoryEnv disk_;
  FaultyEnv env_{disk_};
};

TEST_F(FaultyEnvTest, CountsAndLogsCallsByKind) {
  ASSERT_OK(env_.replace_file("a", bytes_of("text")));
  std::string kinds;
  for (const Call& call : env_.log()) kinds += std::string(name_of(call.op)) + " ";
  EXPECT_EQ(kinds, "open write sync close rename sync_folder ");
  EXPECT_EQ(env_.calls(), 6);
  EXPECT_EQ(env_.calls(Op::kSync), 1);
  EXPECT_EQ(env_.calls(Op::kRead), 0);
  EXPECT_EQ(env_.log().back().path, ".");
}

TEST_F(FaultyEnvTest, TheKthCallOfAKindFailsOnceWithoutEffect) {
  env_.fail_at(Op::kRename, 2, ErrorCode::kNoSpace);
  ASSERT_OK(disk_.write_file("a", {}));
  ASSERT_OK(env_.rename("a", "b"));
  EXPECT_ERROR(env_.rename("b", "c"), ErrorCode::kNoSpace);
  EXPECT_EQ(text_at("b"), "");
  EXPECT_OK(env_.rename("b", "c"));
}

TEST_F(FaultyEnvTest, CountingStartsWhenTheFaultIsSet) {
  ASSERT_OK(env_.create_folder("a"));
  env_.fail_at(Op::kCreateFolder);
  EXPECT_ERROR(env_.create_folder("b"), ErrorCode::kIo);
  env_.fail_at(Op::kAny, 2);
  ASSERT_OK(env_.create_folder("b"));
  EXPECT_ERROR(env_.list("."), ErrorCode::kIo);
}

TEST_F(FaultyEnvTest, EveryKindOfCallCanFail) {
  ASSERT_OK(disk_.create_folder("d"));
  const auto file = create("a");
  std::byte byte{};
  const auto refused = [&](Op op, auto call) {
    env_.fail_at(op, 1, ErrorCode::kUnavailable);
    EXPECT_ERROR(call(), ErrorCode::kUnavailable);
  };
  refused(Op::kOpen, [&] { return env_.open("b", {.mode = OpenMode::kCreate}); });
  refused(Op::kRead, [&] { return file->read_at(0, {&byte, 1}); });
  refused(Op::kWrite, [&] { return file->write_at(0, {&byte, 1}); });
  refused(Op::kAllocate, [&] { return file->allocate(1); });
  refused(Op::kTruncate, [&] { return file->truncate(1); });
  refused(Op::kInfo, [&] { return file->size(); });
  refused(Op::kInfo, [&] { return env_.info("a"); });
  refused(Op::kList, [&] { return env_.list("."); });
  refused(Op::kRemove, [&] { return env_.remove_file("a"); });
  refused(Op::kRemove, [&] { return env_.remove_folder("d"); });
  refused(Op::kRename, [&] { return env_.rename("a", "c"); });
  refused(Op::kRename, [&] { return env_.rename_new("a", "c"); });
  refused(Op::kLink, [&] { return env_.link("a", "c"); });
  refused(Op::kCreateFolder, [&] { return env_.create_folder("e"); });
  refused(Op::kSyncFolder, [&] { return env_.sync_folder("."); });
  refused(Op::kFreeSpace, [&] { return env_.free_space("."); });
  refused(Op::kSync, [&] { return file->sync(); });
  refused(Op::kSync, [&] { return file->sync_data(); });
  refused(Op::kClose, [&] { return file->close(); });
  EXPECT_EQ(*disk_.list("."), (std::vector<std::string>{"a", "d"}));
  EXPECT_EQ(disk_.info("a")->size, 0);
}

TEST_F(FaultyEnvTest, ShortTransfersAreContinued) {
  const auto file = create("a");
  env_.shorten_at(Op::kWrite, 1, 3);
  env_.shorten_at(Op::kWrite, 2, 1);
  ASSERT_OK(file->write_at(0, bytes_of("0123456789")));
  EXPECT_EQ(env_.calls(Op::kWrite), 3);
  EXPECT_EQ(text_at("a"), "0123456789");

  Bytes into(10);
  env_.shorten_at(Op::kRead, 1, 4);
  EXPECT_EQ(*file->read_at(0, into), 10u);
  EXPECT_EQ(env_.calls(Op::kRead), 2);
  EXPECT_EQ(text_of(into), "0123456789");

  env_.shorten_at(Op::kWrite, 1, 2);
  ASSERT_OK(
      env_.open("b", {.mode = OpenMode::kAppend}).value()->append(bytes_of("xyz")));
  EXPECT_EQ(text_at("b"), "xyz");
}

TEST_F(FaultyEnvTest, AWriteThatFailsInTheMiddleLeavesItsFirstPart) {
  const auto file = create("a");
  env_.shorten_at(Op::kWrite, 1, 4);
  env_.fail_at(Op::kWrite, 2, ErrorCode::kNoSpace);
  EXPECT_ERROR(file->write_at(0, bytes_of("0123456789")), ErrorCode::kNoSpace);
  EXPECT_EQ(text_at("a"), "0123");
}

TEST_F(FaultyEnvTest, AReadShortenedToNothingLooksLikeTheEndOfTheFile) {
  ASSERT_OK(disk_.write_file("a", bytes_of("text")));
  const auto file = env_.open("a", {.mode = OpenMode::kRead}).value();
  Bytes into(4);
  env_.shorten_at(Op::kRead, 1, 0);
  EXPECT_EQ(*file->read_at(0, into), 0u);
}

TEST_F(FaultyEnvTest, SubmittedTransfersRunAndFailAtTheirWait) {
  const auto file = create("a");
  env_.fail_at(Op::kWrite, 2, ErrorCode::kNoSpace);
  const Ticket one = file->submit_write(0, bytes_of("a"));
  const Ticket two = file->submit_write(1, bytes_of("b"));
  const Ticket three = file->submit_write(2, bytes_of("c"));
  EXPECT_EQ(env_.calls(Op::kWrite), 0);
  EXPECT_OK(file->wait(three));
  EXPECT_EQ(text_at("a"), std::string("\0\0c", 3));
  EXPECT_ERROR(file->wait(two), ErrorCode::kNoSpace);
  EXPECT_OK(file->wait(one));
  EXPECT_EQ(text_at("a"), std::string("a\0c", 3));
}

TEST_F(FaultyEnvTest, CloseRunsWhatNobodyWaitedForInOrderAndReportsItFirst) {
  const auto file = create("a");
  env_.fail_at(Op::kWrite, 2, ErrorCode::kNoSpace);
  env_.fail_at(Op::kClose, 1, ErrorCode::kIo);
  for (const char* text : {"a", "b", "c"}) {
    (void)file->submit_write(text[0] - 'a', bytes_of(text));
  }
  EXPECT_ERROR(file->close(), ErrorCode::kNoSpace);
  EXPECT_EQ(text_at("a"), std::string("a\0c", 3));
}

TEST_F(FaultyEnvTest, ASyncAfterAFailedOneSucceedsAndSavesNothing) {
  const auto file = create("a");
  ASSERT_OK(env_.sync_folder("."));
  ASSERT_OK(file->write_at(0, bytes_of("text")));
  env_.fail_at(Op::kSync);
  EXPECT_ERROR(file->sync(), ErrorCode::kIo);
  EXPECT_OK(file->sync());
  EXPECT_OK(file->sync_data());
  EXPECT_EQ(disk_.after_crash({})->info("a")->size, 0);
}

TEST_F(FaultyEnvTest, AFailedSyncIsRememberedForTheFileByEveryNameAndHandle) {
  ASSERT_OK(create("a")->close());
  ASSERT_OK(env_.link("a", "b"));
  ASSERT_OK(env_.sync_folder("."));
  const auto one = env_.open("a", {.mode = OpenMode::kUpdate}).value();
  ASSERT_OK(one->write_at(0, bytes_of("text")));
  env_.fail_at(Op::kSync);
  EXPECT_ERROR(one->sync(), ErrorCode::kIo);
  const auto two = env_.open("b", {.mode = OpenMode::kUpdate}).value();
  EXPECT_OK(two->sync());
  EXPECT_EQ(disk_.after_crash({})->info("a")->size, 0);
  ASSERT_OK(env_.write_file("c", bytes_of("text")));  // another file is not affected
  ASSERT_OK(env_.sync_folder("."));
  EXPECT_EQ(disk_.after_crash({})->info("c")->size, 4);
}

TEST_F(FaultyEnvTest, AFailedSyncIsRememberedForAFolderToo) {
  ASSERT_OK(env_.create_folders("d"));
  ASSERT_OK(env_.write_file("d/a", {}));
  env_.fail_at(Op::kSyncFolder);
  EXPECT_ERROR(env_.sync_folder("d"), ErrorCode::kIo);
  EXPECT_OK(env_.sync_folder("/d"));
  EXPECT_ERROR(disk_.after_crash({})->info("d/a"), ErrorCode::kNotFound);
}

TEST_F(FaultyEnvTest, AFullDiskStaysFull) {
  env_.fail_from(Op::kCreateFolder, 2, ErrorCode::kNoSpace);
  EXPECT_OK(env_.create_folder("a"));
  for (int i = 0; i < 3; ++i) {
    EXPECT_ERROR(env_.create_folder("b"), ErrorCode::kNoSpace);
  }
  EXPECT_OK(env_.list("."));
}

TEST_F(FaultyEnvTest, ACallMayTakeEffectAndFailAllTheSame) {
  ASSERT_OK(disk_.write_file("a", bytes_of("text")));
  env_.fail_after(Op::kRename, 1, ErrorCode::kUnavailable);
  EXPECT_ERROR(env_.rename_new("a", "b"), ErrorCode::kUnavailable);
  EXPECT_EQ(text_at("b"), "text");
  EXPECT_ERROR(env_.rename_new("a", "b"), ErrorCode::kNotFound);
  env_.fail_after(Op::kOpen);
  EXPECT_ERROR(env_.open("c", {.mode = OpenMode::kCreate}), ErrorCode::kIo);
  EXPECT_EQ(text_at("c"), "");
}

TEST_F(FaultyEnvTest, SomebodyElseMayComeBeforeACall) {
  env_.before(Op::kCreateFolder, 2, [&] { ASSERT_OK(env_.create_folder("b")); });
  ASSERT_OK(env_.create_folder("a"));
  EXPECT_ERROR(env_.create_folder("b"), ErrorCode::kConflict);
  EXPECT_EQ(env_.calls(Op::kCreateFolder), 3);
}

TEST_F(FaultyEnvTest, RemoveAllForgivesWhatVanishesMeanwhile) {
  for (const Op op : {Op::kInfo, Op::kList, Op::kRemove}) {
    for (int64_t k = 1; k <= 2; ++k) {
      ASSERT_OK(disk_.create_folders("d/e"));
      ASSERT_OK(disk_.write_file("d/e/x", {}));
      env_.before(op, k, [&] { ASSERT_OK(disk_.remove_all("d/e")); });
      EXPECT_OK(env_.remove_all("d"));
      EXPECT_TRUE(disk_.list(".")->empty());
    }
  }
}

TEST_F(FaultyEnvTest, FoldersThatAreThereNeedNoSyncWhereThereIsNone) {
  ASSERT_OK(disk_.create_folders("x/y"));
  env_.fail_at(Op::kSyncFolder, 1, ErrorCode::kUnsupported);
  EXPECT_OK(env_.create_folders("x/y"));
  EXPECT_EQ(env_.calls(Op::kSyncFolder), 1);
  env_.fail_at(Op::kSyncFolder, 1, ErrorCode::kIo);
  EXPECT_ERROR(env_.create_folders("x/y"), ErrorCode::kIo);
}

TEST_F(FaultyEnvTest, NamesAreAsDurableAsTheyGetWhereFoldersAreNotSynced) {
  env_.fail_from(Op::kSyncFolder, 1, ErrorCode::kUnsupported);
  EXPECT_OK(env_.create_folders("new/x"));
  EXPECT_OK(env_.replace_file("new/x/file", bytes_of("text")));
  EXPECT_OK(env_.sync_names("new"));
  EXPECT_ERROR(env_.sync_folder("new"), ErrorCode::kUnsupported);
  EXPECT_EQ(text_at("new/x/file"), "text");
}

TEST_F(FaultyEnvTest, AfterACrashEveryCallFails) {
  const auto file = create("a");
  env_.crash_at(Op::kWrite, 2);
  ASSERT_OK(file->write_at(0, bytes_of("1")));
  EXPECT_FALSE(env_.crashed());
  EXPECT_ERROR(file->write_at(0, bytes_of("2")), ErrorCode::kIo);
  EXPECT_TRUE(env_.crashed());
  EXPECT_ERROR(file->sync(), ErrorCode::kIo);
  EXPECT_ERROR(env_.info("a"), ErrorCode::kIo);
  EXPECT_ERROR(env_.open("b", {.mode = OpenMode::kCreate}), ErrorCode::kIo);
  EXPECT_EQ(text_at("a"), "1");
}

// The pattern of all crash tests: one run to count the calls, then a crash at each.
TEST(CrashPointTest, ReplaceFileIsOldOrNewAtEveryCrashPoint) {
  const auto prepare = [](MemoryEnv& disk) {
    disk.write_file("a", bytes_of("old")).value();
    disk.sync_folder(".").value();
  };
  MemoryEnv counted_disk;
  prepare(counted_disk);
  FaultyEnv counted(counted_disk);
  ASSERT_OK(counted.replace_file("a", bytes_of("new")));

  int64_t old_seen = 0, new_seen = 0;
  for (int64_t k = 1; k <= counted.calls(); ++k) {
    MemoryEnv disk;
    prepare(disk);
    FaultyEnv env(disk);
    env.crash_at(Op::kAny, k);
    EXPECT_ERROR(env.replace_file("a", bytes_of("new")), ErrorCode::kIo);
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const auto after = disk.after_crash({Unsynced::kReordered, seed});
      const std::string text = *after->read_text("a");
      EXPECT_TRUE(text == "old" || text == "new") << text << " at call " << k;
      (text == "old" ? old_seen : new_seen) += 1;
    }
  }
  EXPECT_GT(old_seen, 0);
  EXPECT_GT(new_seen, 0);
}

// Killed (not powered off) at each call, made again by the next process, then powered
// off: the folders must be there, whatever the first process had left unsynced.
TEST(CrashPointTest, CreateFoldersMadeAgainIsDurable) {
  MemoryEnv counted_disk;
  FaultyEnv counted(counted_disk);
  ASSERT_OK(counted.create_folders("x/y/z"));
  for (int64_t k = 1; k <= counted.calls(); ++k) {
    MemoryEnv disk;
    FaultyEnv killed(disk);
    killed.crash_at(Op::kAny, k);
    EXPECT_ERROR(killed.create_folders("x/y/z"), ErrorCode::kIo);
    ASSERT_OK(disk.create_folders("x/y/z"));
    SCOPED_TRACE(fmt::format("killed at call {}", k));
    EXPECT_OK(disk.after_crash({})->info("x/y/z"));
  }
}

TEST(CrashPointTest, AMissingSyncIsFoundByACrash) {
  MemoryEnv disk;
  ASSERT_OK(disk.write_file("a", bytes_of("old")));
  ASSERT_OK(disk.sync_folder("."));
  // The classic mistake: rename without syncing the contents first.
  const auto file = disk.open("a.tmp", {.mode = OpenMode::kCreate}).value();
  ASSERT_OK(file->write_at(0, bytes_of("new")));
  ASSERT_OK(disk.rename("a.tmp", "a"));
  ASSERT_OK(disk.sync_folder("."));
  EXPECT_EQ(*disk.after_crash({})->read_text("a"), "");
}

}  // namespace
}  // namespace holdfast
