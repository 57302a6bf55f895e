// Checkpoints that TensorFlow wrote are read as it saved them, ours are read again, and
// hostile ones are refused.
#include "holdfast/tensorflow/tensor_bundle.h"

#include <gtest/gtest.h>

#include "holdfast/base/json.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/env/posix_env.h"
#include "holdfast/tensorflow/bundle_index.h"
#include "holdfast/tensorflow/bundle_strings.h"
#include "holdfast/tensorflow/table_writer.h"

namespace holdfast::tensor_bundle_test {
namespace {

using tests::canonical_bytes;
using tests::expect_same_tensors;
using tests::random_contents;

const std::filesystem::path kFixtures = HOLDFAST_TENSORFLOW_FIXTURES;
const std::filesystem::path kAttacks = HOLDFAST_TENSORFLOW_ATTACKS;

Json read_expected(Env& env, const Path& folder,
                   const std::string& name = "expected.json") {
  const auto text = env.read_text(folder / name);
  EXPECT_OK(text);
  return parse_json(*text, name).value();
}

// Strings as expected.json has them.
Json hex_of(const Object& object) {
  if (const auto* bytes = object.as<Bytes>()) {
    if (bytes->size() < 1024) return to_hex(*bytes);
    return fmt::format("{} {:08x}", bytes->size(), crc32c(*bytes));
  }
  Json list = Json::array();
  for (const Object& item : object.as<Object::List>()->items) {
    list.push_back(hex_of(item));
  }
  return list;
}

void expect_tensors(const Contents& contents, const Json& expected) {
  EXPECT_EQ(contents.collection.tensors().size(), expected.size());
  for (const auto& [name, tensor] : expected.items()) {
    const auto found = contents.collection.find(name);
    ASSERT_TRUE(found) << name;
    const Tensor& seen = contents.collection.tensor(*found);
    EXPECT_EQ(name_of(seen.dtype), tensor["dtype"].get<std::string>()) << name;
    EXPECT_EQ(Json(seen.shape.sizes()), tensor["shape"]) << name;
    Bytes bytes(static_cast<size_t>(seen.bytes()));
    CanonicalStream stream(contents, *found);
    ASSERT_OK(stream.read(bytes));
    EXPECT_EQ(to_hex(bytes), tensor["hex"].get<std::string>()) << name;
  }
}

void expect_strings(const Contents& contents, const Json& expected) {
  Json seen = Json::object();
  if (const auto* dict = contents.objects.as<Object::Dict>()) {
    for (const auto& [key, value] : dict->items) {
      seen[*key.as<std::string>()] = hex_of(value);
    }
  }
  EXPECT_EQ(seen, expected);
}

TEST(TensorBundleTest, CheckpointsOfTensorFlowAreReadAsTheyWereSaved) {
  const auto env = make_posix_env();
  const Json expected = read_expected(*env, kFixtures)["checkpoints"];
  EXPECT_EQ(expected.size(), 7U);
  for (const auto& [prefix, of] : expected.items()) {
    SCOPED_TRACE(prefix);
    const auto contents = open_tensor_bundle(*env, kFixtures / prefix);
    ASSERT_OK(contents);
    expect_tensors(*contents, of["tensors"]);
    expect_strings(*contents, of["strings"]);
    EXPECT_OK(contents->collection.check_covered());
  }
}

TEST(TensorBundleTest, WrittenAgainItIsTheSame) {
  const auto env = make_posix_env();
  MemoryEnv disk;
  for (const char* prefix :
       {"dtypes", "strings", "two_shards", "partitioned", "variables", "big_endian",
        "keras3"}) {
    const auto contents = open_tensor_bundle(*env, kFixtures / prefix);
    ASSERT_OK(contents);
    ASSERT_OK(write_tensor_bundle(disk, prefix, *contents));
    const auto again = open_tensor_bundle(disk, prefix);
    ASSERT_OK(again);
    expect_same_tensors(*again, *contents);
    EXPECT_TRUE(again->objects == contents->objects) << prefix;
    EXPECT_OK(open_tensor_bundle(disk, Path(prefix) / "ckpt"));
    EXPECT_OK(open_tensor_bundle(disk, Path(prefix) / "ckpt.index"));
  }
}

TEST(TensorBundleTest, EveryHostileFileIsRefusedByItsSentence) {
  const auto env = make_posix_env();
  const Json expected = read_expected(*env, kAttacks);
  EXPECT_GE(expected.size(), 50U);
  for (const auto& [name, message] : expected.items()) {
    const auto opened = open_tensor_bundle(*env, kAttacks / name);
    ASSERT_FALSE(opened.ok()) << name;
    const Error& error = opened.error();
    EXPECT_TRUE(error.code() == ErrorCode::kCorrupt ||
                error.code() == ErrorCode::kUnsupported)
        << name_of(error.code());
    EXPECT_NE(error.message().find(message.get<std::string>()), std::string::npos)
        << name << ": " << error.message();
    EXPECT_LT(error.message().size(), 500U) << error.message();
  }
}

TEST(TensorBundleTest, WhatIsOddIsLeftOutByNameAndTheRestIsRead) {
  const auto env = make_posix_env();
  const Json expected = read_expected(*env, kAttacks, "odd.json");
  EXPECT_GE(expected.size(), 8U);
  for (const auto& [name, line] : expected.items()) {
    SCOPED_TRACE(name);
    const auto opened = open_tensor_bundle(*env, kAttacks / name);
    ASSERT_OK(opened);
    EXPECT_EQ(opened->left_out, std::vector<std::string>{line.get<std::string>()});
    ASSERT_EQ(opened->collection.tensors().size(), 1U);
    EXPECT_EQ(to_hex(canonical_bytes(*opened, *opened->collection.find("good"))),
              "00010203");
  }
}

TEST(TensorBundleTest, WhatTensorFlowCannotHoldIsKeptBeside) {
  Contents contents = random_contents(
      {{.name = "w", .dtype = Dtype::kF8E8m0, .shape = {3}, .aliases = {"tied"}},
       {.name = std::string("\0odd", 4), .dtype = Dtype::kF32, .shape = {2}},
       {.name = "holdfast.objects", .dtype = Dtype::kF32},
       {.name = "tensor.0", .dtype = Dtype::kU8}});
  contents.metadata = {{"key", "value"}};
  const auto text = [](const char* value) { return Object(std::string(value)); };
  // One of the objects is a string tensor of TensorFlow, the others are not.
  contents.objects =
      Object(Object::Dict{{{text("step"), Object(int64_t{3})},
                           {text("graph"), Object(copy_of(bytes_of("bytes")))},
                           {text("w"), Object(Object::TensorName{"w"})}}});
  MemoryEnv disk;
  ASSERT_OK(write_tensor_bundle(disk, "out", contents));
  const auto opened = open_tensor_bundle(disk, "out");
  ASSERT_OK(opened);
  expect_same_tensors(*opened, contents);
  EXPECT_TRUE(opened->objects == contents.objects);
  EXPECT_EQ(opened->metadata, contents.metadata);
  const auto index = bundle::read_index(disk, "out/ckpt.index");
  ASSERT_OK(index);
  EXPECT_NE(index->find("graph"), nullptr);
  EXPECT_NE(index->find("holdfast.objects"), nullptr);
}

TEST(TensorBundleTest, AnIndexOfManyBlocksComesBack) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 20000; ++i) {
    tensors.push_back(
        {.name = fmt::format("layers/{}/kernel/.ATTRIBUTES", i), .dtype = Dtype::kU8});
  }
  const Contents contents = random_contents(std::move(tensors));
  MemoryEnv disk;
  ASSERT_OK(write_tensor_bundle(disk, "out", contents));
  EXPECT_GT(disk.info("out/ckpt.index")->size, 512 << 10);
  const auto opened = open_tensor_bundle(disk, "out");
  ASSERT_OK(opened);
  EXPECT_EQ(opened->collection.tensors().size(), 20000U);
  EXPECT_TRUE(canonical_bytes(*opened, 19999) ==
              canonical_bytes(contents, *contents.collection.find(
                                            opened->collection.tensor(19999).name)));
}

TEST(TensorBundleTest, ATensorWithAWrongByteIsCorruptWhenItIsRead) {
  const auto env = make_posix_env();
  MemoryEnv disk;
  for (const char* name : {"two_shards.index", "two_shards.data-00000-of-00002",
                           "two_shards.data-00001-of-00002"}) {
    ASSERT_OK(disk.write_file(name, env->read_file(kFixtures / name).value()));
  }
  Bytes shard = disk.read_file("two_shards.data-00000-of-00002").value();
  shard[5] ^= std::byte{4};
  ASSERT_OK(disk.write_file("two_shards.data-00000-of-00002", shard));
  const auto contents = open_tensor_bundle(disk, "two_shards");
  ASSERT_OK(contents);
  const TensorId a = contents->collection.find("a").value();
  Bytes bytes(48);
  const Box box = Box::whole({4, 3});
  const auto read = read_box(*contents, a, box, Map::dense(box, 4), bytes);
  EXPECT_ERROR(read, ErrorCode::kCorrupt);
  EXPECT_NE(message_of(read).find("two_shards.data-00000-of-00002"), std::string::npos);
}

TEST(TensorBundleTest, AFolderOpensTheCheckpointThatItsStateNames) {
  MemoryEnv disk;
  const Contents first = random_contents({{.name = "w", .dtype = Dtype::kU8}}, 1);
  ASSERT_OK(write_tensor_bundle(disk, "out", first));
  for (const char* name : {".index", ".data-00000-of-00001"}) {
    const Path from = Path("out") / fmt::format("ckpt{}", name);
    ASSERT_OK(disk.link(from, Path("out") / fmt::format("older{}", name)));
  }
  EXPECT_OK(open_tensor_bundle(disk, "out"));
  ASSERT_OK(disk.remove_file("out/ckpt.index"));
  EXPECT_ERROR(open_tensor_bundle(disk, "out"), ErrorCode::kCorrupt);
  ASSERT_OK(disk.remove_file("out/checkpoint"));
  EXPECT_OK(open_tensor_bundle(disk, "out"));
}

TEST(TensorBundleTest, StringTensorsOfAnyShapeAreObjects) {
  const Bytes a = copy_of(bytes_of("a")), b;
  for (const Shape& shape : {Shape{}, Shape{2}, Shape{0}, Shape{2, 1}, Shape{0, 3},
                             Shape{3, 0}, Shape{1, 2, 1}}) {
    bundle::StringTensor tensor{shape, {}};
    for (int64_t i = 0; i < shape.elements(); ++i) {
      tensor.strings.push_back(i == 0 ? a : b);
    }
    const Object object = bundle::object_of(tensor);
    const auto found = bundle::strings_in(object);
    ASSERT_TRUE(found) << to_string(shape);
    EXPECT_EQ(to_string(found->shape), to_string(shape));
    const auto encoded = bundle::encode_strings(found->strings);
    const auto decoded =
        bundle::decode_strings(bytes_of(encoded.bytes), shape.elements(), false);
    ASSERT_OK(decoded);
    EXPECT_EQ(decoded->crc, encoded.crc);
    EXPECT_TRUE(bundle::object_of({shape, decoded->strings}) == object);
  }
  EXPECT_FALSE(bundle::strings_in(Object(std::string("text"))));
  EXPECT_FALSE(bundle::strings_in(Object(Object::List{{Object(a), Object()}})));
}

}  // namespace
}  // namespace holdfast::tensor_bundle_test
