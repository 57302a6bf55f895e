#include "holdfast/env/errno_error.h"

#include <cerrno>
#include <system_error>

namespace holdfast {
namespace {

ErrorCode code_of(int number) {
  switch (number) {
    case ENOENT: return ErrorCode::kNotFound;
    case EEXIST:
    case ENOTEMPTY:
    case EADDRINUSE: return ErrorCode::kConflict;
    case ENOSPC:
    case EDQUOT: return ErrorCode::kNoSpace;
    case ETIMEDOUT: return ErrorCode::kTimeout;
    case EAGAIN:
    case EBUSY:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ESTALE:
    case ETXTBSY: return ErrorCode::kUnavailable;
    case EOPNOTSUPP:
    case ENOSYS:
    case EXDEV: return ErrorCode::kUnsupported;
    case EACCES:
    case EPERM: return ErrorCode::kDenied;
    case EADDRNOTAVAIL:
    case EINVAL:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case ENOTDIR: return ErrorCode::kInvalid;
    default: return ErrorCode::kIo;
  }
}

}  // namespace

Error errno_error(int number, std::string_view what, const Path& path) {
  const std::string text = std::generic_category().message(number);
  const std::string call = number == ENOENT ? "" : fmt::format("{}: ", what);
  return Error(code_of(number), fmt::format("{}: {}{}", path.native(), call, text));
}

}  // namespace holdfast
