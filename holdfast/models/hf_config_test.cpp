#include "holdfast/models/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "holdfast/base/json.h"
#include "holdfast/models/build.h"
#include "holdfast/models/families.h"
#include "holdfast/models/model_testing.h"

namespace holdfast::hf_config_test {
namespace {

// The keys of real files, without those that say nothing about tensors.
constexpr const char* kGpt2 = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
  "attn_pdrop": 0.1, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
  "n_inner": null, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
  "task_specific_params": {"text-generation": {"do_sample": true}}})";

constexpr const char* kLlama = R"({
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_size": 4096,
  "intermediate_size": 14336, "model_type": "llama", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "rope_theta": 500000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 128256})";

constexpr const char* kMixtral = R"({
  "hidden_size": 4096, "intermediate_size": 14336, "model_type": "mixtral",
  "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "num_local_experts": 8, "sliding_window": null,
  "tie_word_embeddings": false, "vocab_size": 32000})";

Json with(const char* text, const Json& patch) {
  Json config = parse_json(text, "test").value();
  config.update(patch);
  return config;
}

Json without(const char* text, const char* key) {
  Json config = parse_json(text, "test").value();
  config.erase(key);
  return config;
}

Model model_of(const Json& config) {
  return model_from_config(JsonPlace(config, "config.json")).value();
}

std::string refusal(const Json& config) {
  const auto model = model_from_config(JsonPlace(config, "config.json"));
  EXPECT_FALSE(model.ok()) << config;
  return model.ok() ? "" : model.error().message();
}

// A built-in model has the names and the fused weights of Megatron, and the same bytes on
// every rank.
TEST(HfConfigTest, RealFilesAreAsLargeAsTheBuiltInModels) {
  for (const auto& [text, name] : {std::pair(kGpt2, "gpt2"),
                                   std::pair(kLlama, "llama-3-8b"),
                                   std::pair(kMixtral, "mixtral-8x7b")}) {
    const Model read = model_of(with(text, Json::object()));
    const Model built_in = find_model(name).value();
    EXPECT_EQ(tests::parameter_count(read), tests::parameter_count(built_in));
    const auto held = [](const Model& model) {
      return build_collection(model, parse_parallel("tp=4,pp=2,dp=2,zero=1").value(),
                              find_training("mixed-adam").value(), make_devices(2, 8))
          .value()
          .bytes_held();
    };
    EXPECT_EQ(held(read), held(built_in)) << name;
  }
}

TEST(HfConfigTest, OptionalKeysHaveTheDefaultsOfTheLibrary) {
  EXPECT_EQ(tests::parameter_count(model_of(with(kGpt2, {{"n_inner", 3072}}))),
            124'439'808);
  EXPECT_EQ(tests::parameter_count(model_of(with(kLlama, {{"head_dim", nullptr}}))),
            8'030'261'248);
  // Without num_key_value_heads, every query head has a KV head of its own.
  EXPECT_EQ(tests::parameter_count(model_of(without(kLlama, "num_key_value_heads"))),
            8'030'261'248 + int64_t{32} * 2 * 24 * 128 * 4096);
  EXPECT_EQ(
      tests::parameter_count(model_of(with(kLlama, {{"tie_word_embeddings", true}}))),
      8'030'261'248 - int64_t{128256} * 4096);
  EXPECT_EQ(
      tests::parameter_count(model_of(with(kGpt2, {{"tie_word_embeddings", false}}))),
      124'439'808 + 50257 * 768);
}

TEST(HfConfigTest, HeadDimIsFreeOfTheHiddenSizeAndBiasesAreCounted) {
  EXPECT_EQ(tests::parameter_count(model_of(with(kLlama, {{"head_dim", 64}}))),
            8'030'261'248 - int64_t{32} * (32 + 8 + 8 + 32) * 64 * 4096);
  EXPECT_EQ(tests::parameter_count(model_of(with(kLlama, {{"attention_bias", true}}))),
            8'030'261'248 + 32 * ((32 + 16) * 128 + 4096));
  EXPECT_EQ(tests::parameter_count(model_of(with(kLlama, {{"mlp_bias", true}}))),
            8'030'261'248 + 32 * (2 * 14336 + 4096));
}

TEST(HfConfigTest, UnknownModelTypeIsUnsupportedAndNamed) {
  const Json config = with(kGpt2, {{"model_type", "t5"}});
  const auto model = model_from_config(JsonPlace(config, "c.json"));
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(
      model.error().message(),
      "c.json.model_type: \"t5\"; expected one of bert, deepseek_v2, deepseek_v3, "
      "gemma, gemma2, gemma3_text, gpt2, gpt_neox, llama, mistral, mixtral, opt, "
      "phi3, qwen2, qwen2_moe, qwen3, qwen3_moe, vit (plan --module takes any model)");
  EXPECT_EQ(refusal(without(kGpt2, "model_type")),
            "config.json: no key \"model_type\"");
  EXPECT_EQ(refusal(Json::array()), "config.json: array of 0; expected an object");
}

TEST(HfConfigTest, EveryRequiredSizeIsAskedForByName) {
  for (const char* key : {"n_layer", "n_embd", "n_head", "n_positions", "vocab_size"}) {
    EXPECT_THAT(refusal(without(kGpt2, key)), testing::HasSubstr(key));
  }
  for (const char* key : {"num_hidden_layers", "hidden_size", "intermediate_size",
                          "num_attention_heads", "vocab_size"}) {
    EXPECT_THAT(refusal(without(kLlama, key)), testing::HasSubstr(key));
  }
  EXPECT_THAT(refusal(without(kMixtral, "num_local_experts")),
              testing::HasSubstr("num_local_experts"));
}

TEST(HfConfigTest, AbsurdValuesGetOneSentenceThatNamesTheKey) {
  for (const char* key :
       {"num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads",
        "num_key_value_heads", "vocab_size", "head_dim", "num_local_experts"}) {
    for (const Json& value : {Json(0), Json(-1), Json(1.5), Json("12"), Json(true),
                              Json(int64_t{1} << 62), Json(UINT64_MAX)}) {
      EXPECT_THAT(refusal(with(kMixtral, {{key, value}})),
                  testing::StartsWith(fmt::format("config.json.{}: ", key)));
    }
  }
  EXPECT_THAT(refusal(with(kLlama, {{"mlp_bias", 1}})), testing::HasSubstr("mlp_bias"));
}

TEST(HfConfigTest, HeadsThatDoNotDivideAreRefused) {
  EXPECT_EQ(refusal(with(kGpt2, {{"n_head", 7}})),
            "config.json: n_embd is 768; expected a multiple of n_head = 7");
  EXPECT_EQ(refusal(with(kLlama, {{"num_key_value_heads", 5}})),
            "config.json: num_attention_heads is 32; expected a multiple of "
            "num_key_value_heads = 5");
  EXPECT_EQ(
      refusal(with(kLlama, {{"num_attention_heads", 24}})),
      "config.json: hidden_size is 4096; expected a multiple of num_attention_heads = "
      "24");
}

TEST(HfConfigTest, SizesThatOverflowTogetherAreRefused) {
  const int64_t most = int64_t{1} << 28;
  EXPECT_THAT(refusal(with(kGpt2, {{"n_embd", most}, {"n_head", 1}})),
              testing::HasSubstr("2^50"));
  EXPECT_THAT(refusal(with(kGpt2, {{"vocab_size", most}, {"n_embd", 12 << 20}})),
              testing::HasSubstr("2^50"));
  EXPECT_THAT(refusal(with(kGpt2, {{"n_inner", most}, {"n_embd", 1200000}})),
              testing::HasSubstr("2^50"));
  EXPECT_THAT(refusal(with(kMixtral, {{"num_local_experts", 65536},
                                      {"intermediate_size", most}})),
              testing::HasSubstr("2^50"));
  EXPECT_THAT(refusal(with(kLlama, {{"head_dim", most}})), testing::HasSubstr("2^50"));
}

TEST(HfConfigTest, CrossAttentionIsUnsupported) {
  EXPECT_THAT(refusal(with(kGpt2, {{"add_cross_attention", true}})),
              testing::HasSubstr("add_cross_attention"));
}

}  // namespace
}  // namespace holdfast::hf_config_test
