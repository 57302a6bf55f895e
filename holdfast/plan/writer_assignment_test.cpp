#include "holdfast/plan/writer_assignment.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "holdfast/plan/plan_testing.h"
#include "holdfast/state/layout_testing.h"

namespace holdfast {
namespace {

using namespace tests;

RC_GTEST_PROP(WritersTest, EveryElementIsInOneFileOfARankThatHoldsIt, (uint64_t seed)) {
  Dice dice(seed);
  const Topology topology = random_topology(dice);
  const std::vector<Tensor> tensors = random_tensors(dice);
  const Collection ranks =
      RandomLayout(dice, tensors, random_holders(dice, topology)).complete();
  const Collection files = assign_writers(ranks, topology).value();

  std::map<std::pair<TensorId, int64_t>, std::vector<HolderId>> having, writing;
  const auto collect = [&](const Collection& from, auto& into) {
    for_each_piece(from, [&](TensorId t, HolderId h, const Box& box, const Map& map) {
      for_each_element(from.tensor(t), box, map, [&](int64_t element, int64_t) {
        into[{t, element}].push_back(h);
      });
    });
  };
  collect(ranks, having);
  collect(files, writing);
  RC_ASSERT(writing.size() == having.size());
  for (const auto& [element, writers] : writing) {
    RC_ASSERT(writers.size() == 1u);
    RC_ASSERT(std::ranges::count(having[element], writers[0]) == 1);
  }
  // A save is a plan from ranks to files. Carrying it out must give the files their
  // bytes.
  const std::vector<Memory> values = random_values(dice, tensors);
  const Plan made = plan(ranks, files, topology, {.forwarding = false}).value();
  RC_ASSERT(holds(files, carry_out(made, ranks, files, fill(ranks, values)), values));
}

TEST(WritersTest, ATensorWithoutElementsIsInAFileByName) {
  const std::vector<Tensor> tensors{{.name = "empty", .shape = {0, 7}}};
  LayoutBuilder builder(tensors, make_devices(1, 2));
  builder.add(0, Box::whole(tensors[0].shape), 1, 0);
  const Collection ranks =
      Collection::create(tensors, std::move(builder).build().value()).value();
  const Collection files = assign_writers(ranks, Topology::uniform(1)).value();
  ASSERT_EQ(files.layout().slices(0).size(), 1u);
  EXPECT_EQ(files.layout().holder(0), 1u);
}

TEST(WritersTest, ReplicasShareTheWritingEvenly) {
  std::vector<Tensor> tensors;
  for (int t = 0; t < 7; ++t) {
    tensors.push_back({.name = fmt::format("t{}", t), .shape = {999, 1000 + t}});
  }
  LayoutBuilder builder(tensors, make_devices(1, 4));
  for (TensorId t = 0; t < tensors.size(); ++t) {
    for (HolderId h = 0; h < 4; ++h) {
      builder.add(t, Box::whole(tensors[t].shape), h, int64_t{t} << 32);
    }
  }
  const Collection ranks =
      Collection::create(tensors, std::move(builder).build().value()).value();
  const Collection files = assign_writers(ranks, Topology::uniform(1)).value();
  for (const int64_t bytes : files.bytes_held()) {
    EXPECT_LE(std::abs(bytes - ranks.bytes() / 4), 32 << 10);
  }
  EXPECT_EQ(files.layout().holders()[2].name, "device-2.file");
}

TEST(WritersTest, AnIncompleteStateIsRefusedWithTensorAndBox) {
  const std::vector<Tensor> tensors{{.name = "w", .shape = {4, 2}}};
  LayoutBuilder builder(tensors, make_devices(1, 1));
  builder.add(0, Box{{0, 3}, {0, 2}}, 0, 0);
  const Collection ranks =
      Collection::create(tensors, std::move(builder).build().value()).value();
  const auto files = assign_writers(ranks, Topology::uniform(1));
  ASSERT_FALSE(files.ok());
  EXPECT_EQ(files.error().message(), "w: box [3:4, 0:2] has no holder");
}

}  // namespace
}  // namespace holdfast
