#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "holdfast/base/testing.h"
#include "holdfast/archive/pickle_internal.h"
#include "holdfast/archive/pickle_reader.h"
#include "holdfast/archive/pickle_writer.h"

namespace holdfast {
namespace {

using testing::HasSubstr;

bool allow_few(std::string_view name) {
  return name == "collections.OrderedDict" || name == "_codecs.encode" ||
         name == "builtins.set" || name == "builtins.int";
}

Result<Pickle> read(std::string_view program) {
  return read_pickle(bytes_of(program), {.where = "p", .allow_global = allow_few});
}

// The value of a pickle, given without the opcode at its end.
PickleNode value(std::string_view program) {
  const auto read_all = read(std::string(program) + ".");
  HOLDFAST_CHECK(read_all.ok(), "{}", read_all.error().message());
  return (*read_all)[read_all->root];
}

template <typename T>
T value_as(std::string_view program) {
  const PickleNode node = value(program);
  const T* found = node.as<T>();
  HOLDFAST_CHECK(found != nullptr, "another kind");
  return *found;
}

using namespace std::string_view_literals;

TEST(PickleReaderTest, ReadsNumbersOfEveryNotation) {
  EXPECT_EQ(value_as<int64_t>("K\xff"), 255);
  EXPECT_EQ(value_as<int64_t>("M\xff\xff"), 65535);
  EXPECT_EQ(value_as<int64_t>("J\xff\xff\xff\xff"), -1);
  EXPECT_EQ(value_as<int64_t>("I-12\n"), -12);
  EXPECT_EQ(value_as<int64_t>("L34L\n"), 34);
  EXPECT_EQ(value_as<int64_t>("\x8a\x00"sv), 0);
  EXPECT_EQ(value_as<int64_t>("\x8a\x02\x00\x80"sv), -32768);
  EXPECT_EQ(value_as<int64_t>("\x8b\x01\x00\x00\x00\x7f"sv), 127);
  EXPECT_EQ(value_as<Object::BigInteger>("L9223372036854775808L\n").decimal,
            "9223372036854775808");
  EXPECT_EQ(value_as<double>("G\x3f\xf8\x00\x00\x00\x00\x00\x00"sv), 1.5);
  EXPECT_EQ(value_as<double>("F-2.5\n"), -2.5);
  EXPECT_TRUE(value_as<bool>("I01\n"));
  EXPECT_FALSE(value_as<bool>("\x89"));
  EXPECT_NE(value("N").as<Object::None>(), nullptr);
}

TEST(PickleReaderTest, ReadsTextAndBytesOfEveryNotation) {
  EXPECT_EQ(value_as<std::string>("X\x02\x00\x00\x00hi"sv), "hi");
  EXPECT_EQ(value_as<std::string>("U\x02hi"sv), "hi");
  EXPECT_EQ(value_as<std::string>("\x8c\x02hi"sv), "hi");
  EXPECT_EQ(value_as<std::string>("\x8d\x02\0\0\0\0\0\0\0hi"sv), "hi");
  EXPECT_EQ(value_as<std::string>("Vhi\n"), "hi");
  EXPECT_EQ(value_as<std::string>("S'hi'\n"), "hi");
  EXPECT_EQ(text_of(value_as<Bytes>("C\x02\xff\x00"sv)), "\xff\x00"sv);
  EXPECT_ERROR(read("V\\u1234\n."), ErrorCode::kUnsupported);
}

TEST(PickleReaderTest, ContainersMayBeFilledAfterTheyWereRemembered) {
  EXPECT_EQ(value_as<PickleNode::List>("]q\x00(NNe"sv).items.size(), 2u);
  EXPECT_EQ(value_as<PickleNode::List>("(NNl").items.size(), 2u);
  EXPECT_EQ(value_as<PickleNode::Dict>("}(K\x01NK\x02Nu").items.size(), 2u);
  EXPECT_EQ(value_as<PickleNode::Dict>("(K\x01"
                                       "Nd")
                .items.size(),
            1u);
  EXPECT_EQ(value_as<PickleNode::Tuple>("NNN\x87").items.size(), 3u);
  EXPECT_EQ(value_as<PickleNode::Tuple>("K\x05\x94h\x00\x86"sv).items.size(), 2u);
}

TEST(PickleReaderTest, AnOrderedDictIsADictAndItsAttributesAreDropped) {
  EXPECT_EQ(value_as<PickleNode::Dict>("ccollections\nOrderedDict\n)R(K\x01Nu}b")
                .items.size(),
            1u);
}

TEST(PickleReaderTest, ACallIsNotedAndNotMade) {
  const auto pickle = read("c__builtin__\nset\n]\x85R.");
  ASSERT_OK(pickle);
  const auto* call = (*pickle)[pickle->root].as<PickleNode::Call>();
  ASSERT_NE(call, nullptr);
  EXPECT_EQ((*pickle)[call->function].as<PickleNode::Global>()->name, "builtins.set");
}

TEST(PickleReaderTest, TypesHaveTheirNamesOfPython3) {
  EXPECT_EQ(value_as<PickleNode::Global>("c__builtin__\nlong\n").name, "builtins.int");
  EXPECT_THAT(message_of(read("c__builtin__\nxrange\n.")), HasSubstr("builtins.range"));
  EXPECT_THAT(message_of(read("cbuiltins\nlong\n.")), HasSubstr("builtins.long"));
}

TEST(PickleReaderTest, OtherGlobalsAreRefusedByNameAndByte) {
  const auto refused = read("NNN000cos\nsystem\n.");
  EXPECT_ERROR(refused, ErrorCode::kUnsupported);
  EXPECT_EQ(message_of(refused), "p: global \"os.system\" at byte 6 is not allowed");
}

TEST(PickleReaderTest, AGlobalOfMoreThan1024BytesIsRefused) {
  const auto read_named = [](size_t size) {
    const std::string program = "cm\n" + std::string(size, 'x') + "\n.";
    return read_pickle(bytes_of(program),
                       {.where = "p", .allow_global = [](auto) { return true; }});
  };
  EXPECT_OK(read_named(kMaxPickleGlobalBytes - 1));
  EXPECT_EQ(message_of(read_named(kMaxPickleGlobalBytes)),
            "p: a global of 1025 bytes at byte 0, limit 1024");
}

TEST(PickleReaderTest, TheStackAndItsMarksAreBounded) {
  const std::string marks(kMaxPickleNodes + 1, '(');
  EXPECT_THAT(message_of(read(marks)), HasSubstr("values and marks on the stack"));
  const std::string copies = "N" + std::string(kMaxPickleNodes, '2');
  EXPECT_THAT(message_of(read(copies)), HasSubstr("values and marks on the stack"));
}

TEST(PickleReaderTest, NothingBelowAMarkCanBeReached) {
  EXPECT_ERROR(read("N(\x85."), ErrorCode::kCorrupt);
  EXPECT_ERROR(read("](a."), ErrorCode::kCorrupt);
  EXPECT_ERROR(read("N(0000."), ErrorCode::kCorrupt);
  EXPECT_OK(read("N(0."));  // pops the mark, as Python does
}

TEST(PickleReaderTest, EveryCutOfAProgramIsAnError) {
  PickleWriter writer;
  writer.begin_dict();
  ASSERT_OK(writer.text("key"));
  ASSERT_OK(writer.bytes(bytes_of("\xff")));
  ASSERT_OK(writer.text("more"));
  writer.number(1.5);
  writer.end_dict();
  const Bytes whole = std::move(writer).finish();
  EXPECT_OK(read(text_of(whole)));
  for (size_t size = 0; size < whole.size(); ++size) {
    SCOPED_TRACE(size);
    EXPECT_ERROR(read(text_of(whole).substr(0, size)), ErrorCode::kCorrupt);
  }
}

RC_GTEST_PROP(PickleTest, IntegersSurvive, (int64_t number)) {
  PickleWriter writer;
  writer.integer(number);
  const Bytes program = std::move(writer).finish();
  const auto pickle = read(text_of(program));
  RC_ASSERT(pickle.ok());
  RC_ASSERT(*(*pickle)[pickle->root].as<int64_t>() == number);
}

RC_GTEST_PROP(PickleTest, LargeIntegersSurviveInBothNotations,
              (bool negative, std::vector<uint8_t> digits)) {
  std::string decimal = negative ? "-1" : "1";
  for (const uint8_t digit : digits) decimal += static_cast<char>('0' + digit % 10);
  const auto bytes = pickle::bytes_of_decimal(decimal);
  RC_ASSERT(bytes.has_value());
  RC_ASSERT(pickle::integer_from_bytes(*bytes) ==
            pickle::integer_from_decimal(decimal));
}

TEST(PickleTest, IntegersTakeNoMoreBytesThanPythonGivesThem) {
  using pickle::bytes_of_decimal;
  EXPECT_EQ(to_hex(*bytes_of_decimal("0")), "");
  EXPECT_EQ(to_hex(*bytes_of_decimal("127")), "7f");
  EXPECT_EQ(to_hex(*bytes_of_decimal("128")), "8000");
  EXPECT_EQ(to_hex(*bytes_of_decimal("-128")), "80");
  EXPECT_EQ(to_hex(*bytes_of_decimal("-129")), "7fff");
  EXPECT_EQ(to_hex(*bytes_of_decimal("18446744073709551616")), "000000000000000001");
  EXPECT_EQ(bytes_of_decimal("1e5"), std::nullopt);
}

TEST(PickleTest, AnObjectIsReadAsACallWithItsAttributes) {
  PickleWriter writer;
  writer.global("builtins", "set");
  writer.begin_tuple();
  writer.end_tuple();
  writer.new_object();
  writer.begin_dict();
  ASSERT_OK(writer.text("offset"));
  writer.integer(7);
  writer.end_dict();
  writer.set_state();
  const Bytes program = std::move(writer).finish();
  const auto pickle = read(text_of(program));
  ASSERT_OK(pickle);
  const auto* call = (*pickle)[pickle->root].as<PickleNode::Call>();
  ASSERT_NE(call, nullptr);
  const auto* state = (*pickle)[call->state].as<PickleNode::Dict>();
  ASSERT_TRUE(state != nullptr && state->items.size() == 1);
  EXPECT_EQ(*(*pickle)[state->items[0].first].as<std::string>(), "offset");
  EXPECT_EQ(*(*pickle)[state->items[0].second].as<int64_t>(), 7);
}

}  // namespace
}  // namespace holdfast
