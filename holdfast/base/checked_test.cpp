#include "holdfast/base/checked.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace holdfast {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

TEST(CheckedTest, ResultsThatFitAreExact) {
  EXPECT_EQ(checked_add(kMax - 1, int64_t{1}), kMax);
  EXPECT_EQ(checked_mul(int64_t{1} << 31, int64_t{1} << 31), int64_t{1} << 62);
  EXPECT_EQ(checked_mul(uint64_t{1} << 32, uint64_t{0}), 0u);
}

TEST(CheckedTest, ResultsThatDoNotFitAreNothing) {
  EXPECT_EQ(checked_add(kMax, int64_t{1}), std::nullopt);
  EXPECT_EQ(checked_add(kMin, int64_t{-1}), std::nullopt);
  EXPECT_EQ(checked_mul(int64_t{1} << 32, int64_t{1} << 31), std::nullopt);
  EXPECT_EQ(checked_mul(kMin, int64_t{-1}), std::nullopt);
}

TEST(CheckedTest, NarrowTypesAreCheckedInTheirOwnWidth) {
  EXPECT_EQ(checked_add(uint8_t{200}, uint8_t{55}), uint8_t{255});
  EXPECT_EQ(checked_add(uint8_t{200}, uint8_t{56}), std::nullopt);
}

TEST(CheckedTest, DivideUpRoundsUpWithoutOverflow) {
  EXPECT_EQ(divide_up(0, 4), 0);
  EXPECT_EQ(divide_up(8, 4), 2);
  EXPECT_EQ(divide_up(9, 4), 3);
  EXPECT_EQ(divide_up(kMax, int64_t{2}), kMax / 2 + 1);
}

}  // namespace
}  // namespace holdfast
