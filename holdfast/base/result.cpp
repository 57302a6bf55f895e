#include "holdfast/base/result.h"

#include <cstdio>
#include <cstdlib>

namespace holdfast {

void fail_check(const char* file, int line, const char* condition,
                const std::string& message) {
  fmt::print(stderr, "{}:{}: bug: {} ({})\n", file, line, message, condition);
  std::abort();
}

std::string_view name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalid: return "invalid";
    case ErrorCode::kNotFound: return "not_found";
    case ErrorCode::kCorrupt: return "corrupt";
    case ErrorCode::kConflict: return "conflict";
    case ErrorCode::kUnavailable: return "unavailable";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kNoSpace: return "no_space";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kDenied: return "denied";
    case ErrorCode::kIo: return "io";
  }
  HOLDFAST_CHECK(false, "error code {}", static_cast<int>(code));
}

Error Error::within(std::string_view context) const {
  return Error(code_, fmt::format("{}: {}", context, message_));
}

}  // namespace holdfast
