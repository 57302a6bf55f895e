#include "holdfast/formats/sharded_safetensors.h"

#include <gtest/gtest.h>

#include "holdfast/env/memory_env.h"
#include "holdfast/env/memory_sink_testing.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/formats/format.h"
#include "holdfast/formats/safetensors.h"

namespace holdfast {
namespace {

using tests::expect_same_tensors;
using tests::random_contents;

constexpr const char* kIndex = "m/model.safetensors.index.json";

class ShardedSafetensorsTest : public ::testing::Test {
 protected:
  // A folder of two files: a and b in one.safetensors, c in two.safetensors.
  void SetUp() override {
    ASSERT_OK(env_.create_folder("m"));
    write("m/one.safetensors", {"a", "b"});
    write("m/two.safetensors", {"c"});
    write_index(R"("a":"one.safetensors","b":"one.safetensors","c":"two.safetensors")");
  }

  void write(const Path& path, const std::vector<std::string>& names) {
    std::vector<Tensor> tensors;
    for (const std::string& name : names) {
      tensors.push_back({.name = name, .dtype = Dtype::kF32, .shape = {2}});
    }
    MemorySink sink;
    ASSERT_OK(write_safetensors(sink, random_contents(std::move(tensors))));
    ASSERT_OK(env_.write_file(path, sink.bytes()));
  }

  void write_index(const std::string& weights) {
    ASSERT_OK(env_.write_file(
        kIndex, bytes_of(R"({"metadata":{"total_size":24.0,"total_parameters":6},)"
                         R"("weight_map":{)" +
                         weights + "}}")));
  }

  void expect_corrupt(const std::string& message) {
    const auto opened = open_sharded_safetensors(env_, "m");
    EXPECT_ERROR(opened, ErrorCode::kCorrupt);
    EXPECT_EQ(message_of(opened), kIndex + (": " + message));
  }

  MemoryEnv env_;
};

TEST_F(ShardedSafetensorsTest, TheTensorsOfAllFilesAreOneCollection) {
  const auto opened = open_sharded_safetensors(env_, "m");
  ASSERT_OK(opened);
  EXPECT_EQ(opened->sources.size(), 2U);
  for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(opened->collection.find(name));
}

TEST_F(ShardedSafetensorsTest, IndexAndFilesMustAgree) {
  write_index(R"("a":"one.safetensors","c":"two.safetensors")");
  expect_corrupt(
      "\"one.safetensors\" has the tensor \"b\", which the index does not name");
  write_index(
      R"("a":"one.safetensors","b":"one.safetensors","c":"two.safetensors","d":"two.safetensors")");
  expect_corrupt(
      "\"two.safetensors\" has no tensor \"d\", but the index maps it to this file");
  write_index(R"("a":"one.safetensors","b":"two.safetensors","c":"two.safetensors")");
  expect_corrupt(
      "\"one.safetensors\" has the tensor \"b\", which the index maps to "
      "\"two.safetensors\"");
}

TEST_F(ShardedSafetensorsTest, AFileThatIsMissingIsDamage) {
  write_index(R"("a":"one.safetensors","b":"one.safetensors","c":"three.safetensors")");
  expect_corrupt("\"three.safetensors\" is missing, but the index names it");
}

TEST_F(ShardedSafetensorsTest, AFolderOfOneFileNeedsNoIndex) {
  ASSERT_OK(env_.remove_file(kIndex));
  EXPECT_ERROR(open_sharded_safetensors(env_, "m"), ErrorCode::kInvalid);
  EXPECT_ERROR(format_of(env_, "m"), ErrorCode::kUnsupported);
  ASSERT_OK(env_.remove_file("m/two.safetensors"));
  ASSERT_OK(env_.write_file("m/config.json", bytes_of("{}")));
  EXPECT_OK(format_of(env_, "m"));
  const auto opened = open_sharded_safetensors(env_, "m");
  ASSERT_OK(opened);
  EXPECT_EQ(opened->collection.tensors().size(), 2U);
}

TEST_F(ShardedSafetensorsTest, NamesOfFilesLeadNowhereElse) {
  for (const std::string name : {"../m/one.safetensors", "/etc/passwd", "..", ".", "",
                                 "a\\\\b", "x/one.safetensors", "one\\u0000"}) {
    write_index("\"a\":\"" + name + "\"");
    const auto opened = open_sharded_safetensors(env_, "m");
    EXPECT_ERROR(opened, ErrorCode::kCorrupt);
    EXPECT_NE(message_of(opened).find("expected the plain name of a file"), std::string::npos);
  }
}

TEST_F(ShardedSafetensorsTest, TwoIndexesMustBeToldApart) {
  const Bytes index = env_.read_file(kIndex).value();
  ASSERT_OK(env_.write_file("m/model.fp16.safetensors.index.json", index));
  EXPECT_ERROR(open_sharded_safetensors(env_, "m"), ErrorCode::kInvalid);
  EXPECT_OK(open_sharded_safetensors(env_, kIndex));
}

TEST_F(ShardedSafetensorsTest, AnIndexWithoutAMapIsCorrupt) {
  for (const char* text :
       {"{}", "[]", "{\"weight_map\":[]}", "{\"weight_map\":{\"a\":1}}", "",
        "{\"weight_map\":{\"a\":\"x\",\"a\":\"y\"}}"}) {
    ASSERT_OK(env_.write_file(kIndex, bytes_of(text)));
    EXPECT_ERROR(open_sharded_safetensors(env_, "m"), ErrorCode::kCorrupt);
  }
}

TEST_F(ShardedSafetensorsTest, ShardsStayBelowTheirSize) {
  std::vector<Tensor> tensors;
  for (int i = 0; i < 9; ++i) {
    tensors.push_back({.name = std::to_string(i),
                       .dtype = Dtype::kF32,
                       .shape = {i == 4 ? 100 : 10}});
  }
  tensors[2].aliases = {"two"};
  Contents contents = random_contents(std::move(tensors));
  contents.objects = Object(Object::TensorName{"8"});
  ASSERT_OK(write_sharded_safetensors(env_, "cut", contents, 100));
  // 0 1 | 2 3 | 4 | 5 6 | 7 8
  const auto names = env_.list("cut").value();
  ASSERT_EQ(names.size(), 6U);
  EXPECT_EQ(names.front(), "model-00001-of-00005.safetensors");
  const auto opened = open_sharded_safetensors(env_, "cut");
  ASSERT_OK(opened);
  expect_same_tensors(*opened, contents);
  EXPECT_TRUE(opened->objects == contents.objects);
  const std::string index = env_.read_text("cut/model.safetensors.index.json").value();
  EXPECT_NE(index.find("\"total_size\":720"), index.npos);
}

}  // namespace
}  // namespace holdfast
