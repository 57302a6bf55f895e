#include "holdfast/state/number.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace holdfast {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(NumberTest, SmallFloatsHaveTheValuesOfTheirDefinitions) {
  EXPECT_EQ(to_double(Dtype::kF16, 0x3c00), 1.0);
  EXPECT_EQ(to_double(Dtype::kF16, 0x0001), std::ldexp(1.0, -24));
  EXPECT_EQ(to_double(Dtype::kF16, 0x7bff), 65504.0);
  EXPECT_EQ(to_double(Dtype::kF16, 0xfc00), -kInfinity);
  EXPECT_TRUE(std::isnan(to_double(Dtype::kF16, 0x7c01)));
  EXPECT_EQ(to_double(Dtype::kBf16, 0xc049), -3.140625);
  EXPECT_EQ(to_double(Dtype::kF8E4m3fn, 0x7e), 448.0);
  EXPECT_TRUE(std::isnan(to_double(Dtype::kF8E4m3fn, 0xff)));
  EXPECT_EQ(to_double(Dtype::kF8E4m3fn, 0x01), std::ldexp(1.0, -9));
  EXPECT_EQ(to_double(Dtype::kF8E5m2, 0x7b), 57344.0);
  EXPECT_EQ(to_double(Dtype::kF8E5m2, 0x7c), kInfinity);
  EXPECT_EQ(to_double(Dtype::kF8E4m3fnuz, 0x7f), 240.0);
  EXPECT_TRUE(std::isnan(to_double(Dtype::kF8E4m3fnuz, 0x80)));
  EXPECT_EQ(to_double(Dtype::kF8E5m2fnuz, 0x7f), 57344.0);
  EXPECT_EQ(to_double(Dtype::kF8E5m2fnuz, 0x81), -std::ldexp(1.0, -17));
  EXPECT_EQ(to_double(Dtype::kF8E8m0, 128), 2.0);
  EXPECT_TRUE(std::isnan(to_double(Dtype::kF8E8m0, 255)));
}

TEST(NumberTest, IntegersAreSignedOrNot) {
  EXPECT_EQ(to_double(Dtype::kI8, 0xff), -1.0);
  EXPECT_EQ(to_double(Dtype::kU8, 0xff), 255.0);
  EXPECT_EQ(to_double(Dtype::kI64, ~uint64_t{0}), -1.0);
  EXPECT_EQ(to_double(Dtype::kBool, 1), 1.0);
}

template <typename T>
Gap gap(Dtype dtype, const T& a, const T& b) {
  return gap_between(dtype, std::as_bytes(std::span(&a, 1)),
                     std::as_bytes(std::span(&b, 1)));
}

TEST(NumberTest, GapsAreAbsoluteAndRelativeToTheLarger) {
  EXPECT_EQ(gap(Dtype::kF32, 2.0f, -6.0f).absolute, 8);
  EXPECT_EQ(gap(Dtype::kF32, 2.0f, 2.5f).relative, 0.2);
  EXPECT_EQ(gap(Dtype::kF32, 0.0f, -0.0f).absolute, 0);
  EXPECT_EQ(gap(Dtype::kF32, 0.0f, -0.0f).relative, 0);
  const int64_t big = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(gap(Dtype::kI64, big, big - 1).absolute, 1);
  EXPECT_EQ(gap(Dtype::kI64, big, std::numeric_limits<int64_t>::min()).absolute,
            std::ldexp(1.0, 64));
  EXPECT_EQ(gap(Dtype::kU8, uint8_t{3}, uint8_t{4}).relative, 0.25);
  const std::pair<float, float> a{3, 4}, b{0, 0};
  EXPECT_EQ(gap(Dtype::kC64, a, b).absolute, 5);
  EXPECT_EQ(gap(Dtype::kC64, a, b).relative, 1);
}

TEST(NumberTest, NansAndInfinitiesAreFarFromAllElse) {
  const double nan = std::nan("");
  EXPECT_TRUE(std::isnan(gap(Dtype::kF64, nan, 1.0).absolute));
  EXPECT_TRUE(std::isnan(gap(Dtype::kF64, 1.0, nan).relative));
  EXPECT_EQ(gap(Dtype::kF64, kInfinity, 1.0).absolute, kInfinity);
  EXPECT_EQ(gap(Dtype::kF64, kInfinity, 1.0).relative, kInfinity);
  EXPECT_EQ(gap(Dtype::kF64, kInfinity, -kInfinity).absolute, kInfinity);
}

}  // namespace
}  // namespace holdfast
