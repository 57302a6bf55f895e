#include "holdfast/formats/safetensors.h"

#include <gtest/gtest.h>

#include "holdfast/env/memory_sink_testing.h"
#include "holdfast/contents/contents_testing.h"

namespace holdfast::safetensors_test {
namespace {

using tests::canonical_bytes;
using tests::random_contents;

Bytes file_of(std::string_view header, size_t data = 0) {
  Bytes file(8);
  store_little_endian(uint64_t{header.size()}, file);
  const ByteView text = bytes_of(header);
  file.insert(file.end(), text.begin(), text.end());
  file.resize(file.size() + data);
  return file;
}

Result<Contents> open(Bytes bytes) {
  return open_safetensors(std::make_shared<MemorySource>("file", std::move(bytes)));
}

void expect_refused(std::string_view header, size_t data, ErrorCode code,
                    std::string_view message) {
  const auto opened = open(file_of(header, data));
  EXPECT_ERROR(opened, code);
  EXPECT_EQ(message_of(opened), "file: " + std::string(message)) << header;
}

constexpr std::string_view kPlain =
    R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";

TEST(SafetensorsTest, OpensWhatTheReferenceOpens) {
  for (
      const std::string& header : {
          std::string(kPlain),
          "  \n" + std::string(kPlain) + "\t  ",
          std::string(
              R"({"a":{"x":[{"y":1}],"dtype":"U8","shape":[4],"data_offsets":[0,4]}})"),
          std::string(
              R"({"__metadata__":null,"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})"),
          std::string(
              R"({"z":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})"),
      }) {
    const auto opened = open(file_of(header, 4));
    ASSERT_OK(opened);
    EXPECT_EQ(opened->collection.tensor(0).name, "a");
  }
  EXPECT_OK(open(file_of("{}")));
}

TEST(SafetensorsTest, NamesWhatItRefuses) {
  const auto corrupt = [](std::string_view header, std::string_view message) {
    expect_refused(header, 4, ErrorCode::kCorrupt, message);
  };
  corrupt("", "header is not JSON at byte 1");
  corrupt("[]", "a list or object; expected an object");
  corrupt("{\"a\":3}", "a number in \"a\"; expected an object");
  corrupt(std::string(kPlain) + '\0', "header is not JSON at byte 54");
  corrupt(R"({"a":{"dtype":"U8","shape":[4]}})",
          "\"a\" lacks dtype, shape or data_offsets");
  corrupt(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"shape":[4]}})",
          "\"a\" has \"shape\" twice; expected it once");
  corrupt(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{}})",
          "\"a\" is there twice; expected it once");
  corrupt(R"({"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}})",
          "a float in \"a\"; expected a size");
  corrupt(R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})",
          "a negative number in \"a\"; expected a size");
  corrupt(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,4]}})",
          "\"a\": data_offsets [0, 4, 4]; expected a first and a last");
  corrupt(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})",
          "\"a\": data_offsets [4, 0]; expected a first and a last");
  corrupt(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,4]}})",
          "\"a\": 4 bytes of data; expected 16 for F32 [4]");
  corrupt(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})",
          "\"a\": data begins at 1; expected 0, because tensors leave no holes and do "
          "not overlap");
  corrupt(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
          "1 bytes follow the last tensor; expected none");
  corrupt(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}})",
          "\"a\": data ends at 5, but there are only 4");
  corrupt(R"({"__metadata__":{"k":1}})",
          "a number in \"__metadata__\"; expected a string");
  corrupt(R"({"__metadata__":{"k":"1","k":"2"}})",
          "a key of __metadata__ is there twice; expected it once");
  for (const char* dtype : {"F4", "F6_E2M3", "u8", "C128", "X"}) {
    expect_refused(
        fmt::format(R"({{"a":{{"dtype":"{}","shape":[4],"data_offsets":[0,4]}}}})",
                    dtype),
        4, ErrorCode::kUnsupported,
        fmt::format("\"a\": dtype \"{}\" is not known", dtype));
  }
  expect_refused(
      R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,4]}})", 4,
      ErrorCode::kUnsupported, "\"a\": 9 dimensions; expected at most 8");
}

TEST(SafetensorsTest, LengthsAreCheckedBeforeTheyAreUsed) {
  Bytes file = file_of(kPlain, 4);
  store_little_endian(uint64_t{1} << 63U, file);
  EXPECT_EQ(message_of(open(file)),
            "file: header is 9223372036854775808 bytes, limit 100000000");
  store_little_endian(uint64_t{58}, file);
  EXPECT_EQ(message_of(open(file)), "file: header is 58 bytes, but only 57 follow");
  EXPECT_EQ(message_of(open(Bytes(7))), "file: 7 bytes; expected at least 8");
}

TEST(SafetensorsTest, OurMetadataIsCheckedLikeAnyOther) {
  const auto with = [](std::string_view key, std::string_view value) {
    return fmt::format(R"({{"__metadata__":{{"holdfast.{}":"{}"}},)"
                       R"("a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}}})",
                       key, value);
  };
  for (const auto& [key, value] : std::vector<std::pair<const char*, const char*>>{
           {"objects", "{"},
           {"objects", R"({\"$tensor\":\"b\"})"},
           {"ties", "[]"},
           {"ties", R"({\"b\":[\"c\"]})"},
           {"ties", R"({\"a\":[\"a\"]})"},
           {"ties", R"({\"a\":\"b\"})"},
           {"ties", R"({\"a\":[1]})"},
           {"dtypes", R"({\"a\":\"C128\"})"},
           {"dtypes", R"({\"b\":\"C128\"})"}}) {
    EXPECT_ERROR(open(file_of(with(key, value), 4)), ErrorCode::kCorrupt);
  }
  EXPECT_ERROR(open(file_of(with("dtypes", R"({\"a\":\"C256\"})"), 4)),
               ErrorCode::kUnsupported);
  EXPECT_OK(open(file_of(with("ties", R"({\"a\":[\"b\"]})"), 4)));
}

TEST(SafetensorsTest, ALayoutPlacesEntriesInTheOrderGiven) {
  const std::vector<SafetensorsEntry> entries{{"b@[0:2, 4:8]", Dtype::kU8, {3}},
                                              {"a", Dtype::kF64, {2}},
                                              {"s", Dtype::kF32, {}}};
  for (const int64_t align : {8, 64, 4096}) {
    const auto layout = lay_out_safetensors(entries, {{"k", "v"}}, align);
    ASSERT_OK(layout);
    const auto start = static_cast<int64_t>(layout->header.size());
    EXPECT_EQ(start % align, 0);
    EXPECT_EQ(layout->offsets, (std::vector{start, start + 3, start + 19}));
    EXPECT_EQ(layout->file_bytes, start + 23);
    Bytes file = layout->header;
    file.resize(static_cast<size_t>(layout->file_bytes));
    const auto opened = open(std::move(file));
    ASSERT_OK(opened);
    EXPECT_EQ(opened->collection.tensor(0).name, "b@[0:2, 4:8]");
    EXPECT_EQ(opened->metadata.at("k"), "v");
  }
}

TEST(SafetensorsTest, ALayoutRefusesWhatItsReaderWould) {
  const auto refused = [](std::vector<SafetensorsEntry> entries, ErrorCode code,
                          std::map<std::string, std::string> metadata = {}) {
    EXPECT_ERROR(lay_out_safetensors(entries, metadata), code);
  };
  refused({{"", Dtype::kU8, {}}}, ErrorCode::kInvalid);
  refused({{"__metadata__", Dtype::kU8, {}}}, ErrorCode::kInvalid);
  refused({{"\xff", Dtype::kU8, {}}}, ErrorCode::kInvalid);
  refused({{"a", Dtype::kU8, {}}, {"a", Dtype::kU8, {}}}, ErrorCode::kInvalid);
  refused({}, ErrorCode::kInvalid, {{"k", "\xff"}});
  refused({}, ErrorCode::kInvalid, {{"holdfast.dtypes", "{}"}});
  refused({}, ErrorCode::kUnsupported, {{"k", std::string(100'000'000, ' ')}});
  refused({{"a", Dtype::kC128, {1, 1, 1, 1, 1, 1, 1, 1}}}, ErrorCode::kUnsupported);
  const Shape huge{(int64_t{1} << 59) - 1};
  refused(
      {{"a", Dtype::kF64, huge}, {"b", Dtype::kF64, huge}, {"c", Dtype::kF64, huge}},
      ErrorCode::kUnsupported);
}

TEST(SafetensorsTest, LargeElementsComeFirst) {
  const Contents contents =
      random_contents({{.name = "a", .dtype = Dtype::kU8, .shape = {3}},
                       {.name = "b", .dtype = Dtype::kF64, .shape = {2}},
                       {.name = "c", .dtype = Dtype::kBf16, .shape = {5}}});
  MemorySink sink;
  ASSERT_OK(write_safetensors(sink, contents));
  const auto opened = open(std::move(sink).take_bytes());
  ASSERT_OK(opened);
  const auto tensors = opened->collection.tensors();
  EXPECT_EQ(tensors[0].name, "b");
  EXPECT_EQ(tensors[1].name, "c");
  EXPECT_EQ(tensors[2].name, "a");
}

TEST(SafetensorsTest, AComplexTensorIsPairsOfDoublesToOthers) {
  const Contents contents =
      random_contents({{.name = "z", .dtype = Dtype::kC128, .shape = {2}}});
  MemorySink sink;
  ASSERT_OK(write_safetensors(sink, contents));
  const std::string_view text = text_of(sink.bytes());
  EXPECT_NE(text.find(R"("z":{"dtype":"F64","shape":[2,2],"data_offsets":[0,32]})"),
            text.npos);
}

TEST(SafetensorsTest, AFileSaysItsFormatToLoadersThatAsk) {
  Contents contents = random_contents({{.name = "a", .dtype = Dtype::kU8}});
  MemorySink none, some;
  ASSERT_OK(write_safetensors(none, contents));
  EXPECT_EQ(open(std::move(none).take_bytes())->metadata.at("format"), "pt");
  contents.metadata["format"] = "np";
  ASSERT_OK(write_safetensors(some, contents));
  EXPECT_EQ(open(std::move(some).take_bytes())->metadata.at("format"), "np");
}

TEST(SafetensorsTest, ReservedMetadataAndStrangersAmongTheObjectsAreRefused) {
  Contents contents = random_contents({{.name = "a", .dtype = Dtype::kU8}});
  MemorySink sink;
  contents.metadata["holdfast.ties"] = "{}";
  EXPECT_ERROR(write_safetensors(sink, contents), ErrorCode::kInvalid);
  contents.metadata.clear();
  contents.objects = Object(Object::List{{Object(Object::TensorName{"b"})}});
  EXPECT_ERROR(write_safetensors(sink, contents), ErrorCode::kInvalid);
  EXPECT_EQ(sink.size(), 0);
}

}  // namespace
}  // namespace holdfast::safetensors_test
