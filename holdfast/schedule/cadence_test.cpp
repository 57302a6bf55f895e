#include "holdfast/schedule/cadence.h"

#include <cmath>

#include "holdfast/base/testing.h"

namespace holdfast {
namespace {

using namespace std::chrono_literals;

TEST(CadenceTest, WordsStepsAndTimesAreRead) {
  EXPECT_EQ(parse_cadence("auto").value(), Cadence(Policy::kAuto));
  EXPECT_EQ(parse_cadence(" coci ").value(), Cadence(Policy::kCoci));
  EXPECT_EQ(parse_cadence("500 steps").value(), Cadence(EverySteps{500}));
  EXPECT_EQ(parse_cadence("1 step").value(), Cadence(EverySteps{1}));
  EXPECT_EQ(parse_cadence("10m").value(), Cadence(EveryTime{10min}));
  EXPECT_EQ(parse_cadence("1.5 h").value(), Cadence(EveryTime{90min}));
}

TEST(CadenceTest, WhatIsNoCadenceIsRefused) {
  for (const char* text : {"", "500", "0 steps", "2.5 steps", "-1 steps", "0s", "inf s",
                           "nan", "1e300 d", "99999999999999999999 steps", "10 parsecs",
                           "steps", "10m 5s", "1e400s", "20y"}) {
    EXPECT_ERROR(parse_cadence(text), ErrorCode::kInvalid);
  }
}

TEST(CadenceTest, WhatIsWrittenIsReadAgain) {
  for (const char* text : {"auto", "young", "daly", "checkfreq", "coci", "1 step",
                           "500 steps", "10m", "36h", "2d", "0.25s", "90s", "never"}) {
    EXPECT_EQ(to_string(parse_cadence(text).value()), text);
  }
}

TEST(CadenceTest, SecondsHaveUnitsOrNone) {
  EXPECT_EQ(parse_seconds("90", "x").value(), 90);
  EXPECT_EQ(parse_seconds("8h", "x").value(), 28800);
  EXPECT_EQ(parse_seconds("0", "x").value(), 0);
  EXPECT_TRUE(std::isinf(parse_seconds("never", "x").value()));
  EXPECT_EQ(message_of(parse_seconds("-5", "--mtbf")),
            "--mtbf: \"-5\"; expected a time such as 90s, 10m, 8h or 2d");
}

}  // namespace
}  // namespace holdfast
