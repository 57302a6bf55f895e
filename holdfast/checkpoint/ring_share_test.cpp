#include "holdfast/checkpoint/ring_share.h"

#include <gtest/gtest.h>

#include "holdfast/checkpoint/checkpoint_testing.h"

namespace holdfast::tests::ring_share_test {
namespace {

constexpr Duration kSoon = std::chrono::seconds(10);

TEST(RingShare, RanksOfOneMachineShareAQuarterOfIt) {
  MemoryEnv env(1);
  ASSERT_OK(env.create_folders("/proc"));
  ASSERT_OK(env.write_file("/proc/meminfo", bytes_of("MemAvailable:    4096 kB\n")));
  EXPECT_EQ(ring_share(env, 1), 1 << 20);
  EXPECT_EQ(ring_share(env, 8), 1 << 17);
}

TEST(RingShare, RanksAreCountedByTheStartOfTheirMachine) {
  MemoryEnv env(1);
  const std::vector<std::string> boots{"a", "b", "a", "a"};
  std::vector<int> counted(boots.size());
  run_ranks(env, static_cast<int>(boots.size()), [&](int r, Transport& transport) {
    const auto rank = static_cast<size_t>(r);
    const Identity self{.host = "the same", .boot = boots[rank], .pid = r};
    counted[rank] = ranks_here(env, &transport, self, kSoon).value();
  });
  EXPECT_EQ(counted, (std::vector<int>{3, 1, 3, 3}));
  EXPECT_EQ(ranks_here(env, nullptr, std::nullopt, kSoon).value(), 1);
}

// Ranks that do not know their boot id count as being on one machine.
TEST(RingShare, RanksThatDoNotKnowAreTogether) {
  MemoryEnv env(1);
  run_ranks(env, 2, [&](int, Transport& transport) {
    EXPECT_EQ(ranks_here(env, &transport, std::nullopt, kSoon).value(), 2);
  });
}

}  // namespace
}  // namespace holdfast::tests::ring_share_test
