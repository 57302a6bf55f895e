#include "holdfast/base/number_text.h"

#include <gtest/gtest.h>

namespace holdfast {
namespace {

TEST(NumberTextTest, ANumberIsTheWholeText) {
  EXPECT_EQ(number_in<int64_t>("-12"), -12);
  EXPECT_EQ(number_in<uint64_t>("ff", 16), 255u);
  EXPECT_EQ(number_in<double>("1e-3"), 0.001);
  for (const char* text : {"", " 1", "1 ", "+1", "1.5", "x", "9223372036854775808"}) {
    EXPECT_EQ(number_in<int64_t>(text), std::nullopt) << text;
  }
  EXPECT_EQ(number_in<uint16_t>("65536"), std::nullopt);
  EXPECT_EQ(count_in("7"), 7);
  EXPECT_EQ(count_in("-7"), std::nullopt);
}

TEST(NumberTextTest, ANumberIsTakenOffTheFront) {
  std::string_view text = "12 34";
  EXPECT_EQ(take_number<int64_t>(text), 12);
  EXPECT_EQ(text, " 34");
  EXPECT_EQ(take_number<int64_t>(text), std::nullopt);
  EXPECT_EQ(text, " 34");
}

}  // namespace
}  // namespace holdfast
