// Tests of drawing as the original tool does, where tensors share bytes or are empty.
#include <gtest/gtest.h>

#include "holdfast/base/testing.h"
#include "holdfast/contents/contents_testing.h"
#include "holdfast/corruption/make_plan.h"

namespace holdfast::tests::legacy_sampling_test {
namespace {

// Two tensors with the same bytes, such as tied weights.
Contents tied(int64_t count) {
  std::vector<Tensor> tensors{{.name = "a", .dtype = Dtype::kF32, .shape = {count}},
                              {.name = "b", .dtype = Dtype::kF32, .shape = {count}}};
  LayoutBuilder builder(tensors, {{.name = "memory0", .kind = HolderKind::kFile},
                                  {.name = "memory1", .kind = HolderKind::kFile}});
  builder.add(0, Box::whole({count}), 0, 0);
  builder.add(1, Box::whole({count}), 1, 0);
  Layout layout = std::move(builder).build().value();
  const auto source =
      std::make_shared<MemorySource>("memory", Bytes(static_cast<size_t>(4 * count)));
  return {.collection = Collection::create(std::move(tensors), layout).value(),
          .sources = {source, source},
          .objects = {},
          .metadata = {}};
}

TEST(LegacySamplingTest, ManyFlipsOfTiedWeightsAreDrawn) {
  const auto plan = make_plan(tied(4000), {.count = 2500, .sampling = Sampling::kLegacy});
  ASSERT_OK(plan);
  for (const PlannedFlip& flip : plan->flips) EXPECT_EQ(flip.tensor, "a");
}

TEST(LegacySamplingTest, AnEmptyTensorIsSaidToBeEmpty) {
  const Contents contents =
      random_contents({{.name = "model.empty", .dtype = Dtype::kF32, .shape = {0, 3}},
                       {.name = "model.w", .dtype = Dtype::kF32, .shape = {4}}});
  const auto refused = make_plan(contents, {.sites = {.tensors = {"model.empty"}}});
  EXPECT_ERROR(refused, ErrorCode::kNotFound);
  EXPECT_NE(message_of(refused).find("has no elements"), std::string::npos);
  EXPECT_OK(make_plan(contents, {.sites = {.tensors = {"model"}}}));
}

}  // namespace
}  // namespace holdfast::tests::legacy_sampling_test
