#include "holdfast/dataset/mount.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <future>
#include <thread>

#include "holdfast/dataset/dataset_testing.h"
#include "holdfast/env/child.h"

namespace holdfast::tests {
namespace {

// A mount in this process, so that sanitizers see the callbacks of libfuse.
class MountTest : public CorpusTest {
 protected:
  void SetUp() override {
    const bool can_mount = HOLDFAST_HAS_FUSE && ::access("/dev/fuse", R_OK | W_OK) == 0;
    if (!can_mount) GTEST_SKIP() << "needs libfuse3 and /dev/fuse";
    std::string text;
    for (int i = 0; i < kLines; ++i) text += fmt::format("{} {}\n", i, std::string(1000, 'x'));
    file_ = write("a.jsonl", text);
    corpus_ = open("a.jsonl", {.threads = 2}).value();
    const auto cursor = [] { return Result<int64_t>(40); };
    tree_ = MountTree::create(*corpus_, {.batch = 6, .shuffle = shuffle_}, cursor).value();
    ASSERT_OK(env_->create_folder(at_));
    std::promise<bool> ready;
    auto is_ready = ready.get_future();
    thread_ = std::jthread([this, ready = std::move(ready)]() mutable {
      bool told = false;
      const auto tell = [&] { told = true, ready.set_value(true); };
      served_ = mount_tree(*tree_, {.at = at_, .ready = tell, .report = [this](const auto& told_of) {
                                      said_ = told_of;
                                    }});
      if (!told) ready.set_value(false);
    });
    if (is_ready.get()) return;
    thread_.join();
    FAIL() << message_of(served_);
  }

  void TearDown() override { unmount(); }

  // The thread that serves must get the signal, because libfuse waits there.
  void unmount() {
    if (!thread_.joinable()) return;
    ::pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
    EXPECT_OK(served_);
  }

  std::string folder(int worker, int workers) const {
    return fmt::format("{}/from-0-of-{}/worker-{}", at_.native(), workers, worker);
  }

  static constexpr int kLines = 3000;
  bool shuffle_ = true;
  std::string file_;
  const Path at_ = path("mount");
  std::unique_ptr<Corpus> corpus_;
  std::unique_ptr<MountTree> tree_;
  Result<void> served_;
  std::string said_;
  std::jthread thread_;
};

TEST_F(MountTest, SeveralThreadsReadWhatTheTreeHas) {
  std::vector<std::jthread> readers;
  for (int worker = 0; worker < 3; ++worker) {
    readers.emplace_back([this, worker] {
      const std::string name = folder(worker, 3) + "/part-00000.jsonl";
      const auto want = tree_->open(name.substr(at_.native().size())).value();
      std::string bytes(static_cast<size_t>(want->size()), '\0');
      EXPECT_OK(want->read(0, std::as_writable_bytes(std::span(bytes))));
      EXPECT_EQ(env_->read_text(name).value(), bytes);
      EXPECT_EQ(std::ranges::count(bytes, '\n'), kLines / 3);
      const auto seen = env_->open(name, {}).value();
      std::string some(5000, '\0');  // reads from behind to the front
      for (int64_t at = seen->size().value() - 5000; at >= 0; at -= 123'457) {
        ASSERT_OK(seen->read_at(at, std::as_writable_bytes(std::span(some))));
        ASSERT_EQ(some, bytes.substr(static_cast<size_t>(at), some.size())) << at;
      }
    });
  }
}

TEST_F(MountTest, FoldersListsAndLinksAreThere) {
  using ::testing::ElementsAre;
  EXPECT_THAT(env_->list(at_).value(), ElementsAre("current-of-1", "from-000000000000-of-1"));
  EXPECT_THAT(env_->list(folder(0, 2)).value(), ElementsAre("list.txt", "part-00000.jsonl"));
  EXPECT_EQ(std::filesystem::read_symlink(at_ / "current-of-2"), "from-000000000040-of-2");
  EXPECT_EQ(env_->list(at_ / "current-of-2").value().size(), 2u);
  EXPECT_ERROR(env_->info(folder(0, 7)), ErrorCode::kNotFound);
  EXPECT_EQ(::open((folder(0, 2) + "/list.txt").c_str(), O_RDWR), -1);
  EXPECT_EQ(errno, EROFS);
}

TEST_F(MountTest, AFileThatIsCutIsAnErrorThatIsReported) {
  std::filesystem::resize_file(file_, 5000);
  EXPECT_ERROR(env_->read_text(folder(0, 1) + "/part-00000.jsonl"), ErrorCode::kIo);
  unmount();
  EXPECT_THAT(said_, ::testing::HasSubstr("a.jsonl"));
  EXPECT_TRUE(env_->list(at_).value().empty());
}

// The bytes of a part come straight from the file.
class OrderedMountTest : public MountTest {
 protected:
  OrderedMountTest() { shuffle_ = false; }

  std::string part() const { return folder(0, 1) + "/part-00000.jsonl"; }
};

TEST_F(OrderedMountTest, AnyRangeIsThatOfTheFile) {
  const std::string want = env_->read_text(file_).value();
  EXPECT_EQ(env_->read_text(part()).value(), want);
  std::vector<std::jthread> readers;
  for (const size_t size : {1, 4096, 40'000, 131'072, 1'000'000}) {
    readers.emplace_back([&, size] {
      const auto seen = env_->open(part(), {}).value();
      std::string some(size, '\0');
      for (size_t at = 0; at <= want.size(); at += 123'457) {
        const auto count = seen->read_at(static_cast<int64_t>(at),
                                         std::as_writable_bytes(std::span(some)));
        ASSERT_EQ(some.substr(0, count.value()), want.substr(at, size)) << at << " " << size;
      }
    });
  }
}

TEST_F(OrderedMountTest, AChangeAfterTheLastReadIsToldAtTheEnd) {
  const auto seen = env_->open(part(), {}).value();
  Bytes all(static_cast<size_t>(seen->size().value()));
  ASSERT_OK(seen->read_at(0, all));
  ASSERT_OK(seen->read_at(std::ssize(all), ByteSpan(all).first(1)));  // there is nothing more
  ASSERT_OK(env_->open(file_, {.mode = OpenMode::kUpdate}).value()->write_at(7, bytes_of("?")));
  set_modified(file_, std::chrono::seconds(1));
  EXPECT_ERROR(seen->read_at(std::ssize(all), ByteSpan(all).first(1)), ErrorCode::kIo);
  EXPECT_ERROR(seen->read_at(0, all), ErrorCode::kIo);
  EXPECT_ERROR(env_->read_text(part()), ErrorCode::kIo);
  unmount();
  EXPECT_THAT(said_, ::testing::HasSubstr("a.jsonl: was changed after it was indexed"));
}

TEST_F(OrderedMountTest, AFileThatWasReplacedKeepsItsBytesWhereItIsOpen) {
  const std::string want = env_->read_text(file_).value();
  const auto seen = env_->open(part(), {}).value();
  std::string bytes(want.size(), '\0');
  const auto memory = std::as_writable_bytes(std::span(bytes));
  ASSERT_OK(seen->read_at(0, memory.first(200'000)));
  ASSERT_OK(env_->rename(write("new", std::string(want.size(), 'n')), file_));
  ASSERT_OK(seen->read_at(0, memory));
  EXPECT_EQ(bytes, want);
}

TEST_F(OrderedMountTest, AReaderThatGoesAwayLeavesNothingForTheNextOne) {
  const std::string want = env_->read_text(file_).value();
  for (int round = 0; round < 20; ++round) {
    // It is killed while it starts or reads.
    ASSERT_OK(Child::start({.command = {"cat", part()}, .output = "/dev/null"}));
    ASSERT_EQ(env_->read_text(part()).value(), want) << round;
  }
}

TEST(NoMountTest, ABuildWithoutFuseNamesThePackageAndTheDevice) {
  if (HOLDFAST_HAS_FUSE) return;  // scripts/cross.sh makes the other build
  const auto env = make_posix_env();
  const TempFolder folder;
  ASSERT_OK(env->write_file(folder.path() / "a.txt", bytes_of("1\n")));
  const auto corpus = Corpus::open(*env, {folder.path() / "a.txt"}, {}).value();
  const auto tree = MountTree::create(*corpus, {}, {}).value();
  const auto mounted = mount_tree(*tree, {.at = folder.path()});
  EXPECT_ERROR(mounted, ErrorCode::kUnsupported);
  EXPECT_THAT(message_of(mounted), ::testing::HasSubstr("libfuse3-dev"));
  EXPECT_THAT(message_of(mounted), ::testing::HasSubstr("/dev/fuse"));
}

}  // namespace
}  // namespace holdfast::tests
