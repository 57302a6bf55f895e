#include "holdfast/state/float_convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace holdfast {
namespace {

template <typename To, typename From>
To converted(Dtype from_dtype, From value, Dtype to_dtype) {
  To result{};
  convert_floats(from_dtype, std::as_bytes(std::span(&value, 1)), to_dtype,
                 std::as_writable_bytes(std::span(&result, 1)));
  return result;
}

uint16_t half_of(double value) {
  return converted<uint16_t>(Dtype::kF64, value, Dtype::kF16);
}

TEST(FloatConvert, EveryValueOf16BitsSurvivesTheWayThroughWiderTypes) {
  for (const Dtype narrow : {Dtype::kF16, Dtype::kBf16}) {
    for (const Dtype wide : {Dtype::kF32, Dtype::kF64}) {
      for (uint32_t bits = 0; bits < 0x10000; ++bits) {
        const auto from = static_cast<uint16_t>(bits);
        uint64_t between = 0;
        const auto bytes = std::as_writable_bytes(std::span(&between, 1))
                               .first(static_cast<size_t>(bytes_of(wide)));
        convert_floats(narrow, std::as_bytes(std::span(&from, 1)), wide, bytes);
        uint16_t back = 0;
        convert_floats(wide, bytes, narrow,
                       std::as_writable_bytes(std::span(&back, 1)));
        const bool nan = (bits & 0x7FFF) > (narrow == Dtype::kF16 ? 0x7C00 : 0x7F80);
        if (nan) continue;
        ASSERT_EQ(back, from) << name_of(narrow) << " " << bits;
      }
    }
  }
}

TEST(FloatConvert, RoundsToTheNearestAndToEven) {
  EXPECT_EQ(half_of(1.0), 0x3C00);
  EXPECT_EQ(half_of(1.0 + std::ldexp(1.0, -11)), 0x3C00);  // a tie goes to even
  EXPECT_EQ(half_of(1.0 + std::ldexp(3.0, -11)), 0x3C02);
  EXPECT_EQ(half_of(65504.0), 0x7BFF);
  EXPECT_EQ(half_of(65519.99), 0x7BFF);
  EXPECT_EQ(half_of(65520.0), 0x7C00);  // infinity
  EXPECT_EQ(half_of(std::ldexp(1.0, -25)), 0);
  EXPECT_EQ(half_of(std::ldexp(1.0, -25) * 1.0001), 1);
  EXPECT_EQ(half_of(-std::ldexp(1.0, -24)), 0x8001);
  EXPECT_EQ(converted<uint16_t>(Dtype::kF32, 1.00390625F, Dtype::kBf16), 0x3F80);
  EXPECT_EQ(converted<uint16_t>(Dtype::kF32, 1.01171875F, Dtype::kBf16), 0x3F82);
}

TEST(FloatConvert, RoundsOnceFromF64ToF16) {
  // Through F32 this would become a tie, and be rounded down.
  EXPECT_EQ(half_of(1.0 + std::ldexp(1.0, -11) + std::ldexp(1.0, -30)), 0x3C01);
  EXPECT_EQ(half_of(1e300), 0x7C00);
}

TEST(FloatConvert, ANanStaysANan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_GT(converted<uint16_t>(Dtype::kF32, nan, Dtype::kF16) & 0x7FFF, 0x7C00);
  EXPECT_GT(converted<uint16_t>(Dtype::kF32, nan, Dtype::kBf16) & 0x7FFF, 0x7F80);
  EXPECT_TRUE(std::isnan(converted<double>(Dtype::kF32, nan, Dtype::kF64)));
}

}  // namespace
}  // namespace holdfast
