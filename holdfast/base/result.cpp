#include "holdfast/base/result.h"

#include <cstdio>
#include <cstdlib>

namespace holdfast {

void fail_check(const char* file, int line, const char* condition,
                const std::string& message) {
  fmt::print(stderr, "{}:{}: bug: {} ({})\n", file, line, message, condition);
  std::abort();
}

void fail_value(const Error& error) {
  HOLDFAST_CHECK(false, "value of a failed result: {}", error.message());
}

void fail_error() { HOLDFAST_CHECK(false, "error of a good result"); }

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

Error::Error(ErrorCode code, std::string message)
    : code_(code), message_(std::move(message)) {}
Error::Error(const Error& other) = default;
Error::Error(Error&& other) noexcept = default;
Error& Error::operator=(const Error& other) = default;
Error& Error::operator=(Error&& other) noexcept = default;
Error::~Error() = default;

Error Error::as(ErrorCode code) const { return Error(code, message_); }

Error Error::within(std::string_view context) const {
  return Error(code_, fmt::format("{}: {}", context, message_));
}

}  // namespace holdfast
