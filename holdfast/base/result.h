// Errors as values: Result<T> is a T or an Error, and the compiler warns about a result
// that nobody looks at.
//
// A function that depends on the outside world (a file, a peer, the caller's input)
// returns Result. A broken contract between our own functions is HOLDFAST_CHECK and
// aborts. Exceptions exist only at the Python edge. The interface mirrors
// std::expected.
#pragma once

#include <fmt/core.h>

#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace holdfast {

[[noreturn]] void fail_check(const char* file, int line, const char* condition,
                             const std::string& message);

// States a contract between our own functions. A broken contract is a bug: the process
// prints the message and aborts, in release builds too, because going on would risk the
// user's state.
#define HOLDFAST_CHECK(condition, ...)                       \
  do {                                                       \
    if (!(condition)) [[unlikely]] {                         \
      ::holdfast::fail_check(__FILE__, __LINE__, #condition, \
                             ::fmt::format(__VA_ARGS__));    \
    }                                                        \
  } while (false)

// A code says what the caller can do next.
enum class ErrorCode {
  kInvalid,      // the request itself is wrong: fix the call
  kNotFound,     // no such checkpoint, tensor or file: look elsewhere
  kCorrupt,      // bytes disagree with their digest: repair or fall back
  kConflict,     // somebody else owns it, or it is there already: choose
  kUnavailable,  // a peer or device did not answer: retry
  kTimeout,      // the deadline passed: retry or give up
  kNoSpace,      // the disk is full: free some, then retry
  kUnsupported,  // well formed, but not by this build or format
  kDenied,       // permissions do not allow it: change them
  kIo,           // the operating system refused: report
};

// "invalid", "not_found", ...: the word used in events, JSON and Python.
std::string_view name_of(ErrorCode code);

// What went wrong, as `where: what; expected what`: lower case, no full stop, with the
// number that was seen.
class [[nodiscard]] Error {
 public:
  Error(ErrorCode code, std::string message);
  // Out of line, because nearly every function of Holdfast returns an error somewhere.
  Error(const Error& other);
  Error(Error&& other) noexcept;
  Error& operator=(const Error& other);
  Error& operator=(Error&& other) noexcept;
  ~Error();

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same error with the caller's context in front: "restore step 400: ...".
  Error within(std::string_view context) const;
  // The same message with the code that fits the caller: text that is not JSON is
  // kInvalid to the parser, but the reader of a manifest calls it kCorrupt.
  Error as(ErrorCode code) const;

 private:
  ErrorCode code_;
  std::string message_;
};

inline bool is_missing(const Error& error) {
  return error.code() == ErrorCode::kNotFound;
}

// invalid("{}: header is {} bytes, limit {}", path, seen, limit), and so on by code.
#define HOLDFAST_ERROR_FACTORY(name, code)                                           \
  template <typename... Args>                                                        \
  Error name(fmt::format_string<Args...> format, Args&&... args) {                   \
    return Error(ErrorCode::code, fmt::format(format, std::forward<Args>(args)...)); \
  }
HOLDFAST_ERROR_FACTORY(invalid, kInvalid)
HOLDFAST_ERROR_FACTORY(not_found, kNotFound)
HOLDFAST_ERROR_FACTORY(corrupt, kCorrupt)
HOLDFAST_ERROR_FACTORY(conflict, kConflict)
HOLDFAST_ERROR_FACTORY(unavailable, kUnavailable)
HOLDFAST_ERROR_FACTORY(timed_out, kTimeout)
HOLDFAST_ERROR_FACTORY(no_space, kNoSpace)
HOLDFAST_ERROR_FACTORY(unsupported, kUnsupported)
HOLDFAST_ERROR_FACTORY(denied, kDenied)
HOLDFAST_ERROR_FACTORY(io_error, kIo)
#undef HOLDFAST_ERROR_FACTORY

// Abort, because somebody asked a result for what it does not have.
[[noreturn]] void fail_value(const Error& error);
[[noreturn]] void fail_error();

// A T or an Error. Asking for the value of an error, or for the error of a value,
// aborts.
//
// It is a union of our own because std::variant makes some forty functions of each T:
// they took a tenth of the time of a build.
template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  Result(T value) : ok_(true), value_(std::move(value)) {}
  Result(Error error) : ok_(false), error_(std::move(error)) {}
  Result(Result&& other) noexcept : ok_(other.ok_) { construct(std::move(other)); }
  Result(const Result& other)
    requires std::is_copy_constructible_v<T>
      : ok_(other.ok_) {
    construct(other);
  }
  Result& operator=(Result other) noexcept {
    destroy();
    ok_ = other.ok_;
    construct(std::move(other));
    return *this;
  }
  ~Result() { destroy(); }

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok_; }

  T& value() & { return check_value(), value_; }
  const T& value() const& { return check_value(), value_; }
  // Returns by value, so that a loop over names().value() does not read from a
  // temporary that is already destroyed.
  T value() && { return check_value(), std::move(value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& { return check_error(), error_; }
  Error error() && { return check_error(), std::move(error_); }

  // The same result; an error gets the caller's context in front.
  Result within(std::string_view context) && {
    if (ok()) return std::move(*this);
    return error().within(context);
  }

 private:
  void check_value() const {
    if (!ok_) [[unlikely]] fail_value(error_);
  }
  void check_error() const {
    if (ok_) [[unlikely]] fail_error();
  }
  template <typename Other>
  void construct(Other&& other) {
    if (ok_) {
      ::new (&value_) T(std::forward<Other>(other).value_);
    } else {
      ::new (&error_) Error(std::forward<Other>(other).error_);
    }
  }
  void destroy() {
    if (ok_) {
      value_.~T();
    } else {
      error_.~Error();
    }
  }

  bool ok_;
  union {  // clang-tidy takes its members for public ones
    T value_;      // NOLINT(readability-identifier-naming)
    Error error_;  // NOLINT(readability-identifier-naming)
  };
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;

  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  void value() const {
    if (!ok()) [[unlikely]] fail_value(*error_);
  }
  const Error& error() const& { return check_error(), *error_; }
  Error error() && { return check_error(), *std::move(error_); }

  Result within(std::string_view context) && {
    if (ok()) return {};
    return error().within(context);
  }

 private:
  void check_error() const {
    if (ok()) [[unlikely]] fail_error();
  }

  std::optional<Error> error_;
};

// The value of a Result; an error is returned from the enclosing function. It may stand
// inside another HOLDFAST_TRY. Do not use it in the initialiser of an aggregate after a
// member that owns memory: when HOLDFAST_TRY returns there, compilers forget to destroy
// that earlier member.
#define HOLDFAST_TRY(expression) \
  HOLDFAST_TRY_AS(HOLDFAST_JOIN(holdfast_result_, __COUNTER__), expression)
#define HOLDFAST_TRY_AS(result, expression)             \
  __extension__({                                       \
    auto result = (expression);                         \
    if (!result.ok()) return std::move(result).error(); \
    std::move(result).value();                          \
  })
#define HOLDFAST_JOIN(a, b) HOLDFAST_JOIN_EXPANDED(a, b)
#define HOLDFAST_JOIN_EXPANDED(a, b) a##b

}  // namespace holdfast
