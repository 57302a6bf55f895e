#include <gmock/gmock.h>

#include "holdfast/base/testing.h"
#include "holdfast/env/memory_env.h"
#include "holdfast/megatron/cut.h"
#include "holdfast/megatron/megatron.h"
#include "holdfast/megatron/objects.h"
#include "holdfast/megatron/optimizer.h"
#include "holdfast/megatron/vocabulary.h"

namespace holdfast::megatron {
namespace {

using testing::HasSubstr;

Object args_with(std::initializer_list<std::pair<const char*, int64_t>> values) {
  Object args{Object::Dict{}};
  for (const auto& [key, value] : values) set_key(args, key, Object(value));
  Object objects{Object::Dict{}};
  set_key(objects, "args", std::move(args));
  return objects;
}

// Element by element: each row of the whole tensor is on one rank, where the published
// order of that version has it.
TEST(MegatronCut, RowsOfOldVersionsAreFoundByHead) {
  const int64_t heads = 6, head = 4, ways = 3, own = heads / ways;
  const Shape shape{3 * heads * head, 5};
  for (const int version : {0, 1}) {
    std::set<int64_t> seen;
    for (int64_t rank = 0; rank < ways; ++rank) {
      for (const LocalPart& part :
           old_qkv_parts(shape, ways, rank, {version, heads}).value()) {
        for (int64_t i = 0; i < part.box.size(0); ++i) {
          const int64_t row = part.box[0].lo + i;
          const int64_t h = row / (3 * head), c = row / head % 3, d = row % head;
          const int64_t local = h - rank * own;
          const int64_t expected = version == 0 ? (c * own + local) * head + d
                                                : (local * head + d) * 3 + c;
          EXPECT_EQ(part.first + i * part.step, expected);
          EXPECT_TRUE(seen.insert(row).second);
        }
      }
    }
    EXPECT_EQ(std::ssize(seen), shape[0]);
  }
  EXPECT_ERROR(old_qkv_parts(shape, 4, 0, {0, heads}), ErrorCode::kInvalid);
  EXPECT_ERROR(old_qkv_parts(shape, 3, 0, {0, 0}), ErrorCode::kInvalid);
}

TEST(MegatronCut, AGateIsCutLikeTheWeightThatItGates) {
  const Rule rule = parse_rule("mlp.up.weight", "first rows/2").value();
  EXPECT_EQ(whole_shape(rule, Shape{8, 3}, 2).value(), (Shape{16, 3}));
  const auto parts = local_parts(rule, Shape{16, 3}, 2, 1);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].box, (Box{{4, 8}, {0, 3}}));
  EXPECT_EQ(parts[1].box, (Box{{12, 16}, {0, 3}}));
  EXPECT_EQ(parts[1].first, 4);
  EXPECT_ERROR(whole_shape(rule, Shape{7, 3}, 2), ErrorCode::kInvalid);
  EXPECT_ERROR(whole_shape(rule, Shape{}, 2), ErrorCode::kInvalid);
}

TEST(MegatronVocabulary, IsPaddedForTheNumberOfRanks) {
  const auto rows = [](const Object& objects, int64_t before, int64_t tp,
                       int64_t asked = 0) {
    return pad_rows(objects, before, tp, asked);
  };
  const Object known = args_with({{"vocab_size", 50257},
                                  {"tensor_model_parallel_size", 2},
                                  {"make_vocab_size_divisible_by", 128}});
  for (const auto& [tp, expected] : {std::pair{1, 50304}, {2, 50432}, {4, 50688}, {8, 51200}}) {
    EXPECT_EQ(rows(known, 50432, tp).value().after, expected) << tp;
    EXPECT_EQ(rows(known, 50432, tp).value().words, 50258);  // args may not count one word
  }
  const Object unknown = args_with({{"tensor_model_parallel_size", 2}});
  EXPECT_EQ(rows(unknown, 50432, 2).value().after, 50432);
  EXPECT_EQ(rows(unknown, 50432, 1, 50257).value().after, 50304);
  EXPECT_ERROR(rows(unknown, 50432, 1), ErrorCode::kInvalid);
  EXPECT_ERROR(rows(unknown, 50432, 8), ErrorCode::kInvalid);
  EXPECT_ERROR(rows(known, 50432, 1, 60000), ErrorCode::kInvalid);
  EXPECT_ERROR(rows(known, 50432, 1, 50256), ErrorCode::kInvalid);  // a word would go
  EXPECT_ERROR(rows(known, 50432, 1, -1), ErrorCode::kInvalid);
  EXPECT_EQ(rows(known, 50432, 1, 50300).value().after, 50304);
  const Object without = args_with({});
  EXPECT_ERROR(rows(without, 256, 1), ErrorCode::kInvalid);
  // With 256 words one more word decides about 128 rows.
  const Object edge = args_with({{"vocab_size", 255}, {"tensor_model_parallel_size", 3}});
  EXPECT_EQ(rows(edge, 384, 1).value().after, 256);
  const Object over = args_with({{"vocab_size", 256}, {"tensor_model_parallel_size", 3}});
  EXPECT_ERROR(rows(over, 384, 1), ErrorCode::kInvalid);
}

TEST(MegatronObjects, LayersAreNumberedInKeys) {
  const std::vector<std::string> flat{"encoder", "layers.3.mlp.weight"};
  EXPECT_EQ(layer_of(flat), 3);
  EXPECT_EQ(joined(with_layer(flat, 17)), "encoder.layers.17.mlp.weight");
  EXPECT_EQ(layer_of({"players.3.weight"}), std::nullopt);
  EXPECT_EQ(layer_of({"layers.x.weight"}), std::nullopt);
  EXPECT_EQ(layer_of({"layers.99999999999999999999.weight"}), std::nullopt);
}

TEST(MegatronOptimizer, NumbersAndNamesAreTheReverseOfEachOther) {
  const std::vector<LocalParameter> parameters{
      {"a.weight", Dtype::kF16, {4, 2}}, {"a.bias", Dtype::kF16, {4}},
      {"inv_freq", Dtype::kF16, {2, 2}, true},
      {"b.weight", Dtype::kF16, {2, 4}}, {"norm.weight", Dtype::kF16, {2}}};
  Object common{Object::Dict{}};
  Object inner{Object::Dict{}};
  set_key(inner, kStateKey,
          Object(Object::List{{Object(std::string("exp_avg")),
                               Object(Object::Tuple{{Object(std::string("step")),
                                                     Object(int64_t{7})}})}}));
  set_key(inner, kGroupsKey, Object(Object::List{{Object(Object::Dict{}),
                                                  Object(Object::Dict{})}}));
  for (Object& group :
       std::get<Object::List>(find_key(inner, kGroupsKey)->value()).items) {
    set_key(group, kNumbersKey, Object(Object::List{}));
  }
  set_key(common, "optimizer", inner);
  set_key(common, kMastersKey, Object(Object::List{}));
  std::vector<Tensor> tensors;
  const Object numbered =
      number_state(common, parameters, [&](size_t i, const std::string& slot) {
        tensors.push_back({.name = parameters[i].name + "/" + slot,
                           .dtype = Dtype::kF32,
                           .shape = parameters[i].shape});
        return Object(Object::TensorName{tensors.back().name});
      });
  Layout layout = LayoutBuilder(tensors, {}).build().value();
  const Collection file = Collection::create(tensors, std::move(layout)).value();
  const OptimizerState named = name_state(numbered, parameters, file).value();
  EXPECT_EQ(named.common, common);
  ASSERT_EQ(named.tensors.size(), 8u);  // the buffer has no state
  for (const StateTensor& state : named.tensors) {
    EXPECT_EQ(state.stored, parameters[state.parameter].name + "/" + state.slot);
  }
  // A group that lists another number of parameters leaves a doubt.
  auto fewer = parameters;
  fewer.pop_back();
  EXPECT_ERROR(name_state(numbered, fewer, file), ErrorCode::kInvalid);
  EXPECT_ERROR(name_state(Object(), parameters, file), ErrorCode::kUnsupported);
}

TEST(MegatronFolders, AreFoundByTheirNames) {
  MemoryEnv env;
  const auto put = [&](const std::string& path) {
    ASSERT_OK(env.create_folders(Path(path).parent_path()));
    ASSERT_OK(env.write_file(path, bytes_of("x")));
  };
  ASSERT_OK(env.create_folders("/other"));
  EXPECT_FALSE(find_megatron(env, "/other").value());
  EXPECT_FALSE(find_megatron(env, "/nothing").value());
  for (const char* rank : {"00_000", "01_000", "00_001", "01_001"}) {
    put(fmt::format("/c/iter_0000400/mp_rank_{}/model_optim_rng.pt", rank));
  }
  ASSERT_OK(env.write_file("/c/latest_checkpointed_iteration.txt", bytes_of("400\n")));
  const MegatronFolder found = find_megatron(env, "/c").value().value();
  EXPECT_EQ(found.path, "/c/iter_0000400");
  EXPECT_EQ(std::pair(found.tp, found.pp), std::pair(int64_t{2}, int64_t{2}));
  EXPECT_EQ(find_megatron(env, "/c/iter_0000400").value()->tp, 2);
  for (const char* second : {"mp_rank_00", "mp_rank_01", "mp_rank_000_000"}) {
    const Path folder = Path("/c/iter_0000400") / second;
    put((folder / "model_optim_rng.pt").native());
    EXPECT_THAT(find_megatron(env, "/c").error().message(),
                HasSubstr("is a second folder of rank"));
    ASSERT_OK(env.remove_all(folder));
  }
  ASSERT_OK(env.remove_file("/c/iter_0000400/mp_rank_01_000/model_optim_rng.pt"));
  EXPECT_THAT(find_megatron(env, "/c").error().message(),
              HasSubstr("mp_rank_01_000/model_optim_rng.pt: is missing"));
  put("/c/iter_0000400/mp_rank_00_001/distrib_optim.pt");
  EXPECT_ERROR(find_megatron(env, "/c"), ErrorCode::kUnsupported);
  ASSERT_OK(env.write_file("/c/latest_checkpointed_iteration.txt", bytes_of("-4")));
  EXPECT_ERROR(find_megatron(env, "/c"), ErrorCode::kCorrupt);
  ASSERT_OK(env.write_file("/c/latest_checkpointed_iteration.txt", bytes_of("500")));
  EXPECT_ERROR(find_megatron(env, "/c"), ErrorCode::kNotFound);
  EXPECT_THAT(find_megatron(env, "/c").error().message(),
              HasSubstr("/c/iter_0000500: is missing"));
}

TEST(MegatronFolders, RanksOfExpertsAreRefused) {
  MemoryEnv env;
  const Path folder = "/c/mp_rank_00_000_001";
  ASSERT_OK(env.create_folders(folder));
  ASSERT_OK(env.write_file(folder / "model_optim_rng.pt", bytes_of("x")));
  EXPECT_ERROR(find_megatron(env, "/c"), ErrorCode::kUnsupported);
  EXPECT_THAT(find_megatron(env, "/c").error().message(), HasSubstr("experts"));
}

}  // namespace
}  // namespace holdfast::megatron
