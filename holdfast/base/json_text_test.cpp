#include "holdfast/base/json_text.h"

#include <bit>
#include <limits>
#include <random>

#include "holdfast/base/json.h"
#include "holdfast/base/testing.h"

namespace holdfast {
namespace {

std::string in_quotes(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

std::string written(double number) {
  std::string out;
  append_json_double(out, number);
  return out;
}

TEST(JsonTextTest, StringsReadBackAsTheyWere) {
  std::string all;
  for (int c = 0; c < 128; ++c) all += static_cast<char>(c);
  for (const std::string& text :
       {all, std::string(), std::string("é/日本\U0001f600")}) {
    const auto json = parse_json(in_quotes(text), "test");
    ASSERT_OK(json);
    EXPECT_EQ(json->get<std::string>(), text);
  }
}

TEST(JsonTextTest, DoublesReadBackWithTheSameBitsAndAreNoIntegers) {
  std::mt19937_64 bits(7);
  std::vector<double> numbers{0.0,
                              -0.0,
                              1,
                              -3,
                              0.1,
                              1e22,
                              1e300,
                              std::numeric_limits<double>::max(),
                              std::numeric_limits<double>::min(),
                              std::numeric_limits<double>::denorm_min()};
  while (numbers.size() < 10000) {
    const auto number = std::bit_cast<double>(bits());
    if (std::isfinite(number)) numbers.push_back(number);
  }
  for (const double number : numbers) {
    const auto json = parse_json(written(number), "test");
    ASSERT_OK(json);
    ASSERT_TRUE(json->is_number_float()) << written(number);
    EXPECT_EQ(std::bit_cast<uint64_t>(json->get<double>()),
              std::bit_cast<uint64_t>(number));
  }
}

TEST(JsonTextTest, IntegersReachBothEnds) {
  std::string out;
  append_json_integer(out, std::numeric_limits<int64_t>::min());
  out += ' ';
  append_json_integer(out, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(out, "-9223372036854775808 9223372036854775807");
}

// Random sequences of high bytes: is_utf8() must agree with the JSON parser.
TEST(JsonTextTest, WhatIsUtf8IsWhatTheParserTakes) {
  std::mt19937 dice(11);
  int good = 0;
  for (int i = 0; i < 60000; ++i) {
    std::string text;
    const int length = 1 + static_cast<int>(dice() % 4);
    for (int k = 0; k < length; ++k) text += static_cast<char>(128 + dice() % 128);
    if (i % 2 == 0) text[0] = static_cast<char>(0xe0 + dice() % 0x18);
    const bool taken = parse_json('"' + text + '"', "test").ok();
    EXPECT_EQ(is_utf8(text), taken) << in_quotes(text);
    good += taken;
  }
  EXPECT_GT(good, 100);
}

}  // namespace
}  // namespace holdfast
