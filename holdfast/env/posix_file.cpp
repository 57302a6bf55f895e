// The system calls of a POSIX file. posix_submit.cpp has its submitted transfers.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "holdfast/env/errno_error.h"
#include "holdfast/env/posix_file_internal.h"

namespace holdfast {
namespace {

// The call's result, repeated while a signal interrupts it.
template <typename Call>
auto uninterrupted(Call call) {
  while (true) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

// The flags for opening. Truncation comes later, when it is known that a regular file
// was opened. Without O_NONBLOCK, opening a pipe would block until somebody opens its
// other end; for files the flag means nothing.
int flags_of(OpenMode mode) {
  constexpr int kAlways = O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  switch (mode) {
    case OpenMode::kRead: return O_RDONLY | kAlways;
    case OpenMode::kCreate: return O_RDWR | O_CREAT | O_EXCL | kAlways;
    case OpenMode::kTruncate: return O_RDWR | O_CREAT | kAlways;
    case OpenMode::kUpdate: return O_RDWR | kAlways;
    case OpenMode::kAppend: return O_WRONLY | O_CREAT | O_APPEND | kAlways;
  }
  HOLDFAST_CHECK(false, "open mode {}", static_cast<int>(mode));
}

Error not_a_file(const Path& path) {
  return invalid("{}: open: not a regular file", path.native());
}

}  // namespace

WallTime wall_time(const timespec& time) {
  return WallTime(std::chrono::seconds(time.tv_sec) +
                  std::chrono::nanoseconds(time.tv_nsec));
}

Result<std::unique_ptr<File>> PosixFile::open(const Path& path, OpenOptions options,
                                              PosixIo& io) {
  HOLDFAST_CHECK(!(options.direct && options.mode == OpenMode::kAppend),
                 "{}: direct append", path.native());
  const int flags = flags_of(options.mode);
  const int descriptor =
      uninterrupted([&] { return ::open(path.c_str(), flags, 0666); });
  if (descriptor < 0) {
    // Pipes without a reader and sockets answer ENXIO.
    return errno == ENXIO ? not_a_file(path) : errno_error(errno, "open", path);
  }
  std::unique_ptr<PosixFile> file(new PosixFile(path, options, descriptor, io));
  HOLDFAST_TRY(file->check_kind());
  if (options.direct) HOLDFAST_TRY(file->make_direct());
  if (options.mode == OpenMode::kTruncate) HOLDFAST_TRY(file->truncate(0));
  return std::unique_ptr<File>(std::move(file));
}

Result<std::unique_ptr<File>> PosixFile::create_unnamed(const Path& folder,
                                                        PosixIo& io) {
  const int descriptor = uninterrupted(
      [&] { return ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666); });
  // The answers of a file system without unnamed files, and of a kernel without
  // O_TMPFILE.
  const bool cannot = errno == EISDIR || errno == EINVAL || errno == ENOENT;
  if (descriptor < 0) {
    return errno_error(cannot ? EOPNOTSUPP : errno, "create unnamed", folder);
  }
  std::unique_ptr<PosixFile> file(
      new PosixFile(folder, {.mode = OpenMode::kCreate}, descriptor, io));
  // set_name() needs /proc. Without /proc the file could never get a name, so it is
  // refused before anything is written to it.
  if (::access(file->in_proc().c_str(), F_OK) == 0) {
    return std::unique_ptr<File>(std::move(file));
  }
  return errno_error(EOPNOTSUPP, "create unnamed", folder);
}

std::string PosixFile::in_proc() const {
  return fmt::format("/proc/self/fd/{}", descriptor_);
}

Result<void> PosixFile::set_name(const Path& to) const {
  if (::linkat(AT_FDCWD, in_proc().c_str(), AT_FDCWD, to.c_str(), AT_SYMLINK_FOLLOW) ==
      0) {
    return {};
  }
  // The answers of file systems without hard links.
  const bool cannot = errno == EPERM || errno == EMLINK || errno == ENOSYS;
  return errno_error(cannot ? EOPNOTSUPP : errno, "name", to);
}

Result<void> PosixFile::check_kind() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) return failure("open");
  if (S_ISDIR(status.st_mode)) return errno_error(EISDIR, "open", path());
  if (!S_ISREG(status.st_mode)) return not_a_file(path());
  return {};
}

// Sets O_DIRECT after opening: an open() with the flag would leave a new file behind
// where the file system refuses the flag.
Result<void> PosixFile::make_direct() const {
  if (::fcntl(descriptor_, F_SETFL, O_DIRECT) == 0) return {};
  const int number = errno == EINVAL ? EOPNOTSUPP : errno;
  if (mode() == OpenMode::kCreate) ::unlink(path().c_str());
  return errno_error(number, "open direct", path());
}

PosixFile::~PosixFile() {
  if (descriptor_ < 0) return;
  (void)drain();
  (void)close_handle();
}

Error PosixFile::failure(std::string_view what) const {
  return errno_error(errno, what, path());
}

Error PosixFile::transfer_failure(int number, std::string_view what) const {
  // The transfer is aligned to kDirectAlignment, so EINVAL means that this file system
  // demands more of direct transfers than we give.
  const bool cannot = direct() && number == EINVAL;
  return errno_error(cannot ? EOPNOTSUPP : number, what, path());
}

Result<size_t> PosixFile::read_some(int64_t offset, ByteSpan into) {
  const ssize_t count = uninterrupted(
      [&] { return ::pread(descriptor_, into.data(), into.size(), offset); });
  if (count < 0) return transfer_failure(errno, "read");
  return static_cast<size_t>(count);
}

Result<size_t> PosixFile::write_some(int64_t offset, ByteView bytes) {
  const ssize_t count = uninterrupted(
      [&] { return ::pwrite(descriptor_, bytes.data(), bytes.size(), offset); });
  if (count < 0) return transfer_failure(errno, "write");
  return static_cast<size_t>(count);
}

Result<size_t> PosixFile::append_some(ByteView bytes) {
  const ssize_t count =
      uninterrupted([&] { return ::write(descriptor_, bytes.data(), bytes.size()); });
  if (count < 0) return failure("append");
  return static_cast<size_t>(count);
}

Result<int64_t> PosixFile::size() {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) return failure("size");
  return int64_t{status.st_size};
}

Result<WallTime> PosixFile::modified() {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) return failure("modified");
  return wall_time(status.st_mtim);
}

Result<void> PosixFile::allocate(int64_t size) {
  if (size == 0) return {};  // fallocate() refuses a length of 0
  const int done = uninterrupted([&] { return ::fallocate(descriptor_, 0, 0, size); });
  if (done != 0) return failure("allocate");
  return {};
}

Result<void> PosixFile::truncate(int64_t size) {
  if (uninterrupted([&] { return ::ftruncate(descriptor_, size); }) != 0) {
    return failure("truncate");
  }
  return {};
}

Result<void> PosixFile::sync() {
  // An interrupted sync is not repeated: a second sync could hide that the first lost
  // data.
  if (::fsync(descriptor_) != 0) return failure("sync");
  return {};
}

Result<void> PosixFile::sync_data() {
  if (::fdatasync(descriptor_) != 0) return failure("sync");
  return {};
}

Result<bool> PosixFile::try_lock(LockKind kind) {
  const int what = (kind == LockKind::kShared ? LOCK_SH : LOCK_EX) | LOCK_NB;
  if (uninterrupted([&] { return ::flock(descriptor_, what); }) == 0) {
    locked_ = true;
    return true;
  }
  if (errno == EWOULDBLOCK) return false;
  // The answers of file systems without locks. NFS answers EBADF to an exclusive lock of
  // a file that is open only to read.
  const bool cannot = errno == ENOLCK || errno == ENOSYS || errno == EINVAL ||
                      errno == EBADF || errno == EOPNOTSUPP;
  return errno_error(cannot ? EOPNOTSUPP : errno, "lock", path());
}

Result<void> PosixFile::close_handle() {
  {
    MutexLock lock(mutex_);
    ring_.reset();
  }
  const int descriptor = std::exchange(descriptor_, -1);
  // A child that was forked meanwhile has the descriptor too, and would keep the lock.
  if (locked_) ::flock(descriptor, LOCK_UN);
  // Linux frees the descriptor even when close() reports an interruption.
  if (::close(descriptor) != 0 && errno != EINTR) return failure("close");
  return {};
}

}  // namespace holdfast
