#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "holdfast/base/errno_error.h"
#include "holdfast/base/posix_rename_internal.h"

namespace holdfast {
namespace {

bool is_below(const Path& path, const Path& folder) {
  const Path inner = path.lexically_normal();
  const Path outer = (folder / "").lexically_normal().parent_path();
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first ==
         outer.end();
}

Result<void> move_file(const Path& from, const Path& to) {
  if (::link(from.c_str(), to.c_str()) != 0) {
    // This is how a file system without hard links answers.
    const int number = errno == EPERM || errno == EMLINK ? EOPNOTSUPP : errno;
    return errno_error(number, "rename to new " + to.native(), from);
  }
  if (::unlink(from.c_str()) != 0) {
    const int number = errno;
    ::unlink(to.c_str());
    return errno_error(number, "rename to new " + to.native(), from);
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
  // Also the answer for a folder into itself, which the plain way tells apart.
  if (errno == EINVAL || errno == ENOSYS) return posix_rename_new_plainly(from, to);
  return errno_error(errno, "rename to new " + to.native(), from);
}

}  // namespace holdfast
