#include "holdfast/models/parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace holdfast::parallel_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(std::string_view text) {
  const auto parallel = parse_parallel(text);
  EXPECT_FALSE(parallel.ok()) << text;
  if (parallel.ok()) return "";
  EXPECT_EQ(parallel.error().code(), ErrorCode::kInvalid);
  return parallel.error().message();
}

TEST(ParallelTest, ReadsWhatPeopleWrite) {
  const Parallel p = parse_parallel("tp=4,pp=2,dp=3,zero=1,world=24").value();
  EXPECT_EQ(p.tp, 4);
  EXPECT_EQ(p.pp, 2);
  EXPECT_EQ(p.dp, 3);
  EXPECT_EQ(p.zero, 1);
  EXPECT_EQ(p.positions(), 24);
  EXPECT_EQ(parse_parallel("dp=8")->tp, 1);
}

TEST(ParallelTest, WhatIsPrintedReadsBackTheSame) {
  for (const char* text : {
           "tp=1,pp=1,dp=1",
           "tp=4,pp=2,dp=8,ep=4,etp=2,zero=3,vpp=2,shard=rows,qkv=blocked,split=chunk,"
           "layers=1/2/3/0,world=64",
           "tp=1,pp=3,dp=1,shard=stage,qkv=megatron0,stages=0-3+8/4-7+9/",
           "tp=1,pp=2,dp=2,shard=layer,qkv=megatron1,stages=/5+3+0-2+4",
       }) {
    EXPECT_EQ(to_string(parse_parallel(text).value()), text);
  }
}

TEST(ParallelTest, UnknownAndRepeatedKeysAreNamed) {
  EXPECT_THAT(refusal("tp=1,cp=2"), HasSubstr("\"cp\""));
  EXPECT_THAT(refusal("tp=1,tp=1"), HasSubstr("\"tp\" is given twice"));
  EXPECT_THAT(refusal("tp"), HasSubstr("\"tp\"; expected key=value"));
  EXPECT_THAT(refusal(""), HasSubstr("expected key=value"));
  EXPECT_THAT(refusal("tp=1,"), HasSubstr("expected key=value"));
  EXPECT_THAT(refusal("tp=1, pp=2"), HasSubstr("\" pp\""));
}

TEST(ParallelTest, NumbersOutOfRangeAreNamed) {
  for (const char* value :
       {"0", "-1", "1.5", "", "+2", "x", "2x", "1048577", "99999999999999999999"}) {
    for (const char* key : {"tp", "pp", "dp", "ep", "etp", "vpp", "world"}) {
      EXPECT_THAT(refusal(fmt::format("{}={}", key, value)),
                  HasSubstr(fmt::format("{}={}", key, value)));
    }
  }
  EXPECT_THAT(refusal("zero=4"), HasSubstr("zero=4"));
  EXPECT_THAT(refusal("shard=page"), HasSubstr("shard=page"));
  EXPECT_THAT(refusal("qkv=packed"), HasSubstr("interleaved, blocked"));
  EXPECT_THAT(refusal("split=odd"), HasSubstr("even, chunk"));
  EXPECT_THAT(refusal("tp=1048576,pp=1048576,dp=1048576"),
              HasSubstr("at most 1048576"));
}

TEST(ParallelTest, AWorldThatDiffersFromTheProductIsRefusedWithBothNumbers) {
  EXPECT_EQ(refusal("tp=4,pp=2,dp=1,world=16"),
            "parallel: world=16, but tp x pp x dp = 4 x 2 x 1 = 8");
}

TEST(ParallelTest, ExpertsMustDivideTheStage) {
  EXPECT_THAT(refusal("tp=2,dp=2,ep=3"), HasSubstr("ep x etp = 3 x 2"));
  EXPECT_THAT(refusal("tp=2,dp=4,ep=8"), HasSubstr("etp is tp unless set"));
  EXPECT_TRUE(parse_parallel("tp=2,dp=4,ep=8,etp=1").ok());
  EXPECT_TRUE(parse_parallel("tp=1,dp=8,ep=2,etp=4").ok());
  EXPECT_THAT(refusal("ep=1048576,etp=1048576"), HasSubstr("does not divide"));
}

TEST(ParallelTest, StageListsMustFitThePipeline) {
  EXPECT_THAT(refusal("pp=2,layers=1/2/3"),
              HasSubstr("3 counts; expected pp x vpp = 2"));
  EXPECT_THAT(refusal("pp=2,stages=0/1/2"), HasSubstr("3 stages; expected pp = 2"));
  EXPECT_THAT(refusal("pp=2,vpp=2,stages=0/1"), HasSubstr("vpp=2"));
  EXPECT_THAT(refusal("pp=2,stages=0/1,layers=1/1"), HasSubstr("both"));
  EXPECT_THAT(refusal("pp=2,stages=3-1/0"), HasSubstr("3-1"));
  EXPECT_THAT(refusal("stages=0-1048575+0"), HasSubstr("more than 1048576 layers"));
}

TEST(ParallelTest, SplitRulesDifferWhereTheyShould) {
  const auto sizes = [](int64_t n, int64_t parts, SplitRule rule) {
    std::vector<int64_t> result;
    int64_t at = 0;
    for (int64_t t = 0; t < parts; ++t) {
      const Extent part = split(n, t, parts, rule);
      EXPECT_EQ(part.lo, at);
      at = part.hi;
      result.push_back(part.size());
    }
    EXPECT_EQ(at, n);
    return result;
  };
  EXPECT_THAT(sizes(10, 4, SplitRule::kEven), ElementsAre(2, 3, 2, 3));
  EXPECT_THAT(sizes(10, 4, SplitRule::kChunk), ElementsAre(3, 3, 3, 1));
  EXPECT_THAT(sizes(5, 4, SplitRule::kChunk), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(sizes(2, 4, SplitRule::kEven), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(sizes(0, 3, SplitRule::kChunk), ElementsAre(0, 0, 0));
  sizes((int64_t{1} << 58) + 3, 1 << 20, SplitRule::kEven);
}

std::vector<int64_t> stages(std::string_view text, int64_t layers) {
  return stages_of_layers(parse_parallel(text).value(), layers).value();
}

TEST(ParallelTest, LayersGoEvenlyOverStagesUnlessTold) {
  EXPECT_THAT(stages("pp=2", 5), ElementsAre(0, 0, 1, 1, 1));
  std::array<int, 4> counts{};
  for (const int64_t stage : stages("pp=4", 30)) ++counts[static_cast<size_t>(stage)];
  EXPECT_THAT(counts, ElementsAre(7, 8, 7, 8));
  EXPECT_THAT(stages("pp=2,vpp=2", 8), ElementsAre(0, 0, 1, 1, 0, 0, 1, 1));
  EXPECT_THAT(stages("pp=3,layers=0/4/1", 5), ElementsAre(1, 1, 1, 1, 2));
  EXPECT_THAT(stages("pp=2,vpp=2,layers=1/2/1/1", 5), ElementsAre(0, 1, 1, 0, 1));
  EXPECT_THAT(stages("pp=2,stages=0+3-4/1-2", 5), ElementsAre(0, 1, 1, 0, 0));
}

TEST(ParallelTest, StageListsMustNameEveryLayerOnce) {
  const auto refused = [](std::string_view text, int64_t layers) {
    const auto result = stages_of_layers(parse_parallel(text).value(), layers);
    EXPECT_FALSE(result.ok()) << text;
    return result.ok() ? "" : result.error().message();
  };
  EXPECT_THAT(refused("pp=2,stages=0-1/3", 4), HasSubstr("does not name layer 2"));
  EXPECT_THAT(refused("pp=2,stages=0-2/2-3", 4), HasSubstr("layer 2 twice"));
  EXPECT_THAT(refused("pp=2,stages=0-2/3-4", 4), HasSubstr("names layer 4"));
  EXPECT_THAT(refused("pp=2,layers=2/1", 4), HasSubstr("add up to 3"));
  EXPECT_THAT(refused("pp=2,layers=2/3", 4), HasSubstr("more than 4"));
  EXPECT_THAT(refused("pp=4,vpp=2", 7), HasSubstr("4 x 2 is more than the model's 7"));
}

TEST(ParallelTest, CheckRefusesWhatAProgramPutInByHand) {
  EXPECT_FALSE(check({.tp = 0}).ok());
  EXPECT_FALSE(check({.zero = -1}).ok());
  EXPECT_FALSE(check({.pp = 1, .layer_counts = {-1}}).ok());
  EXPECT_TRUE(check({.tp = 3, .pp = 5, .dp = 7}).ok());
}

}  // namespace
}  // namespace holdfast::parallel_test
