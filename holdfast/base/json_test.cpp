#include "holdfast/base/json.h"

#include <gtest/gtest.h>

#include <cmath>

#include "holdfast/base/testing.h"

namespace holdfast {
namespace {

using namespace std::string_literals;

std::string nested(size_t levels) {
  return std::string(levels, '[') + std::string(levels, ']');
}

std::string why(std::string_view text) {
  return message_of(parse_json(text, "a.json"));
}

TEST(JsonTest, ReadsEveryKindOfValue) {
  const Json json = *parse_json(
      R"({"null":null,"yes":true,"int":-3,"float":0.5,"text":"a\u00e4","list":[1,[]]})",
      "a.json");
  EXPECT_TRUE(json["null"].is_null());
  EXPECT_EQ(json["yes"], true);
  EXPECT_EQ(json["int"], -3);
  EXPECT_EQ(json["float"], 0.5);
  EXPECT_EQ(json["text"], "a\xc3\xa4");
  EXPECT_EQ(json["list"], Json::parse("[1,[]]"));
}

TEST(JsonTest, RefusesDuplicateKeysAtAnyLevelHoweverTheyAreSpelled) {
  EXPECT_EQ(why(R"({"a":1,"a":1})"), R"(a.json: duplicate key "a")");
  EXPECT_EQ(why(R"({"x":[{"b":1,"c":2,"b":3}]})"), R"(a.json: duplicate key "b")");
  EXPECT_EQ(why(R"({"a":1,"\u0061":2})"), R"(a.json: duplicate key "a")");
  EXPECT_EQ(why(R"({"a":{"a":{"a":1}}})"), "");
}

TEST(JsonTest, SixtyFourLevelsAreReadAndSixtyFiveRefused) {
  EXPECT_EQ(why(nested(64)), "");
  EXPECT_EQ(why(nested(65)), "a.json: more than 64 levels deep");
}

TEST(JsonTest, AMillionLevelsAreRefusedLikeAnyOther) {
  EXPECT_EQ(why(nested(1'000'000)), "a.json: more than 64 levels deep");
  EXPECT_EQ(why(std::string(1'000'000, '[')), "a.json: more than 64 levels deep");
  std::string objects;
  for (int i = 0; i < 1'000'000; ++i) objects += "{\"a\":";
  EXPECT_EQ(why(objects), "a.json: more than 64 levels deep");
}

TEST(JsonTest, RefusesWhatFollowsTheValue) {
  EXPECT_EQ(why("{} \n\t"), "");
  EXPECT_EQ(why("{}x"), "a.json: not JSON at byte 3");
  EXPECT_EQ(why("{}{}"), "a.json: not JSON at byte 3");
  EXPECT_EQ(why("{}\0"s), "a.json: not JSON at byte 3");
  EXPECT_EQ(why("{}\0garbage"s), "a.json: not JSON at byte 3");
}

TEST(JsonTest, RefusesWhatIsCutOffOrEmpty) {
  const std::string whole = R"({"a":[1,true,"x"]})";
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_ERROR(parse_json(whole.substr(0, n), "a.json"), ErrorCode::kInvalid);
  }
  EXPECT_OK(parse_json(whole, "a.json"));
}

TEST(JsonTest, RefusesTextThatIsNotUtf8) {
  for (const char* bad : {"\"\xff\"", "\"\xc3\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"",
                          "\"\xf4\x90\x80\x80\"", "{\"\x80\":1}"}) {
    EXPECT_ERROR(parse_json(bad, "a.json"), ErrorCode::kInvalid);
  }
  EXPECT_ERROR(parse_json(R"("\ud800")", "a.json"), ErrorCode::kInvalid);
}

TEST(JsonTest, IntegersAreExactUpToTheLastThatFits) {
  const Json json = *parse_json("[9223372036854775807,-9223372036854775808]", "a");
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  EXPECT_EQ(*json_integer(json[0], "a"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(*json_integer(json[1], "a", kLeast), kLeast);
}

TEST(JsonTest, IntegersThatDoNotFitAreRefusedNotRounded) {
  for (const char* text :
       {"9223372036854775808", "18446744073709551615", "18446744073709551616",
        "-9223372036854775809", "1e3", "1.0", "\"7\"", "true", "null", "[7]"}) {
    const Json json = *parse_json(text, "a");
    EXPECT_ERROR(json_integer(json, "a", std::numeric_limits<int64_t>::min()),
                 ErrorCode::kInvalid);
  }
  EXPECT_ERROR(parse_json("1e999", "a"), ErrorCode::kInvalid);
}

TEST(JsonTest, IntegersOutsideTheBoundsAreRefusedWithTheBounds) {
  EXPECT_EQ(message_of(json_integer(Json(5), "a.rank", 0, 4)),
            "a.rank: 5; expected 0 to 4");
  EXPECT_EQ(*json_integer(Json(4), "a.rank", 0, 4), 4);
  EXPECT_ERROR(json_integer(Json(-1), "a.rank"), ErrorCode::kInvalid);
}

TEST(JsonTest, MessagesStayShortAndPrintableForHostileValues) {
  const std::string hostile = "\x1b[31m" + std::string(100'000, 'x') + "\xff";
  const std::string message = message_of(json_integer(Json(hostile), "a"));
  EXPECT_LT(message.size(), 200u);
  EXPECT_EQ(message.find('\x1b'), message.npos);
}

class FieldsTest : public ::testing::Test {
 protected:
  const Json json_ = *parse_json(R"({"n":3,"t":"x","b":false,"l":[1]})", "m.json");
  Fields fields_ = *Fields::of(json_, "m.json");
};

TEST_F(FieldsTest, GivesEachKindByName) {
  EXPECT_EQ(*fields_.integer("n"), 3);
  EXPECT_EQ(*fields_.text("t"), "x");
  EXPECT_EQ(*fields_.boolean("b"), false);
  EXPECT_EQ((*fields_.array("l"))->size(), 1u);
  EXPECT_OK(fields_.done());
}

TEST_F(FieldsTest, NamesTheKeyThatIsMissingOrOfAnotherKind) {
  EXPECT_EQ(message_of(fields_.integer("m")), "m.json: no key \"m\"");
  EXPECT_EQ(message_of(fields_.integer("t")), "m.json.t: \"x\"; expected an integer");
  EXPECT_EQ(message_of(fields_.text("n")), "m.json.n: number; expected a string");
  EXPECT_EQ(message_of(fields_.boolean("n")),
            "m.json.n: number; expected true or false");
  EXPECT_EQ(message_of(fields_.array("t")), "m.json.t: string; expected an array");
  EXPECT_EQ(message_of(Fields::of(Json(1), "m")), "m: number; expected an object");
}

TEST_F(FieldsTest, DoneRefusesAKeyThatNobodyAskedFor) {
  ASSERT_OK(fields_.integer("n"));
  ASSERT_OK(fields_.text("t"));
  ASSERT_OK(fields_.boolean("b"));
  EXPECT_EQ(message_of(fields_.done()), "m.json: unknown key \"l\"");
}

}  // namespace
}  // namespace holdfast
