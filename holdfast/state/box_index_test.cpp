#include "holdfast/state/box_index.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "holdfast/state/layout_testing.h"

namespace holdfast {
namespace {

using namespace tests;

std::vector<Box> random_boxes(Dice& dice, size_t count) {
  const int rank = static_cast<int>(dice.below(4));
  std::vector<Box> boxes;
  while (boxes.size() < count) {
    std::vector<Extent> extents(static_cast<size_t>(rank));
    for (Extent& extent : extents) {
      extent.lo = dice.below(12);
      extent.hi = extent.lo + dice.below(6);
    }
    boxes.push_back(Box::create(extents).value());
  }
  return boxes;
}

RC_GTEST_PROP(BoxIndexTest, FindsWhatLookingAtEveryBoxFinds, (uint64_t seed)) {
  Dice dice(seed);
  const std::vector<Box> boxes =
      random_boxes(dice, static_cast<size_t>(dice.below(60)));
  if (boxes.empty()) return;
  const BoxIndex index(boxes);
  for (const Box& query : boxes) {
    std::vector<uint32_t> found, wanted;
    index.for_each_hit(query, [&](uint32_t hit) { found.push_back(hit); });
    for (uint32_t i = 0; i < boxes.size(); ++i) {
      if (!boxes[i].empty() && intersect(boxes[i], query)) wanted.push_back(i);
    }
    RC_ASSERT(found == wanted);
  }
}

RC_GTEST_PROP(BoxIndexTest, CellsAreDisjointFillTheUnionAndKnowTheirOwners,
              (uint64_t seed)) {
  Dice dice(seed);
  const std::vector<Box> boxes =
      random_boxes(dice, static_cast<size_t>(1 + dice.below(12)));
  const std::vector<Cell> cells = refine(boxes).value();
  int64_t in_boxes = 0, in_cells = 0;
  for (const Box& box : boxes) in_boxes += box.empty() ? 0 : box.elements();
  for (size_t a = 0; a < cells.size(); ++a) {
    in_cells += cells[a].box.elements() * static_cast<int64_t>(cells[a].owners.size());
    for (size_t b = a + 1; b < cells.size(); ++b) {
      RC_ASSERT(!overlap(cells[a].box, cells[b].box));
    }
    for (const uint32_t owner : cells[a].owners) {
      RC_ASSERT(boxes[owner].contains(cells[a].box));
    }
  }
  RC_ASSERT(in_boxes == in_cells);
}

TEST(BoxIndexTest, DisjointBoxesAreTheirOwnCells) {
  const std::vector<Box> boxes{Box{{0, 2}, {0, 4}}, Box{{2, 4}, {0, 1}},
                               Box{{2, 4}, {1, 4}}};
  EXPECT_EQ(refine(boxes).value().size(), 3u);
}

// A staircase of boxes must be cut in halves, not step by step from one end: neither
// the stack nor the time may grow with the square of its length.
TEST(BoxIndexTest, AStaircaseOfManyBoxesIsRefined) {
  constexpr int64_t kCount = 30'000;
  std::vector<Box> boxes;
  for (int64_t i = 0; i < kCount; ++i) boxes.push_back(Box{{i, i + 2}});
  EXPECT_EQ(refine(boxes).value().size(), static_cast<size_t>(kCount + 1));
}

TEST(BoxIndexTest, StripesAlongEveryAxisAreRefusedBeforeTheyFillTheMemory) {
  std::vector<Box> boxes;
  const Shape shape{16, 16, 16, 16, 16, 16, 16, 16};
  for (int k = 0; k < 8; ++k) {
    for (int64_t i = 0; i < 16; ++i) {
      boxes.push_back(Box::whole(shape).with(k, {i, i + 1}));
    }
  }
  const auto cells = refine(boxes);
  ASSERT_FALSE(cells.ok());
  EXPECT_EQ(cells.error().code(), ErrorCode::kUnsupported);
}

TEST(BoxIndexTest, AGapIsFoundAndNamed) {
  const std::vector<Box> boxes{Box{{0, 4}, {0, 2}}, Box{{0, 1}, {2, 6}}};
  EXPECT_EQ(first_gap(Box{{0, 4}, {0, 6}}, boxes), (Box{{1, 4}, {2, 6}}));
  EXPECT_EQ(first_gap(Box{{0, 4}, {0, 2}}, boxes), std::nullopt);
}

}  // namespace
}  // namespace holdfast
