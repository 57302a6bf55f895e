#include "holdfast/plan/cost.h"

#include <gtest/gtest.h>

#include "holdfast/base/testing.h"

namespace holdfast {
namespace {

constexpr int64_t kBytes = 1'000'000;

Collection on_devices(std::initializer_list<std::pair<HolderId, int64_t>> pieces) {
  static const std::vector<Tensor> tensors{
      {.name = "w", .dtype = Dtype::kU8, .shape = {1000, 1000}}};
  LayoutBuilder builder(tensors, make_devices(2, 2));
  for (const auto& [holder, offset] : pieces) {
    builder.add(0, Box::whole(tensors[0].shape), holder, offset);
  }
  return Collection::create(tensors, std::move(builder).build().value()).value();
}

Cost cost(const Collection& source, const Collection& target, const char* speeds) {
  const Plan made = plan(source, target, Topology::uniform(2)).value();
  return cost_of(made, target, parse_speeds(speeds).value());
}

TEST(CostTest, ABoxForAllDevicesCrossesHostsOnceAndIsPassedOnThere) {
  const Collection source = on_devices({{0, 0}});
  const Collection target = on_devices({{0, 0}, {1, 0}, {2, 0}, {3, 0}});
  const Cost seen = cost(source, target, "device=2,adapter=1,host=0.5,latency=10,move=3");
  const auto megabyte = static_cast<double>(kBytes);
  EXPECT_DOUBLE_EQ(seen.each[size_t(Link::kDevice)], megabyte / 2e9);
  EXPECT_DOUBLE_EQ(seen.each[size_t(Link::kAdapter)], megabyte / 1e9);
  EXPECT_DOUBLE_EQ(seen.each[size_t(Link::kHost)], megabyte / 5e8);
  EXPECT_EQ(seen.each[size_t(Link::kCopy)], 0);
  EXPECT_EQ(seen.busiest, Link::kHost);
  EXPECT_EQ(seen.depth, 3);  // each device gets it from the one before
  EXPECT_DOUBLE_EQ(seen.seconds, megabyte / 5e8 + 30e-6);
  EXPECT_DOUBLE_EQ(seen.least, megabyte / 5e8);
}

TEST(CostTest, TheSourcesOfTwoReplicasShareWhatCrosses) {
  const Collection source = on_devices({{0, 0}, {1, 0}});
  const Collection target = on_devices({{2, 0}});
  const Cost seen = cost(source, target, "adapter=1");
  // The receiver's own adapter has to take all of it.
  EXPECT_DOUBLE_EQ(seen.seconds, static_cast<double>(kBytes) / 1e9);
  EXPECT_EQ(seen.busiest, Link::kAdapter);
}

TEST(CostTest, BytesThatMoveInsideADeviceLoadNothingElse) {
  const Cost seen =
      cost(on_devices({{0, 0}}), on_devices({{0, kBytes}}), "device=1,host=1,copy=4,move=5");
  EXPECT_DOUBLE_EQ(seen.seconds, static_cast<double>(kBytes) / 4e9);
  EXPECT_EQ(seen.busiest, Link::kCopy);
  EXPECT_EQ(seen.depth, 1);
  EXPECT_EQ(seen.least, 0);
}

TEST(CostTest, WhatIsInPlaceTakesNoTime) {
  const Cost seen = cost(on_devices({{0, 0}}), on_devices({{0, 0}}), "host=1,latency=9");
  EXPECT_EQ(seen.seconds, 0);
  EXPECT_EQ(seen.busiest, Link::kHost);
}

TEST(CostTest, SpeedsThatCannotBeReadAreNamed) {
  EXPECT_EQ(parse_speeds("host=400").value().of(Link::kHost), 400'000'000'000);
  EXPECT_EQ(parse_speeds("host=12.5").value().of(Link::kHost), 12'500'000'000);
  for (const char* text :
       {"host", "host=", "host=0", "host=-1", "host=1x", "host=inf", "host=nan",
        "host=1e7", "hosts=1", "moves=1", ",", "host=1,host=2", "=1"}) {
    SCOPED_TRACE(text);
    EXPECT_ERROR(parse_speeds(text), ErrorCode::kInvalid);
  }
}

}  // namespace
}  // namespace holdfast
