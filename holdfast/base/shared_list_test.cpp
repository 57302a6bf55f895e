#include "holdfast/base/shared_list.h"

#include <gtest/gtest.h>

namespace holdfast {
namespace {

// An item that counts how often items are compared.
struct Counted {
  int value = 0;
  friend bool operator==(const Counted& a, const Counted& b) {
    ++compared;
    return a.value == b.value;
  }
  static inline int compared = 0;
};

TEST(SharedList, CopiesAreEqualWithoutALookAtTheirItems) {
  const SharedList<Counted> list(std::vector<Counted>{{1}, {2}});
  const SharedList<Counted> copy = list;
  Counted::compared = 0;
  EXPECT_TRUE(copy == list);
  EXPECT_EQ(Counted::compared, 0);
  EXPECT_TRUE(SharedList<Counted>(std::vector<Counted>{{1}, {2}}) == list);
  EXPECT_GT(Counted::compared, 0);
  EXPECT_FALSE(SharedList<Counted>(std::vector<Counted>{{1}, {3}}) == list);
}

TEST(SharedList, AnEditIsNotSeenInCopies) {
  SharedList<int> list(std::vector<int>{1, 2});
  const SharedList<int> copy = list;
  list.edit().push_back(3);
  EXPECT_EQ(copy.size(), 2u);
  EXPECT_EQ(list.size(), 3u);
  EXPECT_EQ(list[2], 3);
  const int* const own = list.data();
  list.edit()[0] = 7;  // nobody shares it
  EXPECT_EQ(list.data(), own);
  EXPECT_EQ(copy[0], 1);
}

TEST(SharedList, OneThatWasNeverFilledIsAnEmptyOne) {
  SharedList<int> list;
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.begin(), list.end());
  EXPECT_TRUE(list == SharedList<int>(std::vector<int>()));
  list.edit().push_back(1);
  EXPECT_EQ(list.size(), 1u);
}

}  // namespace
}  // namespace holdfast
