// Macros and helpers that the tests of all parts share. Only for *_test.cpp.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "holdfast/base/result.h"

// Expects a Result without error. On failure the error's message is shown. These macros are single
// calls, because what GoogleTest's own macros expand to takes long to compile, thousands of times.
#define EXPECT_OK(expression) \
  ::holdfast::expect_ok({__FILE__, __LINE__, #expression}, (expression))

#define ASSERT_OK(expression)                                                          \
  do {                                                                                 \
    if (!::holdfast::expect_ok({__FILE__, __LINE__, #expression, true}, (expression))) \
      return;                                                                          \
  } while (false)

// Expects a Result that is an error of this code.
#define EXPECT_ERROR(expression, error_code)                                \
  ::holdfast::expect_error({__FILE__, __LINE__, #expression}, (expression), \
                           (error_code))

namespace holdfast {

// The message of the error; empty if there is none.
template <typename T>
std::string message_of(const Result<T>& result) {
  return result.ok() ? "" : result.error().message();
}

// An expectation in the source of a test.
struct Expectation {
  const char* file;
  int line;
  const char* text;
  bool fatal = false;
};

inline void report_failure(const Expectation& expectation, const std::string& message) {
  const auto& [file, line, text, fatal] = expectation;
  if (fatal) GTEST_FAIL_AT(file, line) << text << message;
  ADD_FAILURE_AT(file, line) << text << message;
}

template <typename T>
bool expect_ok(const Expectation& expectation, const Result<T>& result) {
  if (!result.ok()) report_failure(expectation, ": " + result.error().message());
  return result.ok();
}

inline void expect_code(const Expectation& expectation, const Error& error,
                        ErrorCode code) {
  if (error.code() == code) return;
  report_failure(expectation,
                 fmt::format(" failed with {}; expected {}: {}", name_of(error.code()),
                             name_of(code), error.message()));
}

template <typename T>
void expect_error(const Expectation& expectation, const Result<T>& result,
                  ErrorCode code) {
  if (result.ok()) return report_failure(expectation, " succeeded");
  expect_code(expectation, result.error(), code);
}

// A new folder on the machine's disk. The destructor removes it and all that is in it.
class TempFolder {
 public:
  TempFolder() {
    std::string name = std::filesystem::temp_directory_path() / "holdfast-XXXXXX";
    HOLDFAST_CHECK(mkdtemp(name.data()) != nullptr, "{}: cannot create", name);
    path_ = name;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace holdfast
