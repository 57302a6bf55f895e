#include "holdfast/recovery/buddies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace holdfast {
namespace {

TEST(Buddies, TheNextRankIsTheBuddyOnOneHostAndWithOneRankPerHost) {
  EXPECT_EQ(choose_buddies(std::vector{7, 7, 7}), (std::vector{1, 2, 0}));
  EXPECT_EQ(choose_buddies(std::vector{0, 1, 2}), (std::vector{1, 2, 0}));
  EXPECT_EQ(choose_buddies(std::vector{5}), (std::vector{0}));
}

TEST(Buddies, RanksOfTwoEqualHostsKeepEachOthersRecords) {
  EXPECT_EQ(choose_buddies(std::vector{0, 0, 1, 1}), (std::vector{2, 3, 0, 1}));
  EXPECT_EQ(choose_buddies(std::vector{0, 1, 0, 1}), (std::vector{1, 0, 3, 2}));
}

// Tries all ways to put up to 6 ranks on up to 4 hosts.
TEST(Buddies, AreAPermutationWithAsManyOtherHostsAsPossible) {
  for (size_t size = 2; size <= 6; ++size) {
    for (int code = 0; code < 1 << (2 * size); ++code) {
      std::vector<int> hosts;
      std::map<int, size_t> ranks_on;
      for (size_t rank = 0; rank < size; ++rank) {
        hosts.push_back(code >> (2 * rank) & 3);
        ++ranks_on[hosts.back()];
      }
      const std::vector<int> buddies = choose_buddies(hosts);
      size_t same_host = 0, most = 0;
      for (const auto& [host, ranks] : ranks_on) most = std::max(most, ranks);
      for (size_t rank = 0; rank < size; ++rank) {
        ASSERT_NE(buddies[rank], static_cast<int>(rank));
        same_host += hosts[static_cast<size_t>(buddies[rank])] == hosts[rank];
      }
      // A host with more than half of the ranks has too few other ranks to go to.
      ASSERT_EQ(same_host, 2 * most > size ? 2 * most - size : 0);
      std::vector<int> sorted = buddies;
      std::ranges::sort(sorted);
      ASSERT_EQ(std::ranges::adjacent_find(sorted), sorted.end());
    }
  }
}

}  // namespace
}  // namespace holdfast
