#include "holdfast/state/strided.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "holdfast/state/strided_testing.h"

namespace holdfast::strided_test {
namespace {

using strided_testing::for_each_index;
using strided_testing::Index;
using strided_testing::locate;
using strided_testing::naive_copy;
using strided_testing::pick;
using strided_testing::pick_box;
using strided_testing::pick_map;
using strided_testing::pick_shape;
using strided_testing::random_bytes;
using strided_testing::StoredMap;
using Bytes = std::vector<std::byte>;

int64_t pick_element() { return *rc::gen::element<int64_t>(1, 2, 3, 4, 8, 16); }

StridedCopy plan_dense(const Shape& shape, const Box& box) {
  const Box whole = Box::whole(shape);
  return plan_copy(Map::dense(whole, 4).narrowed(whole, box), Map::dense(box, 4),
                   box.shape(), 4);
}

RC_GTEST_PROP(StridedProperty, CopiesEqualElementByElementLoops, ()) {
  const Shape shape = pick_shape(5, 5, 12);
  const int64_t bytes = pick_element();
  const StoredMap from = pick_map(shape, bytes), to = pick_map(shape, bytes);
  const Bytes source = random_bytes(from.size, 1);
  Bytes target = random_bytes(to.size, 2), want = target;
  naive_copy(from.map, to.map, shape, bytes, source.data(), want.data());
  const StridedCopy copy = plan_copy(from.map, to.map, shape, bytes);
  run_copy(copy, source, target);
  RC_ASSERT(target == want);
  RC_ASSERT(copy.runs() * copy.run == shape.elements() * bytes);
}

RC_GTEST_PROP(StridedProperty, CopiesReadOneElementForAWholeDimensionOfStrideZero, ()) {
  const Shape shape = pick_shape(3, 5, 8);
  const int64_t bytes = pick_element();
  StoredMap from = pick_map(shape, bytes);
  for (int k = 0; k < shape.rank(); ++k) {
    auto& stride = from.map.strides[static_cast<size_t>(k)];
    if (stride > 0 && pick(0, 1) == 0) stride = 0;
  }
  const StoredMap to = pick_map(shape, bytes);
  const Bytes source = random_bytes(from.size, 1);
  Bytes target = random_bytes(to.size, 2), want = target;
  naive_copy(from.map, to.map, shape, bytes, source.data(), want.data());
  run_copy(plan_copy(from.map, to.map, shape, bytes), source, target);
  RC_ASSERT(target == want);
}

// Copies a box of one holder into the same box inside another holder's larger box.
RC_GTEST_PROP(StridedProperty, NarrowedMapsFindTheSameElements, ()) {
  const Shape shape = pick_shape(4, 6, 9);
  const int64_t bytes = pick_element();
  const Box outer = pick_box(shape);
  Box inner = outer;
  for (int k = 0; k < inner.rank(); ++k) {
    const int64_t lo = pick(outer[k].lo, outer[k].hi);
    inner = inner.with(k, {lo, pick(lo, outer[k].hi)});
  }
  const StoredMap stored = pick_map(outer.shape(), bytes);
  const Map narrow = stored.map.narrowed(outer, inner);
  RC_ASSERT(narrow.offset == stored.map.offset_of(outer, inner));
  for_each_index(inner.shape(), [&](const Index& index) {
    Index in_outer = index;
    for (int k = 0; k < inner.rank(); ++k) {
      in_outer[static_cast<size_t>(k)] += inner[k].lo - outer[k].lo;
    }
    RC_ASSERT(locate(narrow, index) == locate(stored.map, in_outer));
  });
}

RC_GTEST_PROP(StridedProperty, RangeIsExactlyWhatElementsTouch, ()) {
  const Shape shape = pick_shape(4, 5, 6);
  const int64_t bytes = pick_element();
  const StoredMap stored = pick_map(shape, bytes);
  const ByteRange range = range_of(stored.map, shape, bytes);
  if (shape.elements() == 0) RC_SUCCEED("nothing touched");
  int64_t first = std::numeric_limits<int64_t>::max(), last = -1;
  for_each_index(shape, [&](const Index& index) {
    first = std::min(first, locate(stored.map, index));
    last = std::max(last, locate(stored.map, index) + bytes);
  });
  RC_ASSERT(range.first == first);
  RC_ASSERT(range.last == last);
}

bool shares_a_byte(const Map& map, const Shape& shape, int64_t bytes) {
  std::set<int64_t> taken;
  bool shared = false;
  for_each_index(shape, [&](const Index& index) {
    for (int64_t b = 0; b < bytes; ++b) {
      shared |= !taken.insert(locate(map, index) + b).second;
    }
  });
  return shared;
}

RC_GTEST_PROP(StridedProperty, InjectiveMapsShareNoByte, ()) {
  const Shape shape = pick_shape(3, 4, 5);
  const int64_t bytes = pick(1, 4);
  Map map;
  for (int k = 0; k < shape.rank(); ++k) {
    map.strides[static_cast<size_t>(k)] = pick(-20, 20);
  }
  const bool injective = is_injective(map, shape, bytes);
  RC_CLASSIFY(injective, "injective");
  RC_ASSERT(!injective || !shares_a_byte(map, shape, bytes));
}

RC_GTEST_PROP(StridedProperty, NestedStridesAreInjective, ()) {
  const Shape shape = pick_shape(4, 4, 5);
  const int64_t bytes = pick_element();
  RC_ASSERT(is_injective(pick_map(shape, bytes).map, shape, bytes));
}

TEST(StridedTest, MapsThatPutElementsOnOneByteAreNotInjective) {
  EXPECT_FALSE(is_injective({.strides = {0}}, {2}, 4));
  EXPECT_FALSE(is_injective({.strides = {3}}, {2}, 4));
  EXPECT_FALSE(is_injective({.strides = {-3}}, {2}, 4));
  EXPECT_FALSE(is_injective({.strides = {8, 4}}, {2, 3}, 4));
  EXPECT_FALSE(is_injective({.strides = {4, 4}}, {2, 2}, 4));
  EXPECT_FALSE(is_injective({.strides = {8, 12}}, {4, 2}, 4)) << "does not nest";
}

TEST(StridedTest, StridesOfDimensionsOfOneDoNotMatter) {
  EXPECT_TRUE(is_injective({.strides = {0, 4, 1}}, {1, 3, 1}, 4));
  EXPECT_TRUE(is_injective({}, {}, 4));
  EXPECT_TRUE(is_injective({}, {1, 1}, 4));
  EXPECT_TRUE(is_injective({}, {0, 5}, 4)) << "an empty box shares nothing";
}

TEST(StridedTest, AWholeDenseTensorIsOneRun) {
  const Shape shape{3, 1, 5, 7};
  const StridedCopy copy = plan_dense(shape, Box::whole(shape));
  EXPECT_EQ(copy.loops, 0);
  EXPECT_EQ(copy.runs(), 1);
  EXPECT_EQ(copy.run, 3 * 5 * 7 * 4);
}

TEST(StridedTest, AScalarIsOneRunOfOneElement) {
  const StridedCopy copy = plan_copy({.offset = 8}, {.offset = 4}, {}, 8);
  EXPECT_EQ(copy.runs(), 1);
  EXPECT_EQ(copy.run, 8);
  EXPECT_EQ(copy.from, 8);
  EXPECT_EQ(copy.to, 4);
}

TEST(StridedTest, ARowCutIsOneRunAndAColumnCutOneARow) {
  const StridedCopy rows = plan_dense({8, 6}, Box{{2, 5}, {0, 6}});
  EXPECT_EQ(rows.runs(), 1);
  EXPECT_EQ(rows.run, 3 * 6 * 4);
  EXPECT_EQ(rows.from, 2 * 6 * 4);

  const StridedCopy columns = plan_dense({8, 6}, Box{{0, 8}, {1, 3}});
  EXPECT_EQ(columns.loops, 1);
  EXPECT_EQ(columns.runs(), 8);
  EXPECT_EQ(columns.run, 2 * 4);
  EXPECT_EQ(columns.from, 4);
}

TEST(StridedTest, LoopsThatStepAlikeAreMergedAcrossDimensionsOfOne) {
  const StridedCopy copy =
      plan_dense({4, 1, 5, 6}, Box{{0, 4}, {0, 1}, {0, 5}, {0, 3}});
  EXPECT_EQ(copy.loops, 1);
  EXPECT_EQ(copy.runs(), 20);
  EXPECT_EQ(copy.run, 3 * 4);
}

TEST(StridedTest, EightDimensionsThatCannotBeFoldedAreEightLoops) {
  const Shape shape{2, 2, 2, 2, 2, 2, 2, 2};
  Map reversed;
  for (size_t k = 0; k < 8; ++k) reversed.strides[k] = int64_t{1} << k;
  const Map dense = Map::dense(Box::whole(shape), 1);
  const StridedCopy copy = plan_copy(dense, reversed, shape, 1);
  EXPECT_EQ(copy.loops, 8);
  EXPECT_EQ(copy.runs(), 256);
  const Bytes source = random_bytes(256, 1);
  Bytes target(256), want(256);
  naive_copy(dense, reversed, shape, 1, source.data(), want.data());
  run_copy(copy, source, target);
  EXPECT_EQ(target, want);
}

TEST(StridedTest, AnEmptyBoxTouchesNothing) {
  const StridedCopy copy = plan_copy({.offset = 99}, {.offset = 99}, {3, 0}, 4);
  EXPECT_EQ(copy.runs(), 0);
  EXPECT_EQ(copy.run, 0);
  run_copy(copy, {}, {});
  const ByteRange range = range_of({.offset = 5, .strides = {8, 4}}, {3, 0}, 4);
  EXPECT_EQ(range.first, range.last);
}

TEST(StridedDeathTest, LeavingEitherHolderAborts) {
  const Shape shape{4};
  const Map dense{.strides = {4}}, late{.offset = 1, .strides = {4}};
  const Map backwards{.offset = 8, .strides = {-4}};
  Bytes a(16), b(16);
  EXPECT_DEATH(run_copy(plan_copy(late, dense, shape, 4), a, b), "bytes 1 to 17 of 16");
  EXPECT_DEATH(run_copy(plan_copy(dense, late, shape, 4), a, b), "bytes 1 to 17 of 16");
  EXPECT_DEATH(run_copy(plan_copy(backwards, dense, shape, 4), a, b),
               "bytes -4 to 12 of 16");
}

}  // namespace
}  // namespace holdfast::strided_test
