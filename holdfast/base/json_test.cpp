#include "holdfast/base/json.h"

#include <gtest/gtest.h>

#include <cmath>

#include "holdfast/base/json_place.h"
#include "holdfast/base/json_writer.h"
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

class JsonPlaceTest : public ::testing::Test {
 protected:
  template <typename T>
  std::string why(const char* key) {
    T value{};
    return message_of(root_.find(key)->read(value));
  }

  const JsonDocument document_ = *JsonDocument::parse(
      R"({"n":3,"t":"x","b":false,"l":[1,[]],"f":2.0,"z":null})", "m.json");
  const JsonPlace root_ = document_.root();
};

TEST_F(JsonPlaceTest, GivesEachKindByName) {
  EXPECT_EQ(root_.member_as<int64_t>("n"), 3);
  EXPECT_EQ(root_.member_as<std::string>("t"), "x");
  EXPECT_EQ(root_.member_as<bool>("b"), false);
  EXPECT_EQ(root_.member_as<double>("f"), 2.0);
  EXPECT_EQ(*root_.at("l")->length(), 2u);
  EXPECT_TRUE(root_.at("z")->is_null());
  EXPECT_EQ(root_.at("n")->kind(), JsonKind::kInteger);
  EXPECT_EQ(root_.at("f")->kind(), JsonKind::kFraction);
  EXPECT_EQ(root_.member_as<int64_t>("f"), std::nullopt);
  EXPECT_EQ(root_.member_as<int64_t>("m"), std::nullopt);
  EXPECT_FALSE(root_.at("n")->find("n").has_value());
}

TEST_F(JsonPlaceTest, NamesTheKeyThatIsMissingOrOfAnotherKind) {
  EXPECT_EQ(message_of(root_.at("m")), "m.json: no key \"m\"");
  EXPECT_EQ(why<int64_t>("t"), "m.json.t: \"x\"; expected an integer");
  EXPECT_EQ(why<std::string>("n"), "m.json.n: number; expected a string");
  EXPECT_EQ(why<bool>("n"), "m.json.n: number; expected true or false");
  EXPECT_EQ(message_of(root_.at("t")->length()), "m.json.t: string; expected an array");
  EXPECT_EQ(message_of(root_.at("t")->at("x")), "m.json.t: string; expected an object");
}

// The text again, in another style, with a member set.
std::string copied(std::string_view text, const TextMember& set = {}) {
  JsonWriter out({.indent = 2, .ascii = true});
  copy_json(out, text, set);
  return std::move(out).take();
}

TEST(CopiedJsonTest, IsTheDocumentInItsOrder) {
  const char* const text =
      R"({"z":[1,-2,[],{}],"a":{"b":null,"c":true},"u":18446744073709551615,"f":1e5,"s":"\u00e4"})";
  EXPECT_EQ(copied(text), nlohmann::ordered_json::parse(text).dump(2, ' ', true));
  for (const char* const one : {"3", "\"x\"", "[]", "{}", "[[1],{\"a\":[2]}]"}) {
    EXPECT_EQ(copied(one), nlohmann::ordered_json::parse(one).dump(2));
  }
}

TEST(CopiedJsonTest, AMemberIsSetInItsPlaceOrAtTheEnd) {
  for (const char* const value : {"1", "null", "[1,[2],{\"d\":3}]", "{\"d\":[{}],\"e\":4}"}) {
    const std::string text = fmt::format(R"({{"a":{{"d":5}},"d":{},"b":[6]}})", value);
    EXPECT_EQ(copied(text, {"d", "new"}), copied(R"({"a":{"d":5},"d":"new","b":[6]})"));
  }
  EXPECT_EQ(copied(R"({"a":1})", {"d", "new"}), copied(R"({"a":1,"d":"new"})"));
  EXPECT_EQ(copied("{}", {"d", "new"}), copied(R"({"d":"new"})"));
}

}  // namespace
}  // namespace holdfast
