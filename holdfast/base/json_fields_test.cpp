#include "holdfast/base/json_fields.h"

#include <gtest/gtest.h>

#include <cmath>

#include "holdfast/base/testing.h"

namespace holdfast {
namespace {

struct Part {
  std::string name{};
  std::vector<int64_t> sizes{};

  static void fields(auto& self, auto&& field) {
    field("name", self.name);
    field("sizes", self.sizes);
  }
  friend bool operator==(const Part&, const Part&) = default;
};

struct Whole {
  int64_t count = 1;
  int width = 2;
  double share = 0.5;
  bool good = true;
  std::optional<int64_t> most{};
  std::string note{};
  std::map<std::string, double> metrics{};
  std::map<int64_t, int64_t> steps{};
  std::vector<Part> parts{};

  static void fields(auto& self, auto&& field) {
    field.kind("whole");
    field.version(2);
    field("count", self.count);
    field.integer("width", self.width, 1, 9);
    field.line();
    field("share", self.share);
    field("good", self.good);
    field("most", self.most);
    field.optional("note", self.note);
    field.derived("twice", 2 * self.count);
    field("metrics", self.metrics);
    field.maybe("steps", self.steps);
    field.line();
    field("parts", self.parts);
    field.check([&]() -> Result<void> {
      if (self.count != 13) return {};
      return invalid("count: 13 is unlucky");
    });
  }
  friend bool operator==(const Whole&, const Whole&) = default;
};

Whole example() {
  return {.count = 3,
          .width = 4,
          .share = 1e-7,
          .most = 7,
          .note = "a \"b\"\n\xc3\xa4",
          .metrics = {{"loss", INFINITY}, {"acc", 1}},
          .steps = {{1, 2}, {3, 4}},
          .parts = {{"p", {1, 2}}, {"q", {}}}};
}

struct Row {
  std::string name{};
  int64_t size = 0;

  static void fields(auto& self, auto&& field) {
    field("name", self.name);
    field("size", self.size);
  }
};

}  // namespace

template <>
inline constexpr bool kRow<Row> = true;

namespace {

TEST(JsonFieldsTest, ARowIsAnArrayAndItsDefectsAreNamedByKeys) {
  const std::vector<Row> rows{{"a", 1}, {"b", 2}};
  EXPECT_EQ(to_json_text(rows, kCompactJson), R"([["a",1],["b",2]])");
  const auto why_not = [](std::string_view text) {
    return message_of(from_json<std::vector<Row>>(text, "r"));
  };
  EXPECT_EQ(why_not(R"([["a",1],["b",2]])"), "");
  EXPECT_EQ(why_not(R"([["a",1],["b",-2]])"),
            "r[1].size: -2; expected 0 to 9223372036854775807");
  EXPECT_EQ(why_not(R"([["a"]])"), "r[0]: 1 values; expected size at place 1");
  EXPECT_EQ(why_not(R"([["a",1,2]])"), "r[0]: 3 values; expected 2");
  EXPECT_EQ(why_not(R"([{"a":1}])"), "r[0]: object; expected an array");
}

TEST(JsonFieldsTest, WhatIsWrittenIsReadBackInEveryStyle) {
  for (const JsonStyle style : {kCompactJson, kDigestedJson, JsonStyle{.indent = 2},
                                JsonStyle{.indent = 1, .ascii = true}}) {
    const std::string text = to_json_text(example(), style);
    const auto read = from_json<Whole>(text, "w.json");
    ASSERT_OK(read);
    EXPECT_EQ(*read, example()) << text;
    EXPECT_EQ(to_json_text(*read, style), text);
  }
}

TEST(JsonFieldsTest, ADigestedDocumentHasALineForEachEntry) {
  Whole whole = example();
  whole.note.clear();
  EXPECT_EQ(to_json_text(whole, kDigestedJson),
            "{\"holdfast\":\"whole\",\"version\":2,\"count\":3,\"width\":4,\n"
            "\"share\":1e-07,\"good\":true,\"most\":7,\"twice\":6,"
            "\"metrics\":{\"acc\":1.0,\"loss\":\"inf\"},\"steps\":[[1,2],[3,4]],\n"
            "\"parts\":[\n{\"name\":\"p\",\"sizes\":[1,2]},\n"
            "{\"name\":\"q\",\"sizes\":[]}]}");
}

TEST(JsonFieldsTest, AnIndentedDocumentLooksLikeThatOfTheJsonLibrary) {
  EXPECT_EQ(to_json_text(example().parts, {.indent = 1}),
            "[\n {\n  \"name\": \"p\",\n  \"sizes\": [\n   1,\n   2\n  ]\n },\n"
            " {\n  \"name\": \"q\",\n  \"sizes\": []\n }\n]");
  const std::string text = "\xc3\xa4\x01\xff\t";
  EXPECT_EQ(to_json_text(text, {.ascii = true}), R"("\u00e4\u0001\ufffd\t")");
  EXPECT_EQ(to_json_text(text, kCompactJson), "\"\xc3\xa4\\u0001\xef\xbf\xbd\\t\"");
  EXPECT_EQ(to_json_text(100000.0, kCompactJson), "100000.0");
}

std::string why(const std::string& from, const std::string& to) {
  std::string text = to_json_text(example(), kCompactJson);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  return message_of(from_json<Whole>(text, "w.json"));
}

TEST(JsonFieldsTest, EveryDefectIsNamedWithItsPlace) {
  EXPECT_EQ(why("\"count\":3,", ""), "w.json: no key \"count\"");
  EXPECT_EQ(why("\"count\":3", "\"count\":3,\"more\":1"), "w.json: unknown key \"more\"");
  EXPECT_EQ(why("\"count\":3", "\"count\":-3"),
            "w.json.count: -3; expected 0 to 9223372036854775807");
  EXPECT_EQ(why("\"count\":3", "\"count\":13"), "w.json: count: 13 is unlucky");
  EXPECT_EQ(why("\"width\":4", "\"width\":10"), "w.json.width: 10; expected 1 to 9");
  EXPECT_EQ(why("\"whole\"", "\"half\""),
            "w.json: holds a \"half\"; expected a \"whole\"");
  EXPECT_EQ(why("\"good\":true", "\"good\":1"),
            "w.json.good: number; expected true or false");
  EXPECT_EQ(why("\"name\":\"q\"", "\"name\":[1]"),
            "w.json: parts[1].name: array of 1; expected a string");
  EXPECT_EQ(why("[1,2]},", "[1,-2]},"),
            "w.json: parts[0].sizes: -2; expected 0 to 9223372036854775807");
  EXPECT_EQ(why("[3,4]", "[3]"), "w.json: steps[1]: array of 1; expected a pair");
  EXPECT_EQ(why("\"inf\"", "\"low\""),
            "w.json.metrics.loss: string; expected a number, nan, inf or -inf");
  EXPECT_EQ(message_of(from_json<Whole>("[]", "w.json")),
            "w.json: array of 0; expected an object");
}

TEST(JsonFieldsTest, ANewerVersionIsUnsupportedAndOtherFailuresHaveTheCallersCode) {
  std::string text = to_json_text(example(), kCompactJson);
  text.replace(text.find(":2"), 2, ":3");
  const auto newer = from_json<Whole>(text, "w.json", ErrorCode::kCorrupt);
  EXPECT_ERROR(newer, ErrorCode::kUnsupported);
  EXPECT_EQ(message_of(newer), "w.json: version 3; expected 1 to 2");
  EXPECT_ERROR(from_json<Whole>("{}", "w.json", ErrorCode::kCorrupt), ErrorCode::kCorrupt);
  EXPECT_ERROR(from_json<Whole>("{", "w.json", ErrorCode::kCorrupt), ErrorCode::kCorrupt);
}

TEST(JsonFieldsTest, KeysAndPlacesThatMayBeMissingKeepTheirValue) {
  EXPECT_EQ(why(",\"steps\":[[1,2],[3,4]]", ""), "");
  EXPECT_EQ(why(",\"twice\":6", ""), "");
  EXPECT_EQ(why("\"most\":7", "\"most\":null"), "");
}

}  // namespace
}  // namespace holdfast
