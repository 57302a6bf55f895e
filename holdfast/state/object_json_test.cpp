#include "holdfast/state/object_json.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <limits>

#include "holdfast/base/testing.h"
#include "holdfast/state/layout_testing.h"

namespace holdfast {
namespace {

using tests::Dice;
using Dict = Object::Dict;
using List = Object::List;
using Tuple = Object::Tuple;

Object text(std::string value) { return Object(std::move(value)); }
Object integer(int64_t value) { return Object(value); }

Result<Object> decode(std::string_view json) {
  return decode_object(bytes_of(json), "objects.json");
}

void expect_text(const Object& object, std::string_view want) {
  const auto json = encode_object(object);
  ASSERT_OK(json);
  EXPECT_EQ(*json, want);
  const auto back = decode(*json);
  ASSERT_OK(back);
  EXPECT_TRUE(*back == object) << *json;
}

TEST(ObjectJsonTest, NaturalValuesAreNaturalJson) {
  expect_text(Object(), "null");
  expect_text(Object(true), "true");
  expect_text(integer(-3), "-3");
  expect_text(Object(3.0), "3.0");
  expect_text(Object(-0.0), "-0.0");
  expect_text(Object(1e300), "1e+300");
  expect_text(text("a\"b"), "\"a\\\"b\"");
  expect_text(Object(List{{integer(1), Object()}}), "[1,null]");
  expect_text(Object(Dict{{{text("z"), integer(1)}, {text("a"), Object(List{})}}}),
              "{\"z\":1,\"a\":[]}");
}

TEST(ObjectJsonTest, WhatJsonDoesNotKnowHasAMarker) {
  expect_text(Object(Tuple{{integer(1)}}), "{\"$tuple\":[1]}");
  expect_text(Object(Bytes{std::byte{0}, std::byte{255}}), "{\"$bytes\":\"00ff\"}");
  expect_text(Object(Object::TensorName{"w"}), "{\"$tensor\":\"w\"}");
  expect_text(Object(Object::BigInteger{"9223372036854775808"}),
              "{\"$int\":\"9223372036854775808\"}");
  expect_text(Object(Dict{{{integer(0), text("x")}}}), "{\"$dict\":[[0,\"x\"]]}");
  expect_text(Object(Dict{{{text("$tuple"), Object(List{})}}}),
              "{\"$dict\":[[\"$tuple\",[]]]}");
  expect_text(Object(Dict{{{Object(Tuple{{integer(1), text("a")}}), Object()}}}),
              "{\"$dict\":[[{\"$tuple\":[1,\"a\"]},null]]}");
}

TEST(ObjectJsonTest, EveryNotANumberKeepsItsBits) {
  expect_text(Object(std::numeric_limits<double>::infinity()), "{\"$float\":\"inf\"}");
  expect_text(Object(-std::numeric_limits<double>::infinity()),
              "{\"$float\":\"-inf\"}");
  expect_text(Object(std::bit_cast<double>(uint64_t{0x7ff8000000000000})),
              "{\"$float\":\"nan\"}");
  expect_text(Object(std::bit_cast<double>(uint64_t{0xfff0000000000001})),
              "{\"$float\":\"fff0000000000001\"}");
}

TEST(ObjectJsonTest, KeysThatPythonTellsApartStayApart) {
  const Object dict(Dict{{{integer(1), text("int")}, {text("1"), text("str")}}});
  expect_text(dict, "{\"$dict\":[[1,\"int\"],[\"1\",\"str\"]]}");
}

TEST(ObjectJsonTest, TextThatIsNotUtf8IsRefusedWithItsPlace) {
  const Object object(
      Dict{{{text("groups"),
             Object(List{{Object(Dict{{{text("name"), text("\xff")}}})}})}}});
  const auto json = encode_object(object);
  EXPECT_ERROR(json, ErrorCode::kInvalid);
  EXPECT_EQ(message_of(json), "object.groups[0].name: text of 1 bytes is not UTF-8");
}

TEST(ObjectJsonTest, WhatIsNoObjectIsNotWritten) {
  EXPECT_ERROR(encode_object(Object(Object::BigInteger{"12"})), ErrorCode::kInvalid);
  EXPECT_ERROR(encode_object(Object(Object::BigInteger{"-09223372036854775809"})),
               ErrorCode::kInvalid);
  EXPECT_ERROR(encode_object(Object(Dict{{{text("a"), {}}, {text("a"), {}}}})),
               ErrorCode::kInvalid);
  EXPECT_ERROR(encode_object(Object(Dict{{{integer(1), {}}, {integer(1), {}}}})),
               ErrorCode::kInvalid);
  EXPECT_ERROR(encode_object(Object(Dict{{{Object(List{}), {}}}})),
               ErrorCode::kInvalid);
}

template <typename Container>
Object nested(int levels) {
  Object object;
  for (int i = 0; i < levels; ++i) {
    if constexpr (std::is_same_v<Container, Dict>) {
      object = Object(Dict{{{integer(1), std::move(object)}}});
    } else {
      object = Object(Container{{std::move(object)}});
    }
  }
  return object;
}

TEST(ObjectJsonTest, OneHundredLevelsAreReadAndOneMoreIsNot) {
  for (const auto& nest : {nested<List>, nested<Tuple>, nested<Dict>}) {
    const auto deep = encode_object(nest(kMaxObjectDepth));
    ASSERT_OK(deep);
    EXPECT_OK(decode(*deep));
    EXPECT_ERROR(encode_object(nest(kMaxObjectDepth + 1)), ErrorCode::kInvalid);
    EXPECT_ERROR(decode("[" + *deep + "]"), ErrorCode::kCorrupt);
  }
  EXPECT_ERROR(decode(std::string(100000, '[')), ErrorCode::kCorrupt);
}

TEST(ObjectJsonTest, WhatIsNoTreeIsCorruptAndSaysWhere) {
  for (const std::string_view json : {"",
                                      "{",
                                      "[1,]",
                                      "nul",
                                      "1 2",
                                      "{\"$what\":1}",
                                      "{\"$tuple\":\"x\"}",
                                      "{\"$tuple\":[],\"a\":1}",
                                      "{\"$bytes\":\"0g\"}",
                                      "{\"$bytes\":1}",
                                      "{\"$int\":\"5\"}",
                                      "{\"$int\":\"99999999999999999999x\"}",
                                      "{\"$float\":\"1.5\"}",
                                      "{\"$float\":\"3ff0000000000000\"}",
                                      "{\"$float\":\"7ff8000000000000\"}",
                                      "{\"$dict\":[]}",
                                      "{\"$dict\":[[1]]}",
                                      "{\"$dict\":[[\"a\",1]]}",
                                      "{\"$dict\":[[[],1]]}",
                                      "{\"$dict\":[[1,1],[1,2]]}",
                                      "{\"a\":1,\"a\":2}",
                                      "9223372036854775808",
                                      "-9223372036854775809",
                                      "123456789012345678901234567890",
                                      "1e999",
                                      "\"\xff\""}) {
    const auto read = decode(json);
    EXPECT_ERROR(read, ErrorCode::kCorrupt);
    EXPECT_EQ(message_of(read).find("objects.json: "), 0U) << json;
  }
  EXPECT_ERROR(decode(std::string_view("1\0", 2)), ErrorCode::kCorrupt);
}

std::string random_text(Dice& dice) {
  static const std::vector<std::string> kParts{"a", "$", "é", "\"", "\n", "日", "."};
  std::string made;
  for (int64_t i = dice.below(4); i > 0; --i) {
    made +=
        kParts[static_cast<size_t>(dice.below(static_cast<int64_t>(kParts.size())))];
  }
  return made;
}

Object random_leaf(Dice& dice) {
  const auto bits = static_cast<uint64_t>(dice.below(INT64_MAX)) * 3;
  switch (dice.below(8)) {
    case 0: return {};
    case 1: return Object(dice.below(2) == 0);
    case 2: return Object(std::bit_cast<int64_t>(bits));
    case 3: return Object(std::bit_cast<double>(bits));
    case 4: return Object(std::bit_cast<double>(bits | 0x7ff0000000000000));
    case 5: return Object(Object::BigInteger{"-123456789012345678901234567890"});
    case 6: return Object(Object::TensorName{random_text(dice)});
    default: return Object(random_text(dice));
  }
}

Object random_object(Dice& dice, int levels) {
  const int64_t kind = levels == 0 ? 9 : dice.below(10);
  if (kind > 3) return random_leaf(dice);
  std::vector<Object> items;
  for (int64_t i = dice.below(5); i > 0; --i) {
    items.push_back(random_object(dice, levels - 1));
  }
  if (kind == 0) return Object(List{std::move(items)});
  if (kind == 1) return Object(Tuple{std::move(items)});
  Dict dict;
  for (size_t i = 0; i < items.size(); ++i) {
    Object key = kind == 2 ? text(random_text(dice) + std::to_string(i))
                           : Object(Tuple{{random_leaf(dice), Object(int64_t(i))}});
    dict.items.emplace_back(std::move(key), std::move(items[i]));
  }
  return Object(std::move(dict));
}

RC_GTEST_PROP(ObjectJsonTest, AnyObjectReadsBackAsItWas, (uint64_t seed)) {
  Dice dice(seed);
  const Object object = random_object(dice, 6);
  const auto json = encode_object(object);
  RC_ASSERT(json.ok());
  const auto back = decode(*json);
  RC_ASSERT(back.ok());
  RC_ASSERT(*back == object);
  RC_ASSERT(*encode_object(*back) == *json);
}

}  // namespace
}  // namespace holdfast
