#include "holdfast/state/box.h"

#include <gtest/gtest.h>

namespace holdfast {
namespace {

TEST(BoxTest, ScalarHasOneElementAndNoDimensions) {
  EXPECT_EQ(Box().elements(), 1);
  EXPECT_EQ(Shape().elements(), 1);
  EXPECT_FALSE(Box().empty());
  EXPECT_TRUE(overlap(Box(), Box()));
}

TEST(BoxTest, ExtentsBeyondTwoToThe31Work) {
  const Box big{{0, int64_t{1} << 40}};
  const auto common = intersect(big, Box{{int64_t{1} << 33, int64_t{1} << 41}});
  ASSERT_TRUE(common);
  EXPECT_EQ(common->elements(), (int64_t{1} << 40) - (int64_t{1} << 33));
}

TEST(BoxTest, RefusesNegativeExtentsNineDimensionsAndOverflow) {
  const Extent bad{-1, 2};
  EXPECT_FALSE(Box::create({&bad, 1}).ok());
  const std::vector<int64_t> nine(9, 1);
  EXPECT_FALSE(Shape::create(nine).ok());
  const std::vector<int64_t> huge(3, int64_t{1} << 30);
  EXPECT_FALSE(Shape::create(huge).ok());
  const std::vector<int64_t> hidden{int64_t{1} << 40, int64_t{1} << 40, 0};
  EXPECT_FALSE(Shape::create(hidden).ok());
}

// Compares every flat range of a small box with a count of elements one by one.
TEST(BoxTest, FlatRangesDecomposeIntoAtMost2nMinus1BoxesInOrder) {
  const Box box{{1, 3}, {2, 5}, {0, 4}};
  const int64_t n = box.elements();
  for (int64_t first = 0; first <= n; ++first) {
    for (int64_t last = first; last <= n; ++last) {
      const std::vector<Box> parts = flat_range(box, first, last);
      EXPECT_LE(parts.size(), 5u);
      std::vector<int64_t> seen;
      for (const Box& part : parts) {
        for (int64_t a = part[0].lo; a < part[0].hi; ++a)
          for (int64_t b = part[1].lo; b < part[1].hi; ++b)
            for (int64_t c = part[2].lo; c < part[2].hi; ++c)
              seen.push_back(((a - 1) * 3 + (b - 2)) * 4 + c);
      }
      ASSERT_EQ(static_cast<int64_t>(seen.size()), last - first);
      for (size_t i = 0; i < seen.size(); ++i) {
        ASSERT_EQ(seen[i], first + static_cast<int64_t>(i));
      }
    }
  }
}

TEST(BoxTest, SubtractLeavesDisjointBoxesThatFillTheRest) {
  const Box outer{{0, 5}, {0, 6}};
  const Box inner{{1, 3}, {2, 6}};
  int64_t rest = 0;
  for (const Box& part : subtract(outer, inner)) {
    EXPECT_FALSE(overlap(part, inner));
    rest += part.elements();
  }
  EXPECT_EQ(rest + inner.elements(), outer.elements());
}

}  // namespace
}  // namespace holdfast
