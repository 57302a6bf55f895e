#include "holdfast/cli/text.h"

#include <gtest/gtest.h>

#include <cmath>

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

TEST(TextTest, WhatRoundsToNothingHasNoMinus) {
  EXPECT_EQ(signed_tenths(-0.0), "+0.0");
  EXPECT_EQ(signed_tenths(-0.04), "+0.0");
  EXPECT_EQ(signed_tenths(-0.06), "-0.1");
  EXPECT_EQ(signed_tenths(25.64), "+25.6");
}

TEST(TextTest, TablesAlignAndEndLinesWithoutSpaces) {
  Table table;
  table.add({"", "a"});
  table.add({"row", "1,000", "x"});
  EXPECT_EQ(table.text(), "         a\nrow  1,000  x\n");
}

TEST(TextTest, TablesCountCharactersAndNotBytesOrColours) {
  Table table("lrl");
  table.add({"\u00e9", paint("x", Colour::kRed, true), "a"});
  table.add({"ab", "yy", "b"});
  EXPECT_EQ(table.text(), "\u00e9    \033[31mx\033[0m  a\nab  yy  b\n");
}

TEST(TextTest, TimesAreShort) {
  using namespace std::chrono_literals;
  EXPECT_EQ(human_clock(7), "0:07");
  EXPECT_EQ(human_clock(3 * 3600 + 25 * 60), "3:25:00");
  EXPECT_EQ(human_age(-5s), "0 s");
  EXPECT_EQ(human_age(119s), "119 s");
  EXPECT_EQ(human_age(5min), "5 min");
  EXPECT_EQ(human_age(50h), "2 d");
  EXPECT_EQ(human_date(WallTime(1'000'000'000s)), "2001-09-09 01:46:40Z");
}

TEST(TextTest, WhatATerminalObeysIsShownInstead) {
  EXPECT_EQ(printable("model.fc \u00e9\u4e2d"), "model.fc \u00e9\u4e2d");
  EXPECT_EQ(printable("a\033[2Jb\n\x7f"), "a\\x1b[2Jb\\x0a\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\x9b31m");  // the 8-bit escape, as UTF-8
  EXPECT_EQ(printable("\x9b\xff"), "\\x9b\\xff");
  EXPECT_EQ(printable("\u202etxt.\u2066"), "\\u202etxt.\\u2066");
}

TEST(TextTest, FiguresAndTimesOfSchedules) {
  EXPECT_EQ(human_figure(18034.2), "18,034");
  EXPECT_EQ(human_figure(421.72), "421.7");
  EXPECT_EQ(human_figure(0.015678), "0.01568");
  EXPECT_EQ(human_seconds(0.2), "200 ms");
  EXPECT_EQ(human_seconds(264), "4.4 min");
  EXPECT_EQ(human_seconds(INFINITY), "never");
  EXPECT_EQ(human_work_clock(52.7, false), "0:53");
  EXPECT_EQ(human_work_clock(3730, false), "1:02:10");
  EXPECT_EQ(human_work_clock(59.97, true), "1:00.0");
}

}  // namespace
}  // namespace holdfast
