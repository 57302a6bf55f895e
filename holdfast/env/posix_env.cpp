#include "holdfast/env/posix_env.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <system_error>
#include <thread>

#include "holdfast/base/checked.h"
#include "holdfast/env/errno_error.h"
#include "holdfast/env/posix_file_internal.h"
#include "holdfast/env/posix_rename_internal.h"

namespace holdfast {
namespace {

Result<void> outcome(int returned, std::string_view what, const Path& path) {
  if (returned != 0) return errno_error(errno, what, path);
  return {};
}

// The outcome of a system call for which these error numbers mean that the file system
// cannot do it.
Result<void> outcome_or_unsupported(int returned, std::string_view what,
                                    const Path& path,
                                    std::initializer_list<int> unsupported) {
  if (returned == 0) return {};
  const int number = errno;
  const bool cannot =
      std::find(unsupported.begin(), unsupported.end(), number) != unsupported.end();
  return errno_error(cannot ? EOPNOTSUPP : number, what, path);
}

class PosixEnv : public Env {
 public:
  explicit PosixEnv(PosixOptions options) : io_(options) {}

  Result<std::unique_ptr<File>> open(const Path& path, OpenOptions options) override {
    return PosixFile::open(path, options, io_);
  }

  Result<std::unique_ptr<File>> create_unnamed(const Path& folder) override {
    return PosixFile::create_unnamed(folder, io_);
  }

  Result<void> name_file(File& file, const Path& to) override {
    const auto* unnamed = dynamic_cast<const PosixFile*>(&file);
    HOLDFAST_CHECK(unnamed != nullptr, "{}: file of another Env", file.path().native());
    return unnamed->set_name(to);
  }

  Result<FileInfo> info(const Path& path) override {
    struct stat status {};
    HOLDFAST_TRY(outcome(::lstat(path.c_str(), &status), "info", path));
    const bool symlink = S_ISLNK(status.st_mode);
    if (symlink && ::stat(path.c_str(), &status) != 0) {
      return FileInfo{.symlink = true};
    }
    const bool folder = S_ISDIR(status.st_mode);
    return FileInfo{.folder = folder,
                    .symlink = symlink,
                    .size = folder ? 0 : int64_t{status.st_size},
                    .links = static_cast<int64_t>(status.st_nlink),
                    .inode = status.st_ino,
                    .device = status.st_dev,
                    .modified = wall_time(status.st_mtim)};
  }

  Result<void> remove_file(const Path& path) override {
    return outcome(::unlink(path.c_str()), "remove", path);
  }

  Result<void> rename(const Path& from, const Path& to) override {
    return outcome(::rename(from.c_str(), to.c_str()), "rename to " + to.native(),
                   from);
  }

  Result<void> rename_new(const Path& from, const Path& to) override {
    return posix_rename_new(from, to);
  }

  Result<void> link(const Path& from, const Path& to) override {
    const int done = ::link(from.c_str(), to.c_str());
    return outcome_or_unsupported(done, "link to " + to.native(), from,
                                  {EPERM, EMLINK});
  }

  Result<void> create_folder(const Path& path) override {
    return outcome(::mkdir(path.c_str(), 0777), "create folder", path);
  }

  Result<void> remove_folder(const Path& path) override {
    return outcome(::rmdir(path.c_str()), "remove folder", path);
  }

  Result<std::vector<std::string>> list(const Path& folder) override {
    std::error_code error;
    std::vector<std::string> names;
    std::filesystem::directory_iterator entry(folder, error);
    for (; !error && entry != std::filesystem::directory_iterator();
         entry.increment(error)) {
      names.push_back(entry->path().filename().native());
    }
    if (error.value() == ENOTDIR) {
      return invalid("{}: not a folder; expected one", folder.native());
    }
    if (error) return errno_error(error.value(), "list", folder);
    std::sort(names.begin(), names.end());
    return names;
  }

  Result<void> sync_folder(const Path& folder) override {
    const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) {
      return outcome_or_unsupported(-1, "sync folder", folder, {EACCES});
    }
    const Result<void> synced = outcome_or_unsupported(
        ::fsync(descriptor), "sync folder", folder, {EINVAL, EBADF});
    ::close(descriptor);  // opened to read only, so closing cannot lose anything
    return synced;
  }

  Result<int64_t> free_space(const Path& folder) override {
    struct statvfs status {};
    HOLDFAST_TRY(outcome(::statvfs(folder.c_str(), &status), "free space", folder));
    // A file system that reports no size, as many in user space do, does not say what
    // is free.
    if (status.f_blocks == 0) return std::numeric_limits<int64_t>::max();
    return checked_mul(static_cast<int64_t>(status.f_bavail),
                       static_cast<int64_t>(status.f_frsize))
        .value_or(std::numeric_limits<int64_t>::max());
  }

  Instant now() override { return std::chrono::steady_clock::now(); }
  WallTime wall_now() override { return std::chrono::system_clock::now(); }
  void sleep_for(Duration duration) override { std::this_thread::sleep_for(duration); }

  void wait_until(Condition& condition, Mutex& mutex, Instant deadline) override
      HOLDFAST_REQUIRES(mutex) {
    const Instant start = now();
    if (start >= deadline) return;
    // The wait is at most an hour, so that no far deadline overflows in the system
    // call.
    condition.wait_for(mutex,
                       std::min<Duration>(deadline - start, std::chrono::hours(1)));
  }

  uint64_t random64() override {
    uint64_t value = 0;
    while (::getrandom(&value, sizeof value, 0) != sizeof value) {
      HOLDFAST_CHECK(errno == EINTR, "getrandom failed with {}", errno);
    }
    return value;
  }

 private:
  PosixIo io_;
};

}  // namespace

std::unique_ptr<Env> make_posix_env(PosixOptions options) {
  return std::make_unique<PosixEnv>(options);
}

}  // namespace holdfast
