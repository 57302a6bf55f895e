#include "holdfast/models/build.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "holdfast/models/families.h"

namespace holdfast::build_test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

Model tiny_gpt() {
  return make_gpt({.name = "tiny",
                   .layers = 8,
                   .hidden = 64,
                   .heads = 16,
                   .vocabulary = 1000,
                   .positions = 32});
}

Model tiny_llama(int64_t heads, int64_t kv_heads) {
  return make_llama({.name = "tiny",
                     .layers = 2,
                     .hidden = 24,
                     .heads = heads,
                     .kv_heads = kv_heads,
                     .head = 4,
                     .inner = 40,
                     .vocabulary = 64});
}

Model tiny_moe(int64_t experts) {
  return make_llama({.name = "tiny",
                     .layers = 2,
                     .hidden = 16,
                     .heads = 4,
                     .kv_heads = 2,
                     .inner = 24,
                     .vocabulary = 64,
                     .experts = experts});
}

Result<Collection> try_build(const Model& model, std::string_view parallel,
                             const Training& training = {}) {
  const Parallel p = parse_parallel(parallel).value();
  return build_collection(model, p, training,
                          make_devices(1, static_cast<uint32_t>(p.positions())));
}

Collection build(const Model& model, std::string_view parallel,
                 const Training& training = {}) {
  auto built = try_build(model, parallel, training);
  EXPECT_TRUE(built.ok()) << parallel << ": " << built.error().message();
  EXPECT_TRUE(built->check_covered().ok()) << parallel;
  return std::move(built).value();
}

std::string refusal(const Model& model, std::string_view parallel) {
  const auto built = try_build(model, parallel);
  EXPECT_FALSE(built.ok()) << parallel;
  if (built.ok()) return "";
  EXPECT_EQ(built.error().code(), ErrorCode::kInvalid);
  return built.error().message();
}

int64_t bytes_on_ranks(const Collection& collection) {
  const auto held = collection.bytes_held();
  return std::accumulate(held.begin(), held.end(), int64_t{0});
}

// How many elements of a tensor each rank has.
std::vector<int64_t> held(const Collection& collection, std::string_view name) {
  const TensorId id = collection.find(name).value();
  std::vector<int64_t> result(collection.layout().holders().size());
  for (const Slice& slice : collection.layout().slices(id)) {
    for (PieceId p = slice.first; p < slice.last; ++p) {
      result[collection.layout().holder(p)] += slice.box.elements();
    }
  }
  return result;
}

// The boxes of a tensor on one rank, in order of box.
std::vector<std::string> boxes(const Collection& collection, std::string_view name,
                               HolderId rank) {
  std::vector<std::string> result;
  for (const Slice& slice : collection.layout().slices(collection.find(name).value())) {
    for (PieceId p = slice.first; p < slice.last; ++p) {
      if (collection.layout().holder(p) == rank) result.push_back(to_string(slice.box));
    }
  }
  return result;
}

// The bytes that the target needs, for the changes of configuration that plan() is
// tested with.
TEST(BuildTest, BytesOnAllRanksAreThoseOfTheGoldenTable) {
  const Model model = tiny_gpt();
  EXPECT_EQ(bytes_on_ranks(build(model, "tp=1,pp=1,dp=1")), 6'524'672);
  EXPECT_EQ(bytes_on_ranks(build(model, "tp=2,pp=1,dp=1")), 6'598'144);
  EXPECT_EQ(bytes_on_ranks(build(model, "tp=4,pp=1,dp=1")), 6'745'088);
  EXPECT_EQ(bytes_on_ranks(build(model, "tp=8,pp=1,dp=1")), 7'038'976);
  EXPECT_EQ(bytes_on_ranks(build(model, "tp=1,pp=1,dp=4")), 26'098'688);
  EXPECT_EQ(bytes_on_ranks(build(model, "tp=1,pp=4,dp=1")), 7'420'672);
  EXPECT_EQ(bytes_on_ranks(build(model, "tp=1,pp=8,dp=1")), 7'420'672);
  EXPECT_EQ(bytes_on_ranks(build(model, "tp=4,pp=2,dp=1")), 7'641'088);
  EXPECT_EQ(bytes_on_ranks(build(model, "tp=2,pp=4,dp=1")), 7'494'144);
  EXPECT_EQ(bytes_on_ranks(build(model, "tp=2,pp=2,dp=2")), 14'988'288);
  EXPECT_EQ(bytes_on_ranks(build(model, "tp=2,pp=2,dp=3")), 22'482'432);
}

TEST(BuildTest, StateTotalsOfTheTenplexModelsAreThePublishedOnes) {
  const auto gigabytes = [](std::string_view name) {
    const Collection c = build(find_model(name).value(), "tp=1,pp=1,dp=1");
    return static_cast<double>(c.bytes()) / 1e9;
  };
  EXPECT_NEAR(gigabytes("tenplex-1.3b"), 18.7, 0.05);
  EXPECT_NEAR(gigabytes("tenplex-2.7b"), 37.1, 0.05);
  EXPECT_NEAR(gigabytes("tenplex-6.7b"), 93.2, 0.05);
  const auto need =
      bytes_on_ranks(build(find_model("tenplex-6.7b").value(), "tp=4,pp=2"));
  EXPECT_NEAR(static_cast<double>(need) / 1e9, 96.3, 0.05);
}

TEST(BuildTest, RegimesHaveTheBytesThatTheirNamesPromise) {
  const std::map<std::string, int64_t> bytes{{"mixed-adam", 14}, {"mixed-sgd", 10},
                                             {"adam", 12},       {"sgd", 8},
                                             {"bf16-adam", 6},   {"weights", 2}};
  EXPECT_EQ(training_names().size(), bytes.size());
  for (const auto& [name, each] : bytes) {
    const Training training = find_training(name).value();
    EXPECT_EQ(build(tiny_gpt(), "tp=1", training).bytes(), each * 466'048) << name;
  }
  EXPECT_EQ(find_training("adamw").error().code(), ErrorCode::kNotFound);
}

TEST(BuildTest, OptimizerStateIsNamedAfterItsParameterAndKnowsIt) {
  const Collection c = build(tiny_gpt(), "tp=2");
  const Tensor& weight = c.tensor(c.find("layers.3.mlp.dense_h_to_4h.weight").value());
  EXPECT_EQ(weight.dtype, Dtype::kBf16);
  for (const char* suffix : {"master", "exp_avg", "exp_avg_sq"}) {
    const auto id = c.find(fmt::format("layers.3.mlp.dense_h_to_4h.weight.{}", suffix));
    ASSERT_TRUE(id) << suffix;
    EXPECT_EQ(c.tensor(*id).of, weight.name);
    EXPECT_EQ(c.tensor(*id).shape, weight.shape);
    EXPECT_EQ(c.tensor(*id).dtype, Dtype::kF32);
    EXPECT_EQ(c.tensor(*id).role,
              std::string_view(suffix) == "master" ? Role::kMaster : Role::kSlot);
  }
  const Collection sgd = build(tiny_gpt(), "tp=1", find_training("sgd").value());
  EXPECT_TRUE(sgd.find("final_layernorm.bias.momentum"));
  EXPECT_FALSE(sgd.find("final_layernorm.bias.master"));
}

TEST(BuildTest, TheTiedHeadAndItsMomentsAreOnBothEndsOfThePipeline) {
  const Collection c = build(tiny_gpt(), "tp=1,pp=4,dp=1");
  for (const char* suffix : {"", ".master", ".exp_avg", ".exp_avg_sq"}) {
    const std::string name = fmt::format("embedding.word_embeddings.weight{}", suffix);
    EXPECT_THAT(held(c, name), ElementsAre(64000, 0, 0, 64000)) << name;
    EXPECT_EQ(c.find(name), c.find(fmt::format("output_layer.weight{}", suffix)));
  }
  EXPECT_THAT(held(c, "embedding.position_embeddings.weight"),
              ElementsAre(2048, 0, 0, 0));
  EXPECT_THAT(held(c, "final_layernorm.weight"), ElementsAre(0, 0, 0, 64));
}

TEST(BuildTest, VocabularyRowsAreCutAfterPaddingAndPaddingIsNotHeld) {
  const Model model = find_model("gpt2").value();
  const Training weights = find_training("weights").value();
  for (const int64_t tp : {1, 2, 3, 4, 6, 8, 16, 64}) {
    const Collection c = build(model, fmt::format("tp={}", tp), weights);
    const int64_t share = (50257 + 128 * tp - 1) / (128 * tp) * 128;
    const auto rows = held(c, "embedding.word_embeddings.weight");
    for (int64_t t = 0; t < tp; ++t) {
      const int64_t want = std::clamp<int64_t>(50257 - t * share, 0, share);
      EXPECT_EQ(rows[static_cast<size_t>(t)], want * 768) << tp << " " << t;
    }
  }
  // 50257 rows in shares of 896: the last 7 of 64 ranks have padding only.
  const auto rows = held(build(model, "tp=64", weights),
                         "embedding.word_embeddings.weight");
  EXPECT_EQ(std::ranges::count(rows, 0), 7);
}

TEST(BuildTest, ThirtyLayersOnFourStagesAndExplicitListsPutLayersWhereTheySay) {
  const Model model = make_gpt(
      {.layers = 30, .hidden = 8, .heads = 2, .vocabulary = 16, .positions = 2});
  const auto stage = [](const Collection& c, int64_t layer) {
    const auto on = held(c, fmt::format("layers.{}.mlp.dense_h_to_4h.bias", layer));
    return std::ranges::find(on, 32) - on.begin();
  };
  const Collection even = build(model, "pp=4");
  EXPECT_EQ(stage(even, 6), 0);
  EXPECT_EQ(stage(even, 7), 1);
  EXPECT_EQ(stage(even, 14), 1);
  EXPECT_EQ(stage(even, 22), 3);
  const Collection interleaved = build(model, "pp=3,vpp=2");
  EXPECT_EQ(stage(interleaved, 0), 0);
  EXPECT_EQ(stage(interleaved, 15), 0);
  EXPECT_EQ(stage(interleaved, 29), 2);
  const Collection listed = build(model, "pp=2,stages=1-29/0");
  EXPECT_EQ(stage(listed, 0), 1);
  EXPECT_EQ(stage(listed, 29), 0);
  EXPECT_THAT(held(listed, "embedding.position_embeddings.weight"), ElementsAre(16, 0));
  EXPECT_THAT(refusal(model, "pp=31"), HasSubstr("31 x 1 is more than the model's 30"));
}

TEST(BuildTest, InterleavedQkvIsOneBoxWhereRanksDivideTheGroups) {
  const Collection c = build(tiny_llama(8, 4), "tp=2");
  EXPECT_THAT(boxes(c, "layers.0.self_attention.query_key_value.weight", 1),
              ElementsAre("[2:4, 0:4, 0:4, 0:24]"));
  EXPECT_THAT(boxes(c, "layers.0.mlp.dense_h_to_4h.weight", 1),
              ElementsAre("[0:2, 20:40, 0:24]"));
}

TEST(BuildTest, InterleavedRowsMayLeaveARankWithoutKeysAndValues) {
  // 64 query heads and 2 + 2 KV heads on 8 ranks: rows of 8.5 heads for each.
  const Collection c = build(tiny_llama(64, 2), "tp=8");
  EXPECT_THAT(held(c, "layers.0.self_attention.query_key_value.weight"), Each(34 * 24));
  EXPECT_THAT(boxes(c, "layers.0.self_attention.query_key_value.weight", 0),
              ElementsAre("[0:1, 0:8, 0:4, 0:24]", "[0:1, 8:9, 0:2, 0:24]"));
}

TEST(BuildTest, BlockedQkvReplicatesKvHeadsWhereRanksAreMore) {
  const Collection c = build(tiny_llama(64, 2), "tp=8,qkv=blocked");
  EXPECT_THAT(held(c, "layers.0.self_attention.query_key_value.weight"),
              Each((8 + 2) * 4 * 24));
  for (HolderId t = 0; t < 8; ++t) {
    const HolderId group = t / 4, query = t % 4 * 8;
    EXPECT_THAT(
        boxes(c, "layers.1.self_attention.query_key_value.weight", t),
        ElementsAre(fmt::format("[{}:{}, {}:{}, 0:4, 0:24]", group, group + 1, query,
                                query + 8),
                    fmt::format("[{}:{}, 32:34, 0:4, 0:24]", group, group + 1)));
  }

  const Collection mqa = build(tiny_llama(12, 1), "tp=4,qkv=blocked");
  EXPECT_THAT(held(mqa, "layers.0.self_attention.query_key_value.weight"),
              Each((3 + 2) * 4 * 24));

  // 10 groups on 4 ranks stay whole; the output projection follows their query heads.
  const Collection uneven = build(tiny_llama(20, 10), "tp=4,qkv=blocked");
  EXPECT_THAT(held(uneven, "layers.0.self_attention.query_key_value.weight"),
              ElementsAre(2 * 4 * 96, 3 * 4 * 96, 2 * 4 * 96, 3 * 4 * 96));
  EXPECT_THAT(held(uneven, "layers.0.self_attention.dense.weight"),
              ElementsAre(4 * 96, 6 * 96, 4 * 96, 6 * 96));
}

TEST(BuildTest, ElderMegatronLayoutsHaveTheSameBoxesInOtherPlaces) {
  const Model model = tiny_gpt();
  const char* name = "layers.0.self_attention.query_key_value.weight";
  const Collection now = build(model, "tp=2");
  const auto strides = [&](const Collection& c) {
    const TensorId id = c.find(name).value();
    const Slice& slice = c.layout().slices(id)[1];
    const Map map = c.layout().map(slice.first, 2);
    return std::vector<int64_t>(map.strides.begin(), map.strides.begin() + 4);
  };
  // 8 heads of 4 rows with 64 columns of 2 bytes on a rank.
  EXPECT_THAT(strides(now), ElementsAre(3 * 4 * 128, 4 * 128, 128, 2));
  const Collection zero = build(model, "tp=2,qkv=megatron0");
  EXPECT_EQ(boxes(zero, name, 1), boxes(now, name, 1));
  EXPECT_THAT(strides(zero), ElementsAre(4 * 128, 8 * 4 * 128, 128, 2));
  const Collection one = build(model, "tp=2,qkv=megatron1");
  EXPECT_EQ(boxes(one, name, 1), boxes(now, name, 1));
  EXPECT_THAT(strides(one), ElementsAre(3 * 4 * 128, 128, 3 * 128, 2));
  EXPECT_THAT(refusal(tiny_llama(8, 4), "qkv=megatron0"), HasSubstr("multi-head"));
}

TEST(BuildTest, ZeroHoldsOneCopyOfOptimizerStateForAnyNumberOfReplicas) {
  const Model model = tiny_gpt();
  const int64_t weights = 466'048;
  for (const char* shard : {"tensor", "layer", "stage", "rows"}) {
    for (const int64_t dp : {1, 2, 3, 5, 8}) {
      const auto text = [&](int64_t zero) {
        return fmt::format("dp={},zero={},shard={}", dp, zero, shard);
      };
      EXPECT_EQ(bytes_on_ranks(build(model, text(1))), weights * (2 * dp + 12));
      EXPECT_EQ(bytes_on_ranks(build(model, text(2))), weights * (2 * dp + 12));
      EXPECT_EQ(bytes_on_ranks(build(model, text(3))), weights * 14);
    }
  }
}

TEST(BuildTest, AParameterSmallerThanTheReplicasLeavesSomeEmpty) {
  const Model model =
      make_gpt({.layers = 1, .hidden = 3, .heads = 1, .vocabulary = 5, .positions = 1});
  const Collection tensor = build(model, "dp=5,zero=3");
  EXPECT_THAT(held(tensor, "final_layernorm.weight"), ElementsAre(1, 1, 1, 0, 0));
  // 12 rows in blocks of ceil(12 / 8) = 2: six ranks have rows, as with torch.chunk.
  const Collection rows = build(model, "dp=8,zero=3,shard=rows");
  EXPECT_THAT(held(rows, "layers.0.mlp.dense_h_to_4h.weight"),
              ElementsAre(6, 6, 6, 6, 6, 6, 0, 0));
}

TEST(BuildTest, AFlatShardOfAColumnCutGoesThroughTheRanksOwnBox) {
  // mlp.down [64, 256] cut in columns: rank t has [64, 128]; half of that is 32 rows.
  const Collection c = build(tiny_gpt(), "tp=2,dp=2,zero=1");
  EXPECT_THAT(boxes(c, "layers.0.mlp.dense_4h_to_h.weight.exp_avg", 1),
              ElementsAre("[0:32, 128:256]"));
  EXPECT_THAT(boxes(c, "layers.0.mlp.dense_4h_to_h.weight.exp_avg", 2),
              ElementsAre("[32:64, 0:128]"));
  EXPECT_THAT(boxes(c, "layers.0.mlp.dense_4h_to_h.weight", 2),
              ElementsAre("[0:64, 0:128]"));
}

TEST(BuildTest, ExpertsAreCutByTheirOwnCoordinates) {
  const int64_t expert = 2 * 24 * 16;
  // Seats l = tp + 2 dp; etp = l % 2, ep = l / 2 % 2, two replicas.
  const Collection c = build(tiny_moe(4), "tp=2,dp=4,ep=2,etp=2");
  const char* name = "layers.1.mlp.experts.dense_h_to_4h.weight";
  EXPECT_THAT(held(c, name), Each(2 * expert / 2));
  EXPECT_THAT(boxes(c, name, 0), ElementsAre("[0:2, 0:2, 0:12, 0:16]"));
  EXPECT_THAT(boxes(c, name, 3), ElementsAre("[2:4, 0:2, 12:24, 0:16]"));
  EXPECT_EQ(boxes(c, name, 4), boxes(c, name, 0));
  EXPECT_THAT(held(c, "layers.1.mlp.router.weight"), Each(4 * 16));

  const Collection uneven = build(tiny_moe(5), "tp=1,dp=4,ep=4");
  EXPECT_THAT(held(uneven, name), ElementsAre(expert, expert, expert, 2 * expert));
  const Collection wide = build(tiny_moe(4), "tp=2,dp=4,ep=8,etp=1");
  EXPECT_THAT(held(wide, name),
              ElementsAre(0, expert, 0, expert, 0, expert, 0, expert));
}

TEST(BuildTest, ZeroDividesExpertsOverTheirOwnReplicasOnly) {
  const Collection c = build(tiny_moe(4), "tp=1,dp=8,ep=4,zero=1");
  const int64_t expert = 2 * 24 * 16;
  EXPECT_THAT(held(c, "layers.0.mlp.experts.dense_h_to_4h.weight"), Each(expert));
  EXPECT_THAT(held(c, "layers.0.mlp.experts.dense_h_to_4h.weight.exp_avg"),
              Each(expert / 2));
  EXPECT_THAT(held(c, "layers.0.mlp.router.weight.exp_avg"), Each(4 * 16 / 8));
}

TEST(BuildTest, EverySliceOfADenseModelHasAsManyHoldersAsReplicas) {
  const Collection c = build(tiny_gpt(), "tp=4,pp=2,dp=3");
  const auto holders = [&](std::string_view name) {
    std::set<uint32_t> counts;
    for (const Slice& slice : c.layout().slices(c.find(name).value())) {
      counts.insert(slice.last - slice.first);
    }
    return counts;
  };
  EXPECT_THAT(holders("layers.2.mlp.dense_h_to_4h.weight"), ElementsAre(3));
  EXPECT_THAT(holders("layers.2.mlp.dense_h_to_4h.bias"), ElementsAre(3));
  EXPECT_THAT(holders("layers.2.mlp.dense_4h_to_h.bias"), ElementsAre(12));
  EXPECT_THAT(holders("embedding.position_embeddings.weight"), ElementsAre(12));
  EXPECT_THAT(holders("embedding.word_embeddings.weight"), ElementsAre(6));
}

TEST(BuildTest, ConvolutionalNetworksAreCutAsFarAsTheyCanBe) {
  EXPECT_THAT(refusal(make_resnet50(), "tp=2"),
              HasSubstr("resnet50: tp=2, but none of its tensors can be cut"));
  const Collection resnet = build(make_resnet50(), "pp=4,dp=2,zero=3");
  EXPECT_THAT(held(resnet, "bn1.running_mean"), ElementsAre(64, 64, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(held(resnet, "bn1.weight"), ElementsAre(32, 32, 0, 0, 0, 0, 0, 0));
  EXPECT_FALSE(resnet.find("bn1.running_mean.master"));
  const Collection vgg = build(make_vgg16(), "tp=3");
  EXPECT_THAT(held(vgg, "classifier.0.bias"), ElementsAre(1365, 1365, 1366));
  EXPECT_THAT(held(vgg, "classifier.3.bias"), Each(4096));
  EXPECT_THAT(refusal(make_vgg16(), "dp=2,ep=2"), HasSubstr("no experts"));
}

TEST(BuildTest, PositionsSitOnTheDevicesThatWereChosen) {
  const Model model = tiny_gpt();
  const Parallel p{.tp = 1, .pp = 2, .dp = 1};
  const std::vector<uint32_t> chosen{2, 0};
  const Collection c =
      build_collection(model, p, {}, make_devices(3, 1), chosen).value();
  EXPECT_THAT(held(c, "embedding.position_embeddings.weight"), ElementsAre(0, 0, 2048));
  EXPECT_THAT(held(c, "final_layernorm.weight"), ElementsAre(64, 0, 0));
  EXPECT_EQ(c.layout().holders()[1].name, "device-1");

  const auto why = [&](std::vector<uint32_t> where, uint32_t devices) {
    const auto built = build_collection(model, p, {}, make_devices(1, devices), where);
    return built.ok() ? "" : built.error().message();
  };
  EXPECT_EQ(why({}, 1), "parallel: tp=1,pp=2,dp=1 needs 2 devices, there are 1");
  EXPECT_THAT(why({1, 1}, 2), HasSubstr("positions 0 and 1 are both on device-1"));
  EXPECT_THAT(why({0, 2}, 2), HasSubstr("position 1 on device 2"));
  EXPECT_THAT(why({0}, 2), HasSubstr("1 positions; expected 2"));
}

TEST(BuildTest, AModelBeyondTheAddressSpaceIsRefused) {
  Model model;
  model.name = "huge";
  model.layers = 1;
  for (int i = 0; i < 9; ++i) {
    Parameter parameter;
    parameter.tensor.name = fmt::format("w{}", i);
    parameter.tensor.shape = {int64_t{1} << 58};
    model.parameters.push_back(parameter);
  }
  EXPECT_THAT(refusal(model, "tp=1"), HasSubstr("2^63"));
}

// 405B parameters on 16,384 ranks with ZeRO 3.
TEST(BuildTest, TooManyPiecesAreRefusedWithWhatToDo) {
  const Model model = make_llama({.name = "llama",
                                  .layers = 126,
                                  .hidden = 16384,
                                  .heads = 128,
                                  .kv_heads = 8,
                                  .inner = 53248,
                                  .vocabulary = 128256});
  const auto refusal = [&](const char* text) {
    const Parallel parallel = parse_parallel(text).value();
    const auto made = build_collection(model, parallel, {}, make_devices(1, 1), {});
    return made.ok() ? "" : made.error().message();
  };
  EXPECT_EQ(refusal("dp=16384,zero=3"),
            "tp=1,pp=1,dp=16384,zero=3 of llama: about 49741824 pieces; expected at "
            "most 33554432: shard=layer and shard=stage have far fewer; --training "
            "weights plans the weights alone, to which all bytes are in proportion");
  EXPECT_THAT(refusal("dp=16384,zero=1"), testing::EndsWith("plans the weights alone"));
  // These are not refused for their pieces, but because only one device is given.
  for (const char* text : {"dp=16384,zero=3,shard=layer", "dp=16384,zero=3,shard=stage",
                           "tp=8,pp=16,dp=128", "dp=8192,zero=3"}) {
    EXPECT_NE(refusal(text).find("devices, there are 1"), std::string::npos)
        << refusal(text);
  }
}

}  // namespace
}  // namespace holdfast::build_test
