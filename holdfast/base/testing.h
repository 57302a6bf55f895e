// Macros and helpers that the tests of all parts share. Only for *_test.cpp.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "holdfast/base/result.h"

// Expects a Result without error. On failure the error's message is shown.
#define EXPECT_OK(expression)                                            \
  do {                                                                   \
    const auto& holdfast_seen = (expression);                            \
    EXPECT_TRUE(holdfast_seen.ok())                                      \
        << #expression << ": " << ::holdfast::message_of(holdfast_seen); \
  } while (false)

#define ASSERT_OK(expression)                                            \
  do {                                                                   \
    const auto& holdfast_seen = (expression);                            \
    ASSERT_TRUE(holdfast_seen.ok())                                      \
        << #expression << ": " << ::holdfast::message_of(holdfast_seen); \
  } while (false)

// Expects a Result that is an error of this code.
#define EXPECT_ERROR(expression, error_code)                         \
  do {                                                               \
    const auto& holdfast_seen = (expression);                        \
    EXPECT_FALSE(holdfast_seen.ok()) << #expression << " succeeded"; \
    if (!holdfast_seen.ok()) {                                       \
      EXPECT_EQ(::holdfast::name_of(holdfast_seen.error().code()),   \
                ::holdfast::name_of(error_code))                     \
          << holdfast_seen.error().message();                        \
    }                                                                \
  } while (false)

namespace holdfast {

// The message of the error; empty if there is none.
template <typename T>
std::string message_of(const Result<T>& result) {
  return result.ok() ? "" : result.error().message();
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
