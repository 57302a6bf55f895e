#include "holdfast/models/resize.h"

#include <gtest/gtest.h>

#include "holdfast/models/transformers.h"
#include "holdfast/plan/plan_testing.h"

namespace holdfast {
namespace {

TEST(ResizeTest, EgressOfRealChangesIsWithinTwoPercentOfTheOptimum) {
  const Model model = make_gpt({.layers = 12,
                                .hidden = 1024,
                                .heads = 16,
                                .vocabulary = 50257,
                                .positions = 1024});
  const std::pair<const char*, const char*> changes[] = {
      {"tp=2,pp=2,dp=4", "tp=4,pp=2,dp=2"}, {"tp=4,pp=2,dp=2", "tp=2,pp=4,dp=2"},
      {"tp=2,pp=1,dp=3", "tp=2,pp=1,dp=8"}, {"tp=1,pp=4,dp=4,zero=1", "tp=8,pp=2,dp=1"},
      {"dp=16,zero=3", "tp=4,dp=4,zero=3"}, {"tp=8,pp=2,dp=1", "tp=3,pp=2,dp=2"},
  };
  for (const auto& [from, to] : changes) {
    const Resize resize = plan_resize({.model = model,
                                       .from = parse_parallel(from).value(),
                                       .to = parse_parallel(to).value(),
                                       .hosts = HostGrid{4, 4}})
                              .value();
    const Figures& figures = resize.plan.figures;
    const int64_t slack = 65536 * 1'000'000'000ll / resize.topology.memory_bandwidth;
    EXPECT_LE(figures.egress_ns * 100, figures.egress_bound_ns * 102 + slack * 100)
        << from << " -> " << to;
    EXPECT_GT(figures.egress_bound_ns, 0);
  }
}

// Halving the replicas of 16,384 ranks needs no byte to move, if the ranks that stay have
// what they need. In order, most would need something else.
TEST(ResizeTest, SixteenThousandPositionsArePlaced) {
  const ResizeRequest request{
      .model = make_gpt(
          {.layers = 8, .hidden = 64, .heads = 8, .vocabulary = 1000, .positions = 32}),
      .from = parse_parallel("tp=8,pp=8,dp=256").value(),
      .to = parse_parallel("tp=8,pp=8,dp=128").value(),
      .training = find_training("weights").value(),
      .place = true};
  const Resize shrunk = plan_resize(request).value();
  EXPECT_EQ(shrunk.plan.figures.moved, 0);
  EXPECT_TRUE(shrunk.placement->exact);
  EXPECT_EQ(shrunk.placement->released.size(), 8192u);
  ResizeRequest other = request;
  std::swap(other.from, other.to);
  const Resize grown = plan_resize(other).value();
  EXPECT_EQ(grown.placement->device_of_position.size(), 16384u);
  EXPECT_EQ(grown.plan.figures.moved, grown.plan.figures.needed / 2);
}

// A plan must be the same on every rank, with every compiler and on every CPU. These
// numbers come from one machine and one compiler; every other one that runs the tests
// must find the same.
TEST(ResizeTest, IsTheSameWithEveryCompilerAndOnEveryMachine) {
  const auto hex = [](const char* from, const char* to) {
    ResizeRequest request{.model = make_gpt({.layers = 6,
                                             .hidden = 768,
                                             .heads = 12,
                                             .vocabulary = 50257,
                                             .positions = 64}),
                          .from = parse_parallel(from).value(),
                          .to = parse_parallel(to).value(),
                          .place = true};
    return fingerprint(plan_resize(request).value().plan).hex();
  };
  EXPECT_EQ(hex("tp=4,pp=2,dp=2", "tp=2,pp=3,dp=3"),
            "17fe37c4f9ef63da08c1635e69a3f084");
  EXPECT_EQ(hex("dp=6,zero=3,shard=layer", "tp=2,pp=3,dp=4,zero=1"),
            "344f7c896ca5cc8ecab2566bce5866fe");
}

}  // namespace
}  // namespace holdfast
