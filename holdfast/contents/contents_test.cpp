#include "holdfast/contents/contents.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "holdfast/contents/contents_testing.h"

namespace holdfast {
namespace {

using tests::CountingSource;
using tests::Dice;
using tests::Memories;
using tests::Memory;
using tests::random_box;

// Random tensors, cut into boxes and stored in random ways over several files.
struct Scattered {
  Contents contents;
  std::vector<Memory> values;
};

Scattered scatter(Dice& dice) {
  const std::vector<Tensor> tensors = tests::random_tensors(dice);
  const auto holders = tests::random_holders(dice, tests::random_topology(dice));
  Scattered made{
      .contents = {.collection = tests::RandomLayout(dice, tensors, holders).complete(),
                   .sources = {},
                   .objects = {},
                   .metadata = {}},
      .values = tests::random_values(dice, tensors)};
  for (Memory& bytes : tests::fill(made.contents.collection, made.values)) {
    made.contents.sources.push_back(
        std::make_shared<MemorySource>("file", std::move(bytes)));
  }
  return made;
}

// Reads a box element by element, only with the maps of the layout.
Bytes slice_of(const Tensor& tensor, const Memory& values, const Box& box) {
  Bytes slice;
  tests::for_each_element(tensor, box, Map{}, [&](int64_t canonical, int64_t) {
    const auto first = values.begin() + canonical;
    slice.insert(slice.end(), first, first + bytes_of(tensor.dtype));
  });
  return slice;
}

RC_GTEST_PROP(ContentsTest, AnyBoxReadsAsTheSliceThatItIs, (uint64_t seed)) {
  Dice dice(seed);
  const Scattered made = scatter(dice);
  for (TensorId t = 0; t < made.values.size(); ++t) {
    const Tensor& tensor = made.contents.collection.tensor(t);
    const Box box = random_box(dice, tensor.shape);
    const int64_t element = bytes_of(tensor.dtype);
    Bytes memory(static_cast<size_t>(box.elements() * element));
    const auto read = read_box(made.contents, t, box, Map::dense(box, element), memory);
    RC_ASSERT(message_of(read) == "");
    RC_ASSERT(memory == slice_of(tensor, made.values[t], box));
  }
}

RC_GTEST_PROP(ContentsTest, AnyRangeOfCanonicalBytesIsTheirs, (uint64_t seed)) {
  Dice dice(seed);
  const Scattered made = scatter(dice);
  for (TensorId t = 0; t < made.values.size(); ++t) {
    const auto size = static_cast<int64_t>(made.values[t].size());
    const int64_t first = dice.below(size + 1);
    const int64_t last = first + dice.below(size - first + 1);
    Bytes memory(static_cast<size_t>(last - first));
    RC_ASSERT(read_canonical(made.contents, t, first, memory).ok());
    RC_ASSERT(std::equal(memory.begin(), memory.end(), made.values[t].begin() + first));
  }
}

// One matrix in one file with these strides. Its reads are counted.
struct Matrix {
  Matrix(int64_t rows, int64_t columns, std::array<int64_t, 2> strides)
      : tensor{.name = "w", .dtype = Dtype::kF32, .shape = {rows, columns}} {
    Dice dice(1);
    values = tests::random_values(dice, std::span(&tensor, 1)).front();
    LayoutBuilder builder(std::span(&tensor, 1),
                          {{.name = "file", .kind = HolderKind::kFile}});
    Map map;
    std::copy(strides.begin(), strides.end(), map.strides.begin());
    builder.add(0, Box::whole(tensor.shape), 0, map);
    Layout layout = std::move(builder).build().value();
    auto collection = Collection::create({tensor}, std::move(layout)).value();
    auto bytes = tests::fill(collection, {values}).front();
    source = std::make_shared<CountingSource>(
        std::make_shared<MemorySource>("file", std::move(bytes)));
    contents.emplace(Contents{std::move(collection), {source}, {}, {}});
  }

  void expect_box(const Box& box) {
    source->counts = {};
    Bytes memory(static_cast<size_t>(box.elements() * 4));
    ASSERT_OK(read_box(*contents, 0, box, Map::dense(box, 4), memory));
    EXPECT_TRUE(memory == slice_of(tensor, values, box));
  }

  Tensor tensor;
  Memory values;
  std::shared_ptr<CountingSource> source;
  std::optional<Contents> contents;
};

TEST(ContentsTest, AColumnIsReadThroughWindowsAndNotByElements) {
  Matrix matrix(3000, 1024, {4096, 4});
  matrix.expect_box({{0, 3000}, {5, 6}});
  EXPECT_EQ(matrix.source->counts.reads, 3);
  EXPECT_LE(matrix.source->counts.most, 4 << 20);
}

TEST(ContentsTest, TransposedStorageIsReadThroughWindowsToo) {
  Matrix matrix(1000, 1500, {4, 4000});
  matrix.expect_box({{0, 1000}, {0, 1500}});
  EXPECT_EQ(matrix.source->counts.reads, 2);
  matrix.expect_box({{10, 11}, {0, 1500}});
  EXPECT_LE(matrix.source->counts.reads, 2);
}

TEST(ContentsTest, RowsFarApartAreReadAlone) {
  Matrix matrix(20, 50000, {200000, 4});
  matrix.expect_box({{0, 20}, {100, 300}});
  EXPECT_EQ(matrix.source->counts.reads, 20);
  EXPECT_EQ(matrix.source->counts.bytes, 20 * 200 * 4);
}

TEST(ContentsTest, WhatLiesTogetherIsOneRead) {
  Matrix matrix(20, 50000, {200000, 4});
  matrix.expect_box({{3, 17}, {0, 50000}});
  EXPECT_EQ(matrix.source->counts.reads, 1);
}

TEST(ContentsTest, ABoxOutsideIsInvalidAndAGapIsNamed) {
  const Tensor tensor{.name = "w", .dtype = Dtype::kU8, .shape = {4, 4}};
  LayoutBuilder builder(std::span(&tensor, 1),
                        {{.name = "file", .kind = HolderKind::kFile}});
  builder.add(0, {{0, 2}, {0, 4}}, 0, 0);
  Layout layout = std::move(builder).build().value();
  const Contents contents{Collection::create({tensor}, std::move(layout)).value(),
                          {std::make_shared<MemorySource>("file", Bytes(8))},
                          {},
                          {}};
  Bytes memory(16);
  const Box whole = Box::whole(tensor.shape);
  const auto gap = read_box(contents, 0, whole, Map::dense(whole, 1), memory);
  EXPECT_ERROR(gap, ErrorCode::kNotFound);
  EXPECT_EQ(message_of(gap), "w: no file has the box [2:4, 0:4]");
  const Box outside{{0, 5}, {0, 4}};
  EXPECT_ERROR(read_box(contents, 0, outside, Map::dense(outside, 1), memory),
               ErrorCode::kInvalid);
  EXPECT_ERROR(read_canonical(contents, 0, 9, ByteSpan(memory).first(8)),
               ErrorCode::kInvalid);
}

TEST(ContentsTest, AFileThatIsTooShortIsCorruptHoweverItIsRead) {
  for (const std::array<int64_t, 2> strides :
       {std::array<int64_t, 2>{4, 16}, std::array<int64_t, 2>{16, 4}}) {
    Matrix matrix(4, 4, strides);
    matrix.contents->sources = {std::make_shared<MemorySource>("file", Bytes(63))};
    Bytes memory(64);
    EXPECT_ERROR(read_canonical(*matrix.contents, 0, 0, memory), ErrorCode::kCorrupt);
  }
}

}  // namespace
}  // namespace holdfast
