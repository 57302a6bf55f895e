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
    tree_ = MountTree::create(*corpus_, {.batch = 6}, cursor).value();
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
