#include "holdfast/base/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "holdfast/base/testing.h"

namespace holdfast {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return invalid("half: {}; expected an even number", n);
  return n / 2;
}

Result<int> quarter(int n) { return half(HOLDFAST_TRY(half(n))); }

Result<void> check_even(int n) {
  HOLDFAST_TRY(half(n));
  return {};
}

Result<std::unique_ptr<int>> boxed(int n) {
  return std::make_unique<int>(HOLDFAST_TRY(half(n)));
}

TEST(ResultTest, TryGivesTheValueOrReturnsTheError) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_ERROR(quarter(6), ErrorCode::kInvalid);
  EXPECT_EQ(quarter(6).error().message(), "half: 3; expected an even number");
  EXPECT_OK(check_even(2));
  EXPECT_ERROR(check_even(3), ErrorCode::kInvalid);
}

TEST(ResultTest, MoveOnlyValuesPassThrough) {
  const auto unwrap = [](int n) -> Result<int> {
    const std::unique_ptr<int> box = HOLDFAST_TRY(boxed(n));
    return *box;
  };
  EXPECT_EQ(*unwrap(10), 5);
  EXPECT_ERROR(unwrap(11), ErrorCode::kInvalid);
}

TEST(ResultTest, AValueOutlivesTheResultItWasTakenFrom) {
  const auto names = []() -> Result<std::vector<std::string>> {
    return std::vector<std::string>(3, std::string(100, 'x'));
  };
  size_t total = 0;
  for (const std::string& name : names().value()) total += name.size();
  for (const std::string& name : *names()) total += name.size();
  EXPECT_EQ(total, 600u);
}

TEST(ResultTest, WithinPutsContextInFrontOfErrorsOnly) {
  EXPECT_EQ(half(3).within("restore step 400").error().message(),
            "restore step 400: half: 3; expected an even number");
  EXPECT_EQ(*half(4).within("restore step 400"), 2);
  EXPECT_EQ(check_even(1).within("a").within("b").error().message(),
            "b: a: half: 1; expected an even number");
}

TEST(ResultTest, EveryCodeHasItsOwnName) {
  EXPECT_EQ(name_of(ErrorCode::kNotFound), "not_found");
  EXPECT_EQ(name_of(timed_out("x").code()), "timeout");
  EXPECT_EQ(name_of(io_error("x").code()), "io");
  EXPECT_EQ(name_of(no_space("x").code()), "no_space");
}

TEST(ResultDeathTest, ReadingWhatIsNotThereAborts) {
  EXPECT_DEATH((void)half(3).value(), "value of a failed result: half: 3");
  EXPECT_DEATH((void)half(4).error(), "error of a good result");
  EXPECT_DEATH(check_even(3).value(), "value of a failed result");
}

TEST(CheckDeathTest, ABrokenContractAbortsWithItsSentence) {
  const int seen = 7;
  EXPECT_DEATH(HOLDFAST_CHECK(seen < 3, "{} boxes; expected 3", seen),
               "bug: 7 boxes; expected 3 .*seen < 3");
}

TEST(ResultTest, AnErrorKeepsItsMessageAsAnotherCode) {
  const Error error = invalid("a: not JSON").as(ErrorCode::kCorrupt);
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_EQ(error.message(), "a: not JSON");
}

}  // namespace
}  // namespace holdfast
