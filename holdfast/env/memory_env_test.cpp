// Tests what a power loss leaves, and whatever else only MemoryEnv has.
#include "holdfast/env/memory_env.h"

#include <gtest/gtest.h>

#include <set>

#include "holdfast/base/testing.h"

namespace holdfast {
namespace {

constexpr CrashPolicy kLost{Unsynced::kLost, 0};
constexpr CrashPolicy kKept{Unsynced::kKept, 0};

std::string text_at(Env& env, const Path& path) {
  const auto text = env.read_text(path);
  return text.ok() ? *text : std::string(name_of(text.error().code()));
}

class CrashTest : public ::testing::Test {
 protected:
  // A file whose contents and name are durable.
  void put_durable(const Path& path, std::string_view text) {
    ASSERT_OK(env_.write_file(path, bytes_of(text)));
    ASSERT_OK(env_.sync_folder(folder_of(path)));
  }
  // Writes over the start of a file that is there, without a sync.
  void overwrite(const Path& path, std::string_view text) {
    const auto file = env_.open(path, {.mode = OpenMode::kUpdate}).value();
    ASSERT_OK(file->write_at(0, bytes_of(text)));
  }
  std::string after(CrashPolicy policy, const Path& path) {
    return text_at(*env_.after_crash(policy), path);
  }
  // What a path can hold after a crash that keeps a random part.
  std::set<std::string> outcomes(const Path& path) {
    std::set<std::string> seen;
    for (uint64_t seed = 0; seed < 200; ++seed) {
      seen.insert(after({Unsynced::kReordered, seed}, path));
    }
    return seen;
  }

  MemoryEnv env_;
};

using Outcomes = std::set<std::string>;

TEST_F(CrashTest, UnsyncedContentsAreLostOrKept) {
  put_durable("a", "old");
  overwrite("a", "new");
  EXPECT_EQ(text_at(env_, "a"), "new");
  EXPECT_EQ(after(kLost, "a"), "old");
  EXPECT_EQ(after(kKept, "a"), "new");
  EXPECT_EQ(outcomes("a"), (Outcomes{"old", "new"}));
}

TEST_F(CrashTest, SyncedContentsSurviveEveryCrash) {
  put_durable("a", "old");
  const auto file = env_.open("a", {.mode = OpenMode::kUpdate}).value();
  ASSERT_OK(file->write_at(0, bytes_of("new")));
  ASSERT_OK(file->sync_data());
  EXPECT_EQ(after(kLost, "a"), "new");
  EXPECT_EQ(outcomes("a"), Outcomes{"new"});
}

TEST_F(CrashTest, ASyncCoversOnlyThoseWritesThatWereWaitedFor) {
  put_durable("a", "..");
  const auto file = env_.open("a", {.mode = OpenMode::kUpdate}).value();
  const Ticket one = file->submit_write(0, bytes_of("1"));
  const Ticket two = file->submit_write(1, bytes_of("2"));
  ASSERT_OK(file->wait(two));
  ASSERT_OK(file->sync());
  ASSERT_OK(file->wait(one));  // too late
  EXPECT_EQ(after(kLost, "a"), ".2");
  EXPECT_EQ(text_at(env_, "a"), "12");
}

TEST_F(CrashTest, MemoryThatIsReusedBeforeTheWaitSpoilsTheFile) {
  const auto file = env_.open("a", {.mode = OpenMode::kCreate}).value();
  std::string memory = "good";
  const Ticket ticket = file->submit_write(0, bytes_of(memory));
  memory = "evil";
  ASSERT_OK(file->wait(ticket));
  EXPECT_EQ(text_at(env_, "a"), "evil");
}

TEST_F(CrashTest, ASyncOfTheFileDoesNotSaveItsName) {
  ASSERT_OK(env_.write_file("a", bytes_of("text")));
  EXPECT_EQ(after(kLost, "a"), "not_found");
  EXPECT_EQ(outcomes("a"), (Outcomes{"text", "not_found"}));
  ASSERT_OK(env_.sync_folder("."));
  EXPECT_EQ(after(kLost, "a"), "text");
  EXPECT_EQ(outcomes("a"), Outcomes{"text"});
}

TEST_F(CrashTest, ASyncOfTheFolderDoesNotSaveContents) {
  const auto file = env_.open("a", {.mode = OpenMode::kCreate}).value();
  ASSERT_OK(file->write_at(0, bytes_of("text")));
  ASSERT_OK(env_.sync_folder("."));
  EXPECT_EQ(after(kLost, "a"), "");
  // Nothing, the length without the bytes, or all.
  EXPECT_EQ(outcomes("a"), (Outcomes{"", std::string(4, '\0'), "text"}));
}

TEST_F(CrashTest, ASyncOfAFolderDoesNotSaveItsOwnName) {
  ASSERT_OK(env_.create_folder("d"));
  ASSERT_OK(env_.write_file("d/a", bytes_of("text")));
  ASSERT_OK(env_.sync_folder("d"));
  EXPECT_EQ(after(kLost, "d/a"), "not_found");
  ASSERT_OK(env_.sync_folder("."));
  EXPECT_EQ(after(kLost, "d/a"), "text");
}

TEST_F(CrashTest, ASyncOfAFolderDoesNotSaveTheNamesBelow) {
  ASSERT_OK(env_.create_folders("d"));
  ASSERT_OK(env_.write_file("d/a", bytes_of("text")));
  ASSERT_OK(env_.sync_folder("."));
  EXPECT_EQ(after(kLost, "d/a"), "not_found");
  EXPECT_TRUE(env_.after_crash(kLost)->info("d")->folder);
}

TEST_F(CrashTest, CreateFoldersIsDurable) {
  ASSERT_OK(env_.create_folders("x/y/z"));
  EXPECT_TRUE(env_.after_crash(kLost)->info("x/y/z")->folder);
}

TEST_F(CrashTest, RemovedNamesComeBackUnlessTheFolderWasSynced) {
  put_durable("a", "text");
  ASSERT_OK(env_.remove_file("a"));
  EXPECT_EQ(after(kLost, "a"), "text");
  EXPECT_EQ(outcomes("a"), (Outcomes{"text", "not_found"}));
  ASSERT_OK(env_.sync_folder("."));
  EXPECT_EQ(outcomes("a"), Outcomes{"not_found"});
}

TEST_F(CrashTest, RenameIsAtomicInEveryCrash) {
  ASSERT_OK(env_.create_folders("d"));
  put_durable("a", "new");
  put_durable("d/b", "old");
  ASSERT_OK(env_.rename("a", "d/b"));
  std::set<std::pair<std::string, std::string>> seen;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const auto crashed = env_.after_crash({Unsynced::kReordered, seed});
    seen.emplace(text_at(*crashed, "a"), text_at(*crashed, "d/b"));
  }
  EXPECT_EQ(seen, (std::set<std::pair<std::string, std::string>>{
                      {"new", "old"}, {"not_found", "new"}}));
}

TEST_F(CrashTest, RenamedFoldersKeepWhatWasDurableInThem) {
  ASSERT_OK(env_.create_folders("d.tmp"));
  put_durable("d.tmp/a", "text");
  ASSERT_OK(env_.write_file("d.tmp/b", bytes_of("text")));
  ASSERT_OK(env_.rename_new("d.tmp", "d"));
  EXPECT_EQ(after(kLost, "d.tmp/a"), "text");
  ASSERT_OK(env_.sync_folder("."));
  EXPECT_EQ(after(kLost, "d/a"), "text");
  EXPECT_EQ(after(kLost, "d.tmp"), "not_found");
  EXPECT_EQ(after(kLost, "d/b"), "not_found");  // its folder was never synced
}

TEST_F(CrashTest, AChangeSurvivesOnlyWithThoseItBuildsOn) {
  put_durable("a", "1");
  ASSERT_OK(env_.rename("a", "b"));
  ASSERT_OK(env_.rename("b", "c"));
  std::set<std::vector<std::string>> seen;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    seen.insert(*env_.after_crash({Unsynced::kReordered, seed})->list("."));
  }
  EXPECT_EQ(seen, (std::set<std::vector<std::string>>{{"a"}, {"b"}, {"c"}}));
}

TEST_F(CrashTest, SyncingOneFolderMakesTheWholeChainOfARenameDurable) {
  ASSERT_OK(env_.create_folders("x"));
  ASSERT_OK(env_.create_folders("y"));
  put_durable("x/a", "1");
  ASSERT_OK(env_.rename("x/a", "b"));
  ASSERT_OK(env_.rename("b", "y/c"));
  ASSERT_OK(env_.sync_folder("y"));
  const auto crashed = env_.after_crash(kLost);
  EXPECT_EQ(text_at(*crashed, "y/c"), "1");
  EXPECT_TRUE(crashed->list("x")->empty());
}

TEST_F(CrashTest, UnsyncedWritesAreReorderedAndTornAtSectors) {
  put_durable("a", std::string(1024, '.'));
  overwrite("a", std::string(700, 'x'));
  const std::string dots(1024, '.'),
      both = std::string(700, 'x') + std::string(324, '.');
  std::string first = dots, second = dots;
  first.replace(0, 512, 512, 'x');
  second.replace(512, 188, 188, 'x');
  EXPECT_EQ(outcomes("a"), (Outcomes{dots, first, second, both}));
}

TEST_F(CrashTest, UnsyncedTruncationMayBeUndone) {
  put_durable("a", "text");
  ASSERT_OK(env_.open("a", {.mode = OpenMode::kTruncate}));
  EXPECT_EQ(after(kLost, "a"), "text");
  EXPECT_EQ(outcomes("a"), (Outcomes{"", "text"}));
}

TEST_F(CrashTest, HardLinksAreStillOneFileAfterwards) {
  put_durable("a", "text");
  ASSERT_OK(env_.link("a", "b"));
  EXPECT_EQ(after(kLost, "b"), "not_found");
  ASSERT_OK(env_.sync_folder("."));
  const auto crashed = env_.after_crash(kLost);
  EXPECT_EQ(crashed->info("a")->inode, crashed->info("b")->inode);
  EXPECT_EQ(crashed->info("b")->links, 2);
  ASSERT_OK(crashed->remove_file("a"));
  EXPECT_EQ(crashed->info("b")->links, 1);
}

TEST_F(CrashTest, ReplaceFileIsOldOrNewBeforeAndNewAfter) {
  put_durable("a", "old");
  ASSERT_OK(env_.replace_file("a", bytes_of("new")));
  EXPECT_EQ(outcomes("a"), Outcomes{"new"});
}

TEST_F(CrashTest, WhatACrashLeftIsDurableAndTheOriginalGoesOn) {
  ASSERT_OK(env_.write_file("a", bytes_of("text")));
  const auto kept = env_.after_crash(kKept);
  EXPECT_EQ(text_at(*kept->after_crash(kLost), "a"), "text");
  ASSERT_OK(kept->remove_file("a"));
  EXPECT_EQ(text_at(env_, "a"), "text");
}

TEST_F(CrashTest, TheSameSeedGivesTheSameCrash) {
  put_durable("a", std::string(100'000, '.'));
  overwrite("a", std::string(100'000, 'x'));
  EXPECT_EQ(after({Unsynced::kReordered, 7}, "a"),
            after({Unsynced::kReordered, 7}, "a"));
  EXPECT_NE(after({Unsynced::kReordered, 7}, "a"),
            after({Unsynced::kReordered, 8}, "a"));
}

TEST(MemoryEnvTest, TheDiskCanBeFull) {
  MemoryEnv env;
  env.set_capacity(10);
  ASSERT_OK(env.write_file("a", bytes_of("123456")));
  EXPECT_EQ(*env.free_space("."), 4);
  EXPECT_ERROR(env.write_file("b", bytes_of("12345")), ErrorCode::kNoSpace);
  const auto file = env.open("b", {.mode = OpenMode::kUpdate}).value();
  EXPECT_ERROR(file->allocate(5), ErrorCode::kNoSpace);
  ASSERT_OK(file->allocate(4));
  EXPECT_EQ(*env.free_space("."), 0);
  ASSERT_OK(file->write_at(0, bytes_of("1234")));
  ASSERT_OK(env.link("a", "c"));
  ASSERT_OK(env.remove_file("a"));
  EXPECT_EQ(*env.free_space("."), 0);
  ASSERT_OK(env.remove_file("c"));
  EXPECT_EQ(*env.free_space("."), 6);
}

TEST(MemoryEnvTest, TheClockMovesOnlyWhenTold) {
  MemoryEnv env;
  const Instant start = env.now();
  EXPECT_EQ(env.now(), start);
  env.advance(std::chrono::seconds(3));
  env.sleep_for(std::chrono::hours(1));
  EXPECT_EQ(env.now() - start, std::chrono::seconds(3603));
  EXPECT_EQ(env.after_crash(kLost)->now(), env.now());
}

TEST(MemoryEnvTest, TheSeedDecidesTheRandomNumbers) {
  MemoryEnv a(1), b(1), c(2);
  const uint64_t first = a.random64();
  EXPECT_EQ(b.random64(), first);
  EXPECT_NE(c.random64(), first);
}

}  // namespace
}  // namespace holdfast
