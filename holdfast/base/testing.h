// Words that the tests of all parts share. Only for *_test.cpp.
#pragma once

#include <gtest/gtest.h>

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

}  // namespace holdfast
