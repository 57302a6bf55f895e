// Tests what every Env promises, with each of them: the machine's Env (with and without
// io_uring), MemoryEnv, and a FaultyEnv without any fault set.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>

#include "holdfast/base/testing.h"
#include "holdfast/env/env.h"
#include "holdfast/env/faulty_env.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/env/unsynced_env.h"

namespace holdfast::env_conformance_test {
namespace {

// An Env and a folder in it, which is empty at first and is removed at the end.
class Place {
 public:
  virtual ~Place() = default;
  virtual Env& env() = 0;
  virtual Path folder() = 0;
};

class PosixPlace : public Place {
 public:
  explicit PosixPlace(bool uring)
      : env_(make_posix_env({.io_threads = 2, .in_flight = 2, .uring = uring})) {}
  Env& env() override { return *env_; }
  Path folder() override { return folder_.path(); }

 private:
  std::unique_ptr<Env> env_;
  TempFolder folder_;
};

class MemoryPlace : public Place {
 public:
  MemoryPlace() { memory_.create_folder("/tmp").value(); }
  Env& env() override { return memory_; }
  Path folder() override { return "/tmp"; }

 protected:
  MemoryEnv memory_;
};

class FaultyPlace : public MemoryPlace {
 public:
  Env& env() override { return faulty_; }

 private:
  FaultyEnv faulty_{memory_};
};

class UnsyncedPlace : public MemoryPlace {
 public:
  Env& env() override { return unsynced_; }

 private:
  UnsyncedEnv unsynced_{memory_};
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Place>()> make;

  friend void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
};

class EnvTest : public ::testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Place> place_ = GetParam().make();
  Env& env_ = place_->env();
  Path folder_ = place_->folder();
  Path a_ = folder_ / "a", b_ = folder_ / "b", sub_ = folder_ / "sub";

  void put(const Path& path, std::string_view text) {
    ASSERT_OK(env_.write_file(path, bytes_of(text)));
  }
  std::string get(const Path& path) {
    const auto text = env_.read_text(path);
    return text.ok() ? *text : std::string(name_of(text.error().code()));
  }
  std::unique_ptr<File> open(const Path& path, OpenMode mode) {
    return env_.open(path, {.mode = mode}).value();
  }
};

INSTANTIATE_TEST_SUITE_P(
    AllKinds, EnvTest,
    ::testing::Values(Kind{"Posix", [] { return std::make_unique<PosixPlace>(true); }},
                      Kind{"PosixThreads",
                           [] { return std::make_unique<PosixPlace>(false); }},
                      Kind{"Memory", [] { return std::make_unique<MemoryPlace>(); }},
                      Kind{"Faulty", [] { return std::make_unique<FaultyPlace>(); }},
                      Kind{"Unsynced",
                           [] { return std::make_unique<UnsyncedPlace>(); }}),
    [](const auto& test) { return test.param.name; });

TEST_P(EnvTest, FilesReadBackWhatWasWritten) {
  put(a_, "hello");
  EXPECT_EQ(get(a_), "hello");
  put(a_, "");
  EXPECT_EQ(get(a_), "");
}

TEST_P(EnvTest, OpenModesSayWhatMustBeThere) {
  EXPECT_ERROR(env_.open(a_, {.mode = OpenMode::kRead}), ErrorCode::kNotFound);
  EXPECT_ERROR(env_.open(a_, {.mode = OpenMode::kUpdate}), ErrorCode::kNotFound);
  EXPECT_OK(env_.open(a_, {.mode = OpenMode::kCreate}));
  EXPECT_ERROR(env_.open(a_, {.mode = OpenMode::kCreate}), ErrorCode::kConflict);
  put(a_, "text");
  ASSERT_OK(open(a_, OpenMode::kUpdate)->write_at(1, bytes_of("E")));
  EXPECT_EQ(get(a_), "tExt");
  EXPECT_OK(env_.open(a_, {.mode = OpenMode::kTruncate}));
  EXPECT_EQ(get(a_), "");
}

TEST_P(EnvTest, FoldersDoNotOpenAsFiles) {
  ASSERT_OK(env_.create_folder(sub_));
  for (const OpenMode mode :
       {OpenMode::kRead, OpenMode::kUpdate, OpenMode::kTruncate, OpenMode::kAppend}) {
    EXPECT_ERROR(env_.open(sub_, {.mode = mode}), ErrorCode::kInvalid);
  }
  put(a_, "");
  EXPECT_ERROR(env_.open(a_ / "x", {.mode = OpenMode::kRead}), ErrorCode::kInvalid);
  EXPECT_ERROR(env_.list(a_), ErrorCode::kInvalid);
}

TEST_P(EnvTest, ReadsAreShortOnlyAtTheEndOfTheFile) {
  put(a_, "0123456789");
  const auto file = open(a_, OpenMode::kRead);
  std::array<std::byte, 4> into{};
  EXPECT_EQ(*file->read_at(3, into), 4u);
  EXPECT_EQ(text_of(into), "3456");
  EXPECT_EQ(*file->read_at(8, into), 2u);
  EXPECT_EQ(*file->read_at(10, into), 0u);
  EXPECT_EQ(*file->read_at(1'000, into), 0u);
  EXPECT_ERROR(file->read_at(-1, into), ErrorCode::kInvalid);
}

TEST_P(EnvTest, WritesBeyondTheEndLeaveZerosBetween) {
  const auto file = open(a_, OpenMode::kCreate);
  ASSERT_OK(file->write_at(3, bytes_of("x")));
  EXPECT_EQ(*file->size(), 4);
  ASSERT_OK(file->close());
  EXPECT_EQ(get(a_), std::string("\0\0\0x", 4));
}

TEST_P(EnvTest, TruncateCutsAndLengthensWithZeros) {
  put(a_, "abcdef");
  const auto file = open(a_, OpenMode::kUpdate);
  ASSERT_OK(file->truncate(2));
  ASSERT_OK(file->truncate(4));
  EXPECT_EQ(get(a_), std::string("ab\0\0", 4));
  EXPECT_ERROR(file->truncate(-1), ErrorCode::kInvalid);
}

TEST_P(EnvTest, AllocateMakesTheFileAtLeastThatLong) {
  put(a_, "abc");
  const auto file = open(a_, OpenMode::kUpdate);
  const Result<void> allocated = file->allocate(100'000);
  if (!allocated.ok() && allocated.error().code() == ErrorCode::kUnsupported) {
    GTEST_SKIP() << allocated.error().message();
  }
  ASSERT_OK(allocated);
  EXPECT_EQ(*file->size(), 100'000);
  ASSERT_OK(file->allocate(10));
  ASSERT_OK(file->allocate(0));
  EXPECT_EQ(*file->size(), 100'000);
  EXPECT_EQ(get(a_).substr(0, 4), std::string("abc\0", 4));
  EXPECT_ERROR(file->allocate(-1), ErrorCode::kInvalid);
}

TEST_P(EnvTest, AppendGoesToTheEndWhoeverElseAppends) {
  const auto one = open(a_, OpenMode::kAppend);
  const auto two = open(a_, OpenMode::kAppend);
  ASSERT_OK(one->append(bytes_of("1")));
  ASSERT_OK(two->append(bytes_of("22")));
  ASSERT_OK(one->append(bytes_of("3")));
  EXPECT_EQ(get(a_), "1223");
}

TEST_P(EnvTest, SubmittedTransfersAreWaitedForInAnyOrder) {
  constexpr int kCount = 40;  // many more than may be in flight
  const auto file = open(a_, OpenMode::kCreate);
  std::vector<Bytes> blocks;
  std::vector<Ticket> tickets;
  for (int i = 0; i < kCount; ++i) blocks.emplace_back(1000, static_cast<std::byte>(i));
  for (int i = 0; i < kCount; ++i) {
    tickets.push_back(file->submit_write(i * 1000, blocks[static_cast<size_t>(i)]));
  }
  std::reverse(tickets.begin(), tickets.end());
  for (const Ticket ticket : tickets) EXPECT_EQ(*file->wait(ticket), 1000u);

  std::vector<Bytes> read(kCount, Bytes(1000));
  tickets.clear();
  for (int i = 0; i < kCount; ++i) {
    tickets.push_back(file->submit_read(i * 1000, read[static_cast<size_t>(i)]));
  }
  for (const Ticket ticket : tickets) EXPECT_EQ(*file->wait(ticket), 1000u);
  EXPECT_EQ(read, blocks);
}

TEST_P(EnvTest, SubmittedReadsAreShortAtTheEnd) {
  put(a_, "12345");
  const auto file = open(a_, OpenMode::kRead);
  Bytes into(8);
  EXPECT_EQ(*file->wait(file->submit_read(2, into)), 3u);
  EXPECT_EQ(text_of(into).substr(0, 3), "345");
}

TEST_P(EnvTest, AFileThatIsDestroyedWaitsForItsTransfers) {
  const Bytes block(1 << 20, std::byte{3});
  {
    const auto file = open(a_, OpenMode::kCreate);
    for (int i = 0; i < 8; ++i) (void)file->submit_write(i << 20, block);
  }
  EXPECT_EQ(env_.info(a_)->size, 8 << 20);
}

TEST_P(EnvTest, CloseReportsASubmittedTransferThatFailed) {
  const auto file = open(a_, OpenMode::kCreate);
  (void)file->submit_write(-5, bytes_of("x"));
  EXPECT_ERROR(file->wait(file->submit_write(-5, bytes_of("x"))), ErrorCode::kInvalid);
  EXPECT_ERROR(file->close(), ErrorCode::kInvalid);
}

TEST_P(EnvTest, DirectTransfersMustBeAligned) {
  struct alignas(kDirectAlignment) Block {
    std::array<std::byte, 2 * kDirectAlignment> bytes{};
  };
  const auto block = std::make_unique<Block>();
  ByteSpan memory = block->bytes;
  const auto opened = env_.open(a_, {.mode = OpenMode::kCreate, .direct = true});
  if (!opened.ok()) {
    EXPECT_ERROR(opened, ErrorCode::kUnsupported);
    GTEST_SKIP() << opened.error().message();
  }
  File& file = **opened;
  std::fill(memory.begin(), memory.end(), std::byte{7});
  ASSERT_OK(file.write_at(kDirectAlignment, memory));
  EXPECT_ERROR(file.write_at(0, memory.first(100)), ErrorCode::kInvalid);
  EXPECT_ERROR(file.write_at(512, memory), ErrorCode::kInvalid);
  EXPECT_ERROR(file.write_at(0, memory.subspan(8, kDirectAlignment)),
               ErrorCode::kInvalid);
  ASSERT_OK(file.truncate(kDirectAlignment + 100));
  EXPECT_EQ(*file.read_at(kDirectAlignment, memory), 100u);
  EXPECT_EQ(get(a_), std::string(4096, '\0') + std::string(100, '\7'));
}

TEST_P(EnvTest, InfoTellsSizeLinksAndIdentity) {
  EXPECT_ERROR(env_.info(a_), ErrorCode::kNotFound);
  put(a_, "abc");
  const FileInfo info = *env_.info(a_);
  EXPECT_EQ(info.size, 3);
  EXPECT_EQ(info.links, 1);
  EXPECT_FALSE(info.folder);
  // File systems round times, to up to two seconds.
  const auto age = env_.wall_now() - info.modified;
  EXPECT_LE(age, std::chrono::minutes(1));
  EXPECT_GE(age, std::chrono::seconds(-3));
  EXPECT_EQ(*open(a_, OpenMode::kRead)->modified(), info.modified);
  EXPECT_TRUE(env_.info(folder_)->folder);
  EXPECT_EQ(env_.info(folder_)->size, 0);
}

TEST_P(EnvTest, LinkGivesOneFileTwoNames) {
  put(a_, "abc");
  ASSERT_OK(env_.link(a_, b_));
  EXPECT_EQ(env_.info(a_)->inode, env_.info(b_)->inode);
  EXPECT_EQ(env_.info(a_)->links, 2);
  ASSERT_OK(env_.remove_file(a_));
  EXPECT_EQ(get(b_), "abc");
  EXPECT_EQ(env_.info(b_)->links, 1);
}

TEST_P(EnvTest, LinkRefusesATakenNameAMissingFileAndAFolder) {
  put(a_, "a");
  put(b_, "b");
  ASSERT_OK(env_.create_folder(sub_));
  EXPECT_ERROR(env_.link(a_, b_), ErrorCode::kConflict);
  EXPECT_ERROR(env_.link(folder_ / "none", folder_ / "c"), ErrorCode::kNotFound);
  EXPECT_ERROR(env_.link(sub_, folder_ / "c"), ErrorCode::kUnsupported);
}

TEST_P(EnvTest, RenameReplacesAFile) {
  put(a_, "new");
  put(b_, "old");
  ASSERT_OK(env_.rename(a_, b_));
  EXPECT_EQ(get(b_), "new");
  EXPECT_EQ(get(a_), "not_found");
  EXPECT_ERROR(env_.rename(a_, b_), ErrorCode::kNotFound);
}

TEST_P(EnvTest, RenameKeepsAFolderThatIsNotEmpty) {
  ASSERT_OK(env_.create_folders(sub_));
  ASSERT_OK(env_.create_folders(folder_ / "full"));
  put(folder_ / "full" / "x", "x");
  EXPECT_ERROR(env_.rename(sub_, folder_ / "full"), ErrorCode::kConflict);
  EXPECT_ERROR(env_.rename(folder_ / "full", folder_ / "full" / "y"),
               ErrorCode::kInvalid);
  put(a_, "a");
  EXPECT_ERROR(env_.rename(a_, sub_), ErrorCode::kInvalid);
  EXPECT_ERROR(env_.rename(sub_, a_), ErrorCode::kInvalid);
}

TEST_P(EnvTest, RenameNewReplacesNothing) {
  put(a_, "new");
  put(b_, "old");
  EXPECT_ERROR(env_.rename_new(a_, b_), ErrorCode::kConflict);
  EXPECT_EQ(get(b_), "old");
  EXPECT_EQ(get(a_), "new");
  ASSERT_OK(env_.create_folder(sub_));
  put(sub_ / "x", "x");
  EXPECT_ERROR(env_.rename_new(sub_, b_), ErrorCode::kConflict);
  ASSERT_OK(env_.create_folder(folder_ / "empty"));
  EXPECT_ERROR(env_.rename_new(sub_, folder_ / "empty"), ErrorCode::kConflict);
  EXPECT_ERROR(env_.rename_new(sub_, sub_ / "y"), ErrorCode::kInvalid);
  EXPECT_ERROR(env_.rename_new(folder_ / "none", folder_ / "c"), ErrorCode::kNotFound);
  ASSERT_OK(env_.rename_new(sub_, folder_ / "step"));
  EXPECT_EQ(get(folder_ / "step" / "x"), "x");
}

TEST_P(EnvTest, OpenFilesOutliveTheirNames) {
  put(a_, "abc");
  const auto file = open(a_, OpenMode::kRead);
  ASSERT_OK(env_.remove_file(a_));
  Bytes into(3);
  EXPECT_EQ(*file->read_at(0, into), 3u);
  EXPECT_EQ(text_of(into), "abc");
}

TEST_P(EnvTest, FoldersListTheirNamesSorted) {
  ASSERT_OK(env_.create_folder(sub_));
  put(b_, "");
  put(a_, "");
  put(folder_ / "B", "");
  EXPECT_EQ(*env_.list(folder_), (std::vector<std::string>{"B", "a", "b", "sub"}));
  EXPECT_TRUE(env_.list(sub_)->empty());
  EXPECT_ERROR(env_.list(folder_ / "none"), ErrorCode::kNotFound);
}

TEST_P(EnvTest, FoldersAreCreatedOnceAndRemovedEmpty) {
  EXPECT_ERROR(env_.create_folder(sub_ / "deep"), ErrorCode::kNotFound);
  ASSERT_OK(env_.create_folder(sub_));
  EXPECT_ERROR(env_.create_folder(sub_), ErrorCode::kConflict);
  put(sub_ / "x", "");
  EXPECT_ERROR(env_.remove_folder(sub_), ErrorCode::kConflict);
  ASSERT_OK(env_.remove_file(sub_ / "x"));
  ASSERT_OK(env_.remove_folder(sub_));
  EXPECT_ERROR(env_.remove_folder(sub_), ErrorCode::kNotFound);
}

TEST_P(EnvTest, RemovingTheWrongKindIsRefused) {
  ASSERT_OK(env_.create_folder(sub_));
  put(a_, "");
  EXPECT_ERROR(env_.remove_file(sub_), ErrorCode::kInvalid);
  EXPECT_ERROR(env_.remove_folder(a_), ErrorCode::kInvalid);
  EXPECT_ERROR(env_.remove_file(b_), ErrorCode::kNotFound);
}

TEST_P(EnvTest, CreateFoldersMakesWhatIsMissing) {
  ASSERT_OK(env_.create_folders(sub_ / "x" / "y/"));
  EXPECT_TRUE(env_.info(sub_ / "x" / "y")->folder);
  EXPECT_OK(env_.create_folders(sub_ / "x"));
  put(a_, "");
  EXPECT_ERROR(env_.create_folders(a_), ErrorCode::kConflict);
}

TEST_P(EnvTest, RemoveAllTakesFoldersWithTheirContents) {
  ASSERT_OK(env_.create_folders(sub_ / "x"));
  put(sub_ / "x" / "1", "");
  put(sub_ / "2", "");
  ASSERT_OK(env_.remove_all(sub_));
  EXPECT_ERROR(env_.info(sub_), ErrorCode::kNotFound);
  EXPECT_OK(env_.remove_all(sub_));
}

TEST_P(EnvTest, ReplaceFileLeavesOnlyTheNewContents) {
  ASSERT_OK(env_.replace_file(a_, bytes_of("one")));
  ASSERT_OK(env_.replace_file(a_, bytes_of("two")));
  EXPECT_EQ(get(a_), "two");
  EXPECT_EQ(*env_.list(folder_), std::vector<std::string>{"a"});
}

TEST_P(EnvTest, ReadFileRefusesMoreThanItsLimit) {
  put(a_, "12345");
  EXPECT_EQ(env_.read_file(a_, 5)->size(), 5u);
  EXPECT_ERROR(env_.read_file(a_, 4), ErrorCode::kInvalid);
}

TEST_P(EnvTest, ReadFileReadsFilesOfEverySize) {
  for (const size_t size : std::vector<size_t>{4095, 4096, 4097, 10'000}) {
    const std::string text(size, 'x');
    put(a_, text);
    EXPECT_EQ(env_.read_text(a_, static_cast<int64_t>(size)).value(), text);
  }
}

TEST_P(EnvTest, SyncsSucceedOnWhatIsThere) {
  const auto file = open(a_, OpenMode::kCreate);
  EXPECT_OK(file->sync());
  EXPECT_OK(file->sync_data());
  EXPECT_OK(env_.sync_folder(folder_));
  EXPECT_ERROR(env_.sync_folder(sub_), ErrorCode::kNotFound);
  EXPECT_ERROR(env_.sync_folder(a_), ErrorCode::kInvalid);
}

TEST_P(EnvTest, FreeSpaceIsAskedOfAFolder) {
  EXPECT_GT(*env_.free_space(folder_), 0);
  EXPECT_ERROR(env_.free_space(folder_ / "none"), ErrorCode::kNotFound);
}

TEST_P(EnvTest, ErrorsNameThePathAndTheCall) {
  put(a_, "x");
  const std::string message = message_of(env_.open(a_, {.mode = OpenMode::kCreate}));
  EXPECT_NE(message.find(a_.native() + ": open: "), message.npos) << message;
}

TEST_P(EnvTest, AMissingFileIsCalledThatAndNothingElse) {
  const std::string message = message_of(env_.info(a_));
  EXPECT_NE(message.find(a_.native() + ": No such file"), message.npos) << message;
}

TEST_P(EnvTest, TheClockGoesForwardAndSleepsPass) {
  const Instant start = env_.now();
  const WallTime wall = env_.wall_now();
  env_.sleep_for(std::chrono::nanoseconds(1));
  EXPECT_GT(env_.now(), start);
  EXPECT_GE(env_.wall_now(), wall);
}

TEST_P(EnvTest, WaitingEndsAtADeadlineThatHasPassed) {
  Mutex mutex;
  Condition never;
  MutexLock lock(mutex);
  env_.wait_until(never, mutex, env_.now());
  env_.wait_until(never, mutex, Instant::min());
}

TEST_P(EnvTest, RandomNumbersDiffer) {
  const uint64_t first = env_.random64();
  EXPECT_NE(env_.random64(), first);
}

}  // namespace
}  // namespace holdfast::env_conformance_test
