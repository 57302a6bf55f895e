#include "holdfast/cli/text.h"

#include <gtest/gtest.h>

namespace holdfast {
namespace {

TEST(TextTest, BytesAndTimesHaveDecimalUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(999), "999 B");
  EXPECT_EQ(human_bytes(1000), "1.00 kB");
  EXPECT_EQ(human_bytes(45'134'000'000), "45.13 GB");
  EXPECT_EQ(human_time(563'860'000), "563.86 ms");
  EXPECT_EQ(human_time(7'200'000'000'000), "7200.00 s");
}

TEST(TextTest, CountsAreGroupedByThree) {
  EXPECT_EQ(human_count(7), "7");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(1'000), "1,000");
  EXPECT_EQ(human_count(1'234'567), "1,234,567");
}

TEST(TextTest, TablesAlignAndEndLinesWithoutSpaces) {
  Table table;
  table.add({"", "a"});
  table.add({"row", "1,000", "x"});
  EXPECT_EQ(table.text(), "         a\nrow  1,000  x\n");
}

}  // namespace
}  // namespace holdfast
