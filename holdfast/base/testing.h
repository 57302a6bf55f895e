// Words that the tests of all parts share. Only for *_test.cpp.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "holdfast/base/result.h"

// The Result is good; if not, the error is shown.
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

// The Result is an error of this code.
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

// Empty for a good result.
template <typename T>
std::string message_of(const Result<T>& result) {
  return result.ok() ? "" : result.error().message();
}

// A new folder of the machine, gone with all in it at the end.
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
