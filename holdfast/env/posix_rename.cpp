#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "holdfast/env/errno_error.h"
#include "holdfast/env/posix_rename_internal.h"

namespace holdfast {
namespace {

bool is_below(const Path& path, const Path& folder) {
  const Path inner = path.lexically_normal();
  const Path outer = (folder / "").lexically_normal().parent_path();
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first ==
         outer.end();
}

// True if a file system without hard links answers link() with this error number.
bool has_no_links(int number) {
  return number == EPERM || number == EMLINK || number == ENOSYS ||
         number == EOPNOTSUPP;
}

// Renames without hard links: creates an empty file of the new name, which fails if the
// name is taken, and then replaces that file.
Result<void> move_file_over_own(const Path& from, const Path& to) {
  const std::string what = "rename to new " + to.native();
  const int own = ::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (own < 0) return errno_error(errno, what, from);
  ::close(own);  // nothing was written to it
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int number = errno;
    ::unlink(to.c_str());
    return errno_error(number, what, from);
  }
  return {};
}

Result<void> move_file(const Path& from, const Path& to) {
  const std::string what = "rename to new " + to.native();
  if (::link(from.c_str(), to.c_str()) != 0) {
    return has_no_links(errno) ? move_file_over_own(from, to)
                               : errno_error(errno, what, from);
  }
  if (::unlink(from.c_str()) != 0) {
    const int number = errno;
    ::unlink(to.c_str());
    return errno_error(number, what, from);
  }
  return {};
}

}  // namespace

Result<void> posix_rename_new_plainly(const Path& from, const Path& to) {
  const std::string what = "rename to new " + to.native();
  struct stat source {
  }, target{};
  if (::lstat(from.c_str(), &source) != 0) return errno_error(errno, what, from);
  if (::lstat(to.c_str(), &target) == 0) return errno_error(EEXIST, what, from);
  if (errno != ENOENT) return errno_error(errno, what, from);
  if (is_below(to, from)) return errno_error(EINVAL, what, from);
  if (!S_ISDIR(source.st_mode)) return move_file(from, to);
  if (::rename(from.c_str(), to.c_str()) != 0) return errno_error(errno, what, from);
  return {};
}

Result<void> posix_rename_new(const Path& from, const Path& to) {
  const int done =
      ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
  if (done == 0) return {};
  // EINVAL is also the answer for moving a folder into itself;
  // posix_rename_new_plainly() tells the two cases apart.
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) {
    return posix_rename_new_plainly(from, to);
  }
  return errno_error(errno, "rename to new " + to.native(), from);
}

}  // namespace holdfast
