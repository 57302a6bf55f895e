#include "holdfast/state/collection_json.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "holdfast/state/layout_testing.h"

namespace holdfast {
namespace {

using namespace tests;

RC_GTEST_PROP(CollectionJsonTest, WhatIsWrittenIsReadBackTheSame, (uint64_t seed)) {
  Dice dice(seed);
  const Topology topology = random_topology(dice);
  std::vector<Tensor> tensors = random_tensors(dice);
  tensors[0].role = Role::kSlot;
  tensors[0].of = "someone";
  tensors[0].aliases = {"another.name"};
  tensors[0].pad_multiple = 128;
  const Collection made =
      RandomLayout(dice, tensors, random_holders(dice, topology)).complete();
  const std::string text = to_json_text(made, topology);
  Topology read_topology;
  const Collection read =
      parse_collection(text, "x", read_topology).value();
  RC_ASSERT(read_topology.hosts == topology.hosts);
  RC_ASSERT(to_json_text(read, read_topology) == text);
  RC_ASSERT(std::ranges::equal(read.tensors(), made.tensors()));
}

constexpr const char* kGood = R"({"holdfast": "collection", "version": 1,
  "hosts": [{"name": "a"}], "holders": [{"name": "d", "kind": "memory", "host": "a"}],
  "tensors": [{"name": "w", "dtype": "F32", "shape": [4]}],
  "slices": [{"tensor": "w", "box": [[0, 4]], "copies": [{"holder": "d", "offset": 0}]}]})";

std::string error_after(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  Topology topology;
  const auto read = parse_collection(text, "layout.json", topology);
  return read.ok() ? "no error" : read.error().message();
}

TEST(CollectionJsonTest, EveryDefectIsOneSentenceThatNamesTheOffender) {
  EXPECT_EQ(error_after("collection\"", "plan\""),
            "layout.json: holds a \"plan\"; expected a \"collection\"");
  EXPECT_EQ(error_after("version\": 1", "version\": 2"),
            "layout.json: version 2; expected 1");
  EXPECT_EQ(error_after("{\"name\": \"a\"}", "{\"name\": \"a\", \"rack\": 3}"),
            "layout.json: hosts[0]: unknown key \"rack\"");
  EXPECT_EQ(error_after("\"host\": \"a\"", "\"host\": \"b\""),
            "layout.json: holders[0]: \"b\" is not listed");
  EXPECT_EQ(error_after("memory", "tape"),
            "layout.json: holders[0]: kind \"tape\"; expected memory or file");
  EXPECT_EQ(error_after("F32", "F33"),
            "layout.json: tensors[0]: dtype \"F33\": not known; expected one like BF16 "
            "or F32");
  EXPECT_EQ(error_after("\"shape\": [4]", "\"shape\": [-4]"),
            "layout.json: tensors[0].shape: -4; expected 0 to 9223372036854775807");
  EXPECT_EQ(error_after("[0, 4]", "[0, 5]"),
            "layout.json: w on d: box [0:5] is outside the shape [4]");
  EXPECT_EQ(
      error_after("[0, 4]", "[3, 2]"),
      "layout.json: slices[0]: box: extent 3:2 in dimension 0; expected 0 <= lo <= hi");
  EXPECT_EQ(
      error_after("[0, 4]", "[0, 4, 1]"),
      "layout.json: slices[0].box[0]: array of 3; expected a pair");
  EXPECT_EQ(error_after("\"offset\": 0", "\"offset\": 9223372036854775807"),
            "layout.json: w on d: box [0:4] at offset 9223372036854775807 begins "
            "before byte 0 or ends after the last possible byte");
  EXPECT_EQ(
      error_after("\"offset\": 0", "\"offset\": 0, \"strides\": [0]"),
      "layout.json: w on d: box [0:4] has strides that put two elements on one byte");
  EXPECT_EQ(error_after("{\"holder\": \"d\", \"offset\": 0}",
                        "{\"holder\": \"d\", \"offset\": 0}, "
                        "{\"holder\": \"d\", \"offset\": 64}"),
            "layout.json: w on d: box [0:4] is listed twice");
  EXPECT_EQ(
      error_after("\"slices\": [",
                  "\"slices\": [{\"tensor\": \"w\", \"box\": [[2, 3]], \"copies\": "
                  "[{\"holder\": \"d\", \"offset\": 64}]}, "),
      "layout.json: w on d: boxes [0:4] and [2:3] overlap");
  EXPECT_EQ(error_after("\"version\"", "\"holdfast\": 1, \"version\""),
            "layout.json: duplicate key \"holdfast\"");
}

}  // namespace
}  // namespace holdfast
