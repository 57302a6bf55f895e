// Tests what only the machine's Env has: symbolic links, and the system's error
// numbers.
#include "holdfast/env/posix_env.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <limits>

#include "holdfast/base/testing.h"
#include "holdfast/env/errno_error.h"
#include "holdfast/env/posix_rename_internal.h"

namespace holdfast {
namespace {

class PosixEnvTest : public ::testing::Test {
 protected:
  std::unique_ptr<Env> env_ = make_posix_env();
  TempFolder temp_;
  const Path folder_ = temp_.path();
};

TEST_F(PosixEnvTest, RemoveAllDoesNotFollowSymbolicLinks) {
  ASSERT_OK(env_->create_folders(folder_ / "kept"));
  ASSERT_OK(env_->write_file(folder_ / "kept" / "x", bytes_of("x")));
  ASSERT_OK(env_->create_folder(folder_ / "gone"));
  std::filesystem::create_directory_symlink(folder_ / "kept",
                                            folder_ / "gone" / "link");
  EXPECT_TRUE(env_->info(folder_ / "gone" / "link")->symlink);
  EXPECT_TRUE(env_->info(folder_ / "gone" / "link")->folder);
  ASSERT_OK(env_->remove_all(folder_ / "gone"));
  EXPECT_EQ(*env_->read_text(folder_ / "kept" / "x"), "x");
}

TEST_F(PosixEnvTest, LinksThatLeadNowhereAreThereAndAreRemoved) {
  ASSERT_OK(env_->create_folder(folder_ / "gone"));
  std::filesystem::create_symlink("nowhere", folder_ / "gone" / "link");
  std::filesystem::create_symlink("loop", folder_ / "gone" / "loop");
  for (const char* name : {"link", "loop"}) {
    const FileInfo info = env_->info(folder_ / "gone" / name).value();
    EXPECT_TRUE(info.symlink);
    EXPECT_FALSE(info.folder);
  }
  ASSERT_OK(env_->remove_all(folder_ / "gone"));
  EXPECT_ERROR(env_->info(folder_ / "gone"), ErrorCode::kNotFound);
}

TEST_F(PosixEnvTest, AFolderThatCannotBeSyncedIsUnsupported) {
  const Path folder = "/proc/self";
  if (!env_->info(folder).ok()) GTEST_SKIP() << "no " << folder;
  EXPECT_ERROR(env_->sync_folder(folder), ErrorCode::kUnsupported);
}

TEST_F(PosixEnvTest, PipesAndDevicesDoNotOpenAndDoNotBlock) {
  const Path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const OpenMode mode :
       {OpenMode::kRead, OpenMode::kUpdate, OpenMode::kTruncate, OpenMode::kAppend}) {
    EXPECT_ERROR(env_->open(pipe, {.mode = mode}), ErrorCode::kInvalid);
    EXPECT_ERROR(env_->open("/dev/null", {.mode = mode}), ErrorCode::kInvalid);
  }
}

// A file system in memory often refuses direct transfers: it has no cache to bypass.
TEST_F(PosixEnvTest, WhereDirectIsUnsupportedNoFileIsLeftOrEmptied) {
  if (::access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm";
  const Path folder = fmt::format("/dev/shm/holdfast-{:016x}", env_->random64());
  ASSERT_OK(env_->create_folder(folder));
  ASSERT_OK(env_->write_file(folder / "old", bytes_of("text")));
  const auto opened = [&](const char* name, OpenMode mode) {
    return env_->open(folder / name, {.mode = mode, .direct = true});
  };
  const auto created = opened("new", OpenMode::kCreate);
  if (!created.ok()) {
    EXPECT_ERROR(created, ErrorCode::kUnsupported);
    EXPECT_ERROR(opened("old", OpenMode::kTruncate), ErrorCode::kUnsupported);
    EXPECT_EQ(*env_->list(folder), std::vector<std::string>{"old"});
    EXPECT_EQ(*env_->read_text(folder / "old"), "text");
  }
  ASSERT_OK(env_->remove_all(folder));
  if (created.ok()) GTEST_SKIP() << "direct even there";
}

TEST_F(PosixEnvTest, AFileOfTheSystemIsNotDirect) {
  const Path status = "/proc/self/status";
  if (!env_->info(status).ok()) GTEST_SKIP() << "no " << status;
  EXPECT_ERROR(env_->open(status, {.mode = OpenMode::kRead, .direct = true}),
               ErrorCode::kUnsupported);
}

TEST_F(PosixEnvTest, RenamingPlainlyReplacesNothingEither) {
  const auto put = [&](const Path& name) {
    ASSERT_OK(env_->write_file(folder_ / name, bytes_of(name.native())));
  };
  const auto move = [&](const Path& from, const Path& to) {
    return posix_rename_new_plainly(folder_ / from, folder_ / to);
  };
  ASSERT_OK(env_->create_folder(folder_ / "full"));
  ASSERT_OK(env_->create_folder(folder_ / "empty"));
  for (const char* name : {"a", "b", "full/x"}) put(name);
  std::filesystem::create_symlink("nowhere", folder_ / "link");
  for (const char* taken : {"b", "empty", "link"}) {
    EXPECT_ERROR(move("a", taken), ErrorCode::kConflict);
    EXPECT_ERROR(move("full", taken), ErrorCode::kConflict);
  }
  EXPECT_ERROR(move("none", "c"), ErrorCode::kNotFound);
  EXPECT_ERROR(move("a", "none/c"), ErrorCode::kNotFound);
  EXPECT_ERROR(move("full", "full/y"), ErrorCode::kInvalid);
  EXPECT_ERROR(move("full/", "./empty/../full/y/"), ErrorCode::kInvalid);
  ASSERT_OK(move("a", "c"));
  ASSERT_OK(move("full", "fuller"));
  EXPECT_EQ(*env_->list(folder_),
            (std::vector<std::string>{"b", "c", "empty", "fuller", "link"}));
  EXPECT_EQ(*env_->read_text(folder_ / "c"), "a");
  EXPECT_EQ(env_->info(folder_ / "c")->links, 1);
  EXPECT_EQ(*env_->read_text(folder_ / "fuller" / "x"), "full/x");
}

// Makes the system refuse hard links and renames that replace nothing, as file systems
// in user space do. It applies to this process until the process ends.
bool refuse_links_and_new_names() {
  const auto refuse = [](auto number, uint32_t error) {
    return std::array<sock_filter, 2>{
        sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, uint32_t{number}, 0, 1),
        sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error)};
  };
  const auto linkat = refuse(uint32_t{__NR_linkat}, ENOSYS);
  const auto renameat2 = refuse(uint32_t{__NR_renameat2}, EINVAL);
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  program.insert(program.end(), linkat.begin(), linkat.end());
  program.insert(program.end(), renameat2.begin(), renameat2.end());
#ifdef __NR_link
  const auto link = refuse(uint32_t{__NR_link}, ENOSYS);
  program.insert(program.end(), link.begin(), link.end());
#endif
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter{.len = static_cast<unsigned short>(program.size()),
                          .filter = program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST_F(PosixEnvTest, WithoutHardLinksAFileGetsItsNewNameToo) {
  enum Outcome { kRight, kWrong, kNoFilter };
  ASSERT_OK(env_->write_file(folder_ / "a", bytes_of("a")));
  ASSERT_OK(env_->write_file(folder_ / "b", bytes_of("b")));
  const pid_t child = ::fork();
  if (child == 0) {
    if (!refuse_links_and_new_names()) ::_exit(kNoFilter);
    const auto taken = env_->rename_new(folder_ / "a", folder_ / "b");
    const bool refused = !taken.ok() && taken.error().code() == ErrorCode::kConflict;
    const bool moved = env_->rename_new(folder_ / "a", folder_ / "c").ok();
    const auto none = env_->rename_new(folder_ / "none", folder_ / "d");
    const bool missing = !none.ok() && none.error().code() == ErrorCode::kNotFound;
    const auto linked = env_->link(folder_ / "b", folder_ / "e");
    const bool no_links =
        !linked.ok() && linked.error().code() == ErrorCode::kUnsupported;
    const auto unnamed = env_->create_unnamed(folder_);
    const auto named = unnamed.ok() ? env_->name_file(**unnamed, folder_ / "f")
                                    : Result<void>(unnamed.error());
    const bool no_name =
        !named.ok() && named.error().code() == ErrorCode::kUnsupported;
    ::_exit(refused && moved && missing && no_links && no_name ? kRight : kWrong);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == kNoFilter) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(status, kRight);
  EXPECT_EQ(*env_->list(folder_), (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(*env_->read_text(folder_ / "b"), "b");
  EXPECT_EQ(*env_->read_text(folder_ / "c"), "a");
}

TEST_F(PosixEnvTest, AFileSystemWithoutASizeHasRoom) {
  if (!env_->info("/proc/self").ok()) GTEST_SKIP() << "no /proc";
  EXPECT_EQ(*env_->free_space("/proc"), std::numeric_limits<int64_t>::max());
}

TEST_F(PosixEnvTest, FilesThatClaimToBeEmptyAreReadToTheirEnd) {
  const Path status = "/proc/self/status";
  if (!env_->info(status).ok()) GTEST_SKIP() << "no " << status;
  ASSERT_EQ(env_->info(status)->size, 0);
  const std::string text = env_->read_text(status).value();
  EXPECT_TRUE(text.starts_with("Name:")) << text;
  EXPECT_TRUE(text.ends_with("\n"));
  EXPECT_ERROR(env_->read_text(status, 10), ErrorCode::kInvalid);
}

TEST_F(PosixEnvTest, WithoutALimitHugeFilesAreRefusedUnread) {
  const auto file = env_->open(folder_ / "a", {.mode = OpenMode::kCreate}).value();
  ASSERT_OK(file->truncate(kReadLimit + 1));  // a hole: takes no space
  EXPECT_ERROR(env_->read_file(folder_ / "a"), ErrorCode::kInvalid);
}

TEST(ErrnoErrorTest, NumbersBecomeWhatTheCallerCanDo) {
  const auto code = [](int number) {
    return std::string(name_of(errno_error(number, "write", "a").code()));
  };
  EXPECT_EQ(code(ENOENT), "not_found");
  EXPECT_EQ(code(EEXIST), "conflict");
  EXPECT_EQ(code(ENOTEMPTY), "conflict");
  EXPECT_EQ(code(ENOSPC), "no_space");
  EXPECT_EQ(code(EDQUOT), "no_space");
  EXPECT_EQ(code(EOPNOTSUPP), "unsupported");
  EXPECT_EQ(code(EXDEV), "unsupported");
  EXPECT_EQ(code(EINVAL), "invalid");
  EXPECT_EQ(code(EMFILE), "unavailable");
  EXPECT_EQ(code(ETIMEDOUT), "timeout");
  EXPECT_EQ(code(ESTALE), "unavailable");
  EXPECT_EQ(code(ENOMEM), "unavailable");
  EXPECT_EQ(code(EACCES), "denied");
  EXPECT_EQ(code(EIO), "io");
  EXPECT_EQ(errno_error(ENOSPC, "write", "a/b").message(),
            "a/b: write: No space left on device");
}

TEST(UnnamedFileTest, AFileWithoutANameIsSeenOnlyOnceItHasOne) {
  const TempFolder folder;
  const auto env = make_posix_env();
  const auto file = env->create_unnamed(folder.path());
  if (!file.ok()) GTEST_SKIP() << file.error().message();
  ASSERT_OK((*file)->write_at(0, bytes_of("abc")));
  EXPECT_TRUE(env->list(folder.path())->empty());
  ASSERT_OK(env->write_file(folder.path() / "taken", {}));
  EXPECT_ERROR(env->name_file(**file, folder.path() / "taken"), ErrorCode::kConflict);
  ASSERT_OK(env->name_file(**file, folder.path() / "new"));
  ASSERT_OK((*file)->close());
  EXPECT_EQ(env->read_text(folder.path() / "new").value(), "abc");
}

}  // namespace
}  // namespace holdfast
