#include "holdfast/reshard/reshard.h"

#include <gmock/gmock.h>

#include "holdfast/reshard/reshard_testing.h"
#include "holdfast/store/step_check.h"

namespace holdfast::reshard_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(Reshard, ThereAndBackGivesTheSameFiles) {
  const Resharded first = cut("/gpt2.safetensors", "/a", "tp=4,pp=2").value();
  EXPECT_EQ(first.files, 8);
  EXPECT_EQ(first.seals, std::ssize(small_gpt2()));
  ASSERT_OK(cut("/a", "/b", "tp=2,pp=4"));
  ASSERT_OK(cut("/b", "/c", "tp=4,pp=2"));
  EXPECT_EQ(shards("/a"), shards("/c"));
  EXPECT_NE(shards("/a"), shards("/b"));
  EXPECT_EQ(shards("/b").size(), 8u);
  for (const char* run : {"/a", "/b", "/c"})
    expect_same_values("/gpt2.safetensors", run);
  const Path folder = find_any(env_, "/b").value().path;
  EXPECT_TRUE(check_step(env_, folder, Depth::kFull).value().whole());
  EXPECT_EQ(read_manifest(env_, folder).value().parallel, "tp=2,pp=4,dp=1");
  for (const std::string& name : env_.list("/").value()) {
    EXPECT_FALSE(name.starts_with(".")) << name;
  }
}

TEST_F(Reshard, AnyConfigurationCanBeMerged) {
  ASSERT_OK(cut("/gpt2.safetensors", "/zero", "tp=2,pp=2,dp=3,zero=1"));
  expect_same_values("/gpt2.safetensors", "/zero");
  ASSERT_OK(cut("/zero", "/one", "whole"));
  EXPECT_EQ(shards("/one").size(), 1u);
  expect_same_values("/gpt2.safetensors", "/one");
  ReshardOptions folder = options("whole");
  folder.format = "safetensors";
  EXPECT_EQ(cut("/zero", "/folder", folder).value().seals, std::ssize(small_gpt2()));
  expect_same_values("/gpt2.safetensors", "/folder");
}

TEST_F(Reshard, TensorsWithoutElementsAreKept) {
  const std::vector<Tensor> tensors{
      {.name = "layers.0.w", .dtype = Dtype::kF32, .shape = {8, 4}},
      {.name = "layers.0.none", .dtype = Dtype::kBf16, .shape = {0, 4}},
      {.name = "layers.1.w", .dtype = Dtype::kF32, .shape = {8, 4}},
      {.name = "layers.1.none", .dtype = Dtype::kBf16, .shape = {4, 0}}};
  write_source("/source.safetensors", tensors);
  ASSERT_OK(env_.write_file("/rules.json", bytes_of(R"({
    "holdfast": "rules", "version": 1, "name": "x",
    "rules": {"layers.#.w": "rows", "layers.#.none": "rows"}})")));
  for (const char* to : {"whole", "tp=2,pp=2", "dp=3,zero=1"}) {
    for (const char* format : {"native", "dcp", "safetensors"}) {
      ReshardOptions wanted = options(to);
      wanted.format = format;
      wanted.rules = "/rules.json";
      if (format == std::string_view("safetensors") && wanted.to != "whole") continue;
      const Path target = fmt::format("/{}-{}", format, to);
      EXPECT_EQ(cut("/source.safetensors", target, wanted).value().seals, 4);
      expect_same_values("/source.safetensors", target);
      // A second re-cut, of the result of the first.
      wanted.format = "native";
      ASSERT_OK(cut(target, target.native() + "-again", wanted));
      expect_same_values("/source.safetensors", target.native() + "-again");
    }
  }
}

TEST_F(Reshard, EveryByteIsReadOnce) {
  const ReshardPlan plan =
      plan_reshard(env_, "/gpt2.safetensors", options("tp=2,pp=2,dp=2")).value();
  EXPECT_EQ(plan.figures.moved, plan.figures.moved_bound);
  EXPECT_EQ(plan.figures.moved, plan.contents->collection.bytes());
  EXPECT_EQ(plan.rules, "hf-gpt2");
}

// With very many positions the plan takes long, above all the cut of each tensor.
TEST_F(Reshard, PlanningTellsHowFarItIs) {
  std::vector<int64_t> told;
  ReshardOptions many = options("dp=300");
  many.planning = [&](int64_t done, int64_t total) {
    EXPECT_EQ(total, 100);
    told.push_back(done);
  };
  EXPECT_EQ(plan_reshard(env_, "/gpt2.safetensors", many).value().target_files(), 300);
  EXPECT_TRUE(std::ranges::is_sorted(told));
  EXPECT_EQ(told.front(), 0);
  EXPECT_EQ(told.back(), 100);
  EXPECT_GT(told.size(), small_gpt2().size());
}

TEST_F(Reshard, AFolderOfDcpHasAFileForEachPosition) {
  ReshardOptions dcp = options("tp=4,pp=2");
  dcp.format = "dcp";
  const Resharded done = cut("/gpt2.safetensors", "/dcp", dcp).value();
  EXPECT_EQ(done.files, 8);
  EXPECT_EQ(done.seals, std::ssize(small_gpt2()));
  expect_same_values("/gpt2.safetensors", "/dcp");
  EXPECT_EQ(env_.list("/dcp").value().size(), 9u);
  // Without --format the target has the format of the source.
  EXPECT_EQ(plan_reshard(env_, "/dcp", options("tp=2")).value().format, "dcp");
  ASSERT_OK(cut("/dcp", "/merged", "whole"));
  EXPECT_EQ(env_.list("/merged").value().size(), 2u);
  expect_same_values("/gpt2.safetensors", "/merged");
  EXPECT_FALSE(env_.info("/.dcp.reshard").ok());
}

TEST_F(Reshard, TheSecondReadIsCountedAndCanBeStopped) {
  const int64_t bytes =
      plan_reshard(env_, "/gpt2.safetensors", options("whole")).value().files->bytes();
  for (const char* format : {"native", "safetensors"}) {
    ReshardOptions whole = options("whole");
    whole.format = format;
    std::vector<int64_t> last;
    whole.reading.progress = [&](int64_t done, int64_t total) { last = {done, total}; };
    ASSERT_OK(cut("/gpt2.safetensors", Path("/") / format, whole));
    EXPECT_EQ(last.at(0), last.at(1)) << format;
    EXPECT_EQ(last.at(1), bytes * (whole.format == "native" ? 2 : 3));
    ReshardOptions stopped = stopped_after(last.at(1) - 1000, "whole");
    stopped.format = format;
    EXPECT_ERROR(cut("/gpt2.safetensors", "/stopped", stopped),
                 ErrorCode::kUnavailable);
    EXPECT_FALSE(env_.info("/stopped").ok());
  }
}

TEST_F(Reshard, ADamagedSourceGivesNoTarget) {
  ASSERT_OK(cut("/gpt2.safetensors", "/a", "tp=2"));
  const Path shard = find_any(env_, "/a").value().path / "rank-0001.safetensors";
  Bytes bytes = env_.read_file(shard).value();
  bytes[bytes.size() / 2] ^= std::byte{1};
  ASSERT_OK(env_.write_file(shard, bytes));
  EXPECT_ERROR(cut("/a", "/b", "tp=4"), ErrorCode::kCorrupt);
  EXPECT_FALSE(env_.info("/b").ok());
}

TEST_F(Reshard, WhatCannotBeDoneIsRefusedBeforeAByteIsWritten) {
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", options("tp=3")),
              HasSubstr("tp=3 does not divide its dimension of 16"));
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", options("pp=5")), HasSubstr("5"));
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", options("tp=two")), HasSubstr("tp"));
  EXPECT_THAT(refusal("/gpt2.safetensors", "/gpt2.safetensors", options("tp=2")),
              HasSubstr("exists"));
  const std::string config = R"({"n_embd": 16, "n_head": 2})";  // two heads
  ASSERT_OK(env_.write_file("/config.json", bytes_of(config)));
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", options("tp=4")),
              HasSubstr("in units of 8"));
  ReshardOptions other = options("tp=2");
  other.rules = "hf-llama";
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", other), HasSubstr("another model's"));
  other.rules = "hf-clip";
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", other), HasSubstr("not known"));
  other = options("tp=2");
  other.format = "safetensors";
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", other), HasSubstr("--to whole"));
  other.format = "megatron";
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", other),
              HasSubstr("no objects of Megatron"));
  std::vector<Tensor> missing = small_gpt2();
  std::erase_if(missing, [](const Tensor& tensor) {
    return tensor.name == "model.transformer.h.2.mlp.c_fc.weight";
  });
  write_source("/missing.safetensors", missing);
  other = options("tp=2");
  other.rules = "hf-gpt2";
  EXPECT_THAT(
      refusal("/missing.safetensors", "/a", other),
      HasSubstr("optimizer.transformer.h.2.mlp.c_fc.weight.exp_avg: has no rule"));
  env_.set_capacity(1'000'000);
  EXPECT_THAT(refusal("/gpt2.safetensors", "/a", options("tp=2")),
              HasSubstr("bytes are free"));
}

TEST_F(Reshard, ATargetInsideTheSourceIsRefused) {
  ASSERT_OK(cut("/gpt2.safetensors", "/run", "tp=2"));
  ReshardOptions dcp = options("tp=2");
  dcp.format = "dcp";
  ASSERT_OK(cut("/gpt2.safetensors", "/dcp", dcp));
  const Path step = find_any(env_, "/run").value().path;
  for (const Path& to : {Path("/run/step-00000099"), step / "a", Path("/dcp/a/b")}) {
    const Path from = to.native().starts_with("/dcp") ? "/dcp" : "/run";
    const Result<Resharded> done = cut(from, to, "tp=4");
    EXPECT_ERROR(done, ErrorCode::kInvalid);
    EXPECT_THAT(message_of(done), HasSubstr("is inside the source"));
  }
  // A step may stand alone, and a target beside it.
  ASSERT_OK(env_.rename_new(step, "/alone"));
  EXPECT_OK(cut("/alone", "/beside", "tp=4"));
}

TEST_F(Reshard, AFolderOfMegatronWhoseRanksHaveExpertsIsRefused) {
  write_megatron("/experts.safetensors", 2);
  ReshardOptions wanted = options("tp=2");
  wanted.format = "megatron";
  const Result<Resharded> done = cut("/experts.safetensors", "/a", wanted);
  EXPECT_ERROR(done, ErrorCode::kUnsupported);
  EXPECT_THAT(message_of(done), HasSubstr("experts"));
  EXPECT_FALSE(env_.info("/a").ok());
}

TEST_F(Reshard, RowsOfAnOldMegatronAreNotTakenForRowsByHead) {
  const auto tensor = [](std::string name, Shape shape) {
    return Tensor{.name = std::move(name), .dtype = Dtype::kBf16, .shape = shape};
  };
  const std::vector<Tensor> tensors{
      tensor("embedding.word_embeddings.weight", {64, 8}),
      tensor("layers.0.attention.query_key_value.weight", {24, 8}),
      tensor("final_layernorm.weight", {8})};
  const auto source = [&](const std::string& path, const Object& version) {
    const Object key(std::string("checkpoint_version"));
    write_source(path, tensors, Object(Object::Dict{{{key, version}}}));
  };
  source("/v0.safetensors", Object(int64_t{0}));
  source("/v1.safetensors", Object(1.0));
  source("/v3.safetensors", Object(3.0));
  for (const char* old : {"/v0.safetensors", "/v1.safetensors"}) {
    EXPECT_THAT(refusal(old, "/a", options("tp=2")), HasSubstr("expected 2 or newer"));
    EXPECT_OK(plan_reshard(env_, old, options("dp=2")));  // cuts no rows
  }
  EXPECT_EQ(plan_reshard(env_, "/v3.safetensors", options("tp=2")).value().rules,
            "megatron-gpt");
}

}  // namespace
}  // namespace holdfast::reshard_test
