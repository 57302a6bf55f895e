#include "holdfast/models/rules.h"

#include <gmock/gmock.h>

#include <functional>

#include "holdfast/base/testing.h"
#include "holdfast/models/model_testing.h"

namespace holdfast {
namespace {

using tests::file_of;

using testing::HasSubstr;
using testing::StartsWith;

std::vector<Tensor> bf16(std::vector<std::pair<std::string, Shape>> rows) {
  std::vector<Tensor> tensors;
  for (auto& [name, shape] : rows) {
    tensors.push_back({.name = std::move(name), .dtype = Dtype::kBf16, .shape = shape});
  }
  return tensors;
}

// openai-community/gpt2, as transformers saves it: no head, because it is tied.
std::vector<Tensor> gpt2() {
  std::vector<std::pair<std::string, Shape>> rows{{"wte.weight", {50257, 768}},
                                                  {"wpe.weight", {1024, 768}}};
  for (int i = 0; i < 12; ++i) {
    const auto add = [&](std::string_view name, Shape shape) {
      rows.push_back({fmt::format("h.{}.{}", i, name), shape});
    };
    add("ln_1.weight", {768}), add("ln_1.bias", {768});
    add("attn.bias", {1, 1, 1024, 1024});
    add("attn.c_attn.weight", {768, 2304}), add("attn.c_attn.bias", {2304});
    add("attn.c_proj.weight", {768, 768}), add("attn.c_proj.bias", {768});
    add("ln_2.weight", {768}), add("ln_2.bias", {768});
    add("mlp.c_fc.weight", {768, 3072}), add("mlp.c_fc.bias", {3072});
    add("mlp.c_proj.weight", {3072, 768}), add("mlp.c_proj.bias", {768});
  }
  rows.push_back({"ln_f.weight", {768}});
  rows.push_back({"ln_f.bias", {768}});
  return bf16(std::move(rows));
}

// meta-llama/Meta-Llama-3-8B; with experts, mistralai/Mixtral-8x7B-v0.1.
std::vector<Tensor> llama(bool experts = false) {
  const int64_t words = experts ? 32000 : 128256;
  std::vector<std::pair<std::string, Shape>> rows{
      {"model.embed_tokens.weight", {words, 4096}}};
  for (int i = 0; i < 32; ++i) {
    const auto add = [&](std::string_view name, Shape shape) {
      rows.push_back({fmt::format("model.layers.{}.{}.weight", i, name), shape});
    };
    add("input_layernorm", {4096}), add("post_attention_layernorm", {4096});
    add("self_attn.q_proj", {4096, 4096}), add("self_attn.k_proj", {1024, 4096});
    add("self_attn.v_proj", {1024, 4096}), add("self_attn.o_proj", {4096, 4096});
    if (!experts) {
      add("mlp.gate_proj", {14336, 4096}), add("mlp.up_proj", {14336, 4096});
      add("mlp.down_proj", {4096, 14336});
      continue;
    }
    add("block_sparse_moe.gate", {8, 4096});
    for (int e = 0; e < 8; ++e) {
      const std::string expert = fmt::format("block_sparse_moe.experts.{}.", e);
      add(expert + "w1", {14336, 4096}), add(expert + "w2", {4096, 14336});
      add(expert + "w3", {14336, 4096});
    }
  }
  rows.push_back({"model.norm.weight", {4096}});
  rows.push_back({"lm_head.weight", {words, 4096}});
  return bf16(std::move(rows));
}

// GPT-3 XL of Megatron-LM with the stages' layers numbered through.
std::vector<Tensor> megatron() {
  std::vector<std::pair<std::string, Shape>> rows{
      {"model.language_model.embedding.word_embeddings.weight", {50304, 2064}},
      {"model.language_model.embedding.position_embeddings.weight", {1024, 2064}}};
  for (int i = 0; i < 24; ++i) {
    const auto add = [&](std::string_view name, Shape shape) {
      rows.push_back(
          {fmt::format("model.language_model.encoder.layers.{}.{}", i, name), shape});
    };
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
      add(fmt::format("{}.weight", norm), {2064}),
          add(fmt::format("{}.bias", norm), {2064});
    }
    add("self_attention.query_key_value.weight", {6192, 2064});
    add("self_attention.query_key_value.bias", {6192});
    add("self_attention.dense.weight", {2064, 2064});
    add("self_attention.dense.bias", {2064});
    add("mlp.dense_h_to_4h.weight", {8256, 2064}),
        add("mlp.dense_h_to_4h.bias", {8256});
    add("mlp.dense_4h_to_h.weight", {2064, 8256}),
        add("mlp.dense_4h_to_h.bias", {2064});
  }
  rows.push_back({"model.language_model.encoder.final_layernorm.weight", {2064}});
  rows.push_back({"model.language_model.encoder.final_layernorm.bias", {2064}});
  return bf16(std::move(rows));
}

Collection cut(const std::vector<Tensor>& tensors, std::string_view config,
               std::string_view rules = "") {
  const Parallel parallel = parse_parallel(config).value();
  const RuledModel ruled = choose_rules(rules, file_of(tensors), parallel).value();
  return cut_by_rules(ruled, tensors, parallel).value();
}

// The boxes of a tensor at a position, as texts.
std::string boxes_at(const Collection& collection, std::string_view name, HolderId p) {
  std::string text;
  const Layout& layout = collection.layout();
  for (const Slice& slice : layout.slices(collection.find(name).value())) {
    for (PieceId piece = slice.first; piece < slice.last; ++piece) {
      if (layout.holder(piece) == p) text += to_string(slice.box);
    }
  }
  return text;
}

std::string refusal(std::string_view rules, const std::vector<Tensor>& tensors) {
  const auto ruled = apply_rules(find_rule_set(rules).value(), tensors);
  return ruled.ok() ? "" : ruled.error().message();
}

TEST(Rules, TheBuiltInSetsReadTheirModels) {
  const std::vector<std::tuple<std::string, std::vector<Tensor>, int64_t>> rows{
      {"hf-gpt2", gpt2(), 12},
      {"hf-llama", llama(), 32},
      {"hf-mixtral", llama(true), 32},
      {"megatron-gpt", megatron(), 24}};
  for (const auto& [name, tensors, layers] : rows) {
    const RuledModel ruled = choose_rules("", file_of(tensors), {}).value();
    EXPECT_EQ(ruled.rules, name);
    EXPECT_EQ(ruled.model.layers, layers);
    EXPECT_EQ(ruled.model.parameters.size(), tensors.size());
    const Collection all = cut(tensors, "tp=2,pp=4,dp=2");
    EXPECT_TRUE(all.check_covered().ok()) << name;
    EXPECT_EQ(all.bytes(), file_of(tensors).bytes()) << name;
    for (const std::string& other : rule_set_names()) {
      if (other == name) break;  // of several that fit, the first counts
      EXPECT_NE(refusal(other, tensors), "") << other;
    }
  }
}

TEST(Rules, FusedWeightsAreCutByComponent) {
  const Collection all = cut(gpt2(), "tp=4,pp=2");
  // Rank 1 of stage 0 has a quarter of the queries, of the keys and of the values.
  EXPECT_EQ(boxes_at(all, "h.0.attn.c_attn.weight", 1),
            "[0:768, 192:384][0:768, 960:1152][0:768, 1728:1920]");
  EXPECT_EQ(boxes_at(all, "h.0.attn.c_attn.bias", 1), "[192:384][960:1152][1728:1920]");
  EXPECT_EQ(boxes_at(all, "h.0.mlp.c_proj.weight", 3), "[2304:3072, 0:768]");
  EXPECT_EQ(boxes_at(all, "h.6.ln_1.weight", 3), "");
  EXPECT_EQ(boxes_at(all, "h.6.ln_1.weight", 4), "[0:768]");
  // The head is tied: both stages have the words, whose rows are padded to 50688.
  EXPECT_EQ(boxes_at(all, "wte.weight", 3), "[38016:50257, 0:768]");
  EXPECT_EQ(boxes_at(all, "wte.weight", 7), "[38016:50257, 0:768]");
}

TEST(Rules, ExpertsWithTensorsOfTheirOwnAreDivided) {
  const Collection all = cut(llama(true), "tp=2,dp=2,ep=2,etp=2");
  const std::string expert = "model.layers.3.block_sparse_moe.experts.{}.w2.weight";
  const auto at = [&](int e, HolderId p) {
    return boxes_at(all, fmt::format(fmt::runtime(expert), e), p);
  };
  EXPECT_EQ(at(3, 0), "[0:4096, 0:7168]");
  EXPECT_EQ(at(3, 1), "[0:4096, 7168:14336]");
  EXPECT_EQ(at(3, 2), "");
  EXPECT_EQ(at(4, 3), "[0:4096, 7168:14336]");
}

TEST(Rules, OptimizerStateFollowsItsParameter) {
  std::vector<Tensor> tensors = llama();
  for (Tensor& tensor : tensors) tensor.name = "net." + tensor.name;
  const std::string name = "model.layers.9.mlp.down_proj.weight";
  tensors.push_back({.name = "opt." + name + ".exp_avg", .shape = {4096, 14336}});
  tensors.push_back({.name = "opt." + name + ".step", .shape = {}});
  const Collection all = cut(tensors, "tp=2,pp=2,dp=2,zero=1");
  EXPECT_EQ(boxes_at(all, "net." + name, 1), "[0:4096, 7168:14336]");
  EXPECT_EQ(boxes_at(all, "opt." + name + ".exp_avg", 1), "[0:2048, 7168:14336]");
  EXPECT_EQ(boxes_at(all, "opt." + name + ".exp_avg", 3), "[2048:4096, 7168:14336]");
  EXPECT_EQ(boxes_at(all, "opt." + name + ".step", 3), "[]");
  EXPECT_EQ(boxes_at(all, "opt." + name + ".step", 4), "");
  tensors.back() = {.name = "opt." + name + ".row", .shape = {4096}};
  EXPECT_THAT(refusal("hf-llama", tensors),
              HasSubstr("expected that of its parameter"));
  tensors.back() = {.name = "opt.model.layers.9.mlp.extra.exp_avg", .shape = {4096}};
  EXPECT_THAT(
      refusal("hf-llama", tensors),
      StartsWith("opt.model.layers.9.mlp.extra.exp_avg: has no rule in hf-llama"));
}

TEST(Rules, WhatDoesNotFitIsRefusedByName) {
  std::vector<Tensor> tensors = llama();
  std::erase_if(tensors, [](const Tensor& tensor) {
    return tensor.name == "model.layers.7.self_attn.o_proj.weight";
  });
  EXPECT_THAT(refusal("hf-llama", tensors),
              StartsWith("layers.7.self_attn.o_proj.weight: is missing"));
  EXPECT_THAT(refusal("hf-gpt2", bf16({{"a.weight", {2, 3}}})),
              HasSubstr("none of 1 tensors has a rule, so they are another model's"));
  const auto degree = [](const std::vector<Tensor>& of, std::string_view config) {
    const RuledModel ruled = choose_rules("", file_of(of), {}).value();
    return cut_by_rules(ruled, of, parse_parallel(config).value()).error().message();
  };
  EXPECT_EQ(degree(gpt2(), "tp=5"),
            "h.0.attn.c_attn.weight: tp=5 does not divide its dimension of 768; "
            "expected a divisor");
  const RuledModel heads = choose_rules("", file_of(gpt2()), {}, 64).value();
  EXPECT_EQ(
      check_degrees(heads, parse_parallel("tp=8").value()).error().message(),
      "h.0.attn.c_attn.weight: tp=8 does not divide its dimension of 768 in units "
      "of 64; expected a divisor");
  EXPECT_TRUE(check_degrees(heads, parse_parallel("tp=6").value()).ok());
  EXPECT_THAT(degree(llama(true), "dp=3,ep=3"),
              HasSubstr("ep=3 does not divide its 8 experts; expected a divisor"));
  EXPECT_THAT(degree(gpt2(), "pp=13"), HasSubstr("13"));
}

TEST(Rules, AGateInsideAnotherWeightIsNotCutAsPlainRows) {
  EXPECT_THAT(
      refusal("megatron-gpt", bf16({{"layers.0.mlp.linear_fc1.weight", {64, 8}},
                                    {"layers.0.mlp.linear_fc2.weight", {8, 32}}})),
      StartsWith("layers.0.mlp.linear_fc1.weight: has 64 rows, twice the columns "
                 "of layers.0.mlp.linear_fc2.weight"));
}

TEST(Rules, RulesThatTellOfAGateAreRefusedWhereThereIsNone) {
  RuleSet gated{.name = "mine"};
  gated.rules.push_back(parse_rule("layers.#.mlp.linear_fc1.weight", "rows/2").value());
  gated.rules.push_back(parse_rule("layers.#.mlp.linear_fc2.weight", "columns").value());
  const auto mlp = [&](int64_t rows) {
    return apply_rules(gated, bf16({{"layers.0.mlp.linear_fc1.weight", {rows, 8}},
                                    {"layers.0.mlp.linear_fc2.weight", {8, 32}}}));
  };
  EXPECT_OK(mlp(64));
  EXPECT_THAT(message_of(mlp(32)),
              StartsWith("layers.0.mlp.linear_fc1.weight: has 32 rows, and "
                         "layers.0.mlp.linear_fc2.weight has 32 columns"));
}

TEST(Rules, AWeightWhoseBiasShowsTheOtherOrderOfDimensionsIsRefused) {
  std::vector<Tensor> nano = gpt2();  // nanoGPT: the same names, but Linear for Conv1D
  for (Tensor& tensor : nano) {
    if (tensor.shape.rank() != 2 || !tensor.name.starts_with("h.")) continue;
    tensor.shape = Shape{tensor.shape[1], tensor.shape[0]};
  }
  EXPECT_EQ(refusal("hf-gpt2", nano),
            "h.0.attn.c_attn.weight: has the shape [2304, 768], but its bias has 2304 "
            "values; expected [inputs, outputs], as Conv1D has them, or --rules with a "
            "file");
  EXPECT_THAT(choose_rules("", file_of(nano), {.tp = 2}).error().message(),
              HasSubstr("as Conv1D has them"));
}

TEST(Rules, AModelThatASetAlmostKnowsIsNotCutAsItsFilesAre) {
  for (const bool experts : {false, true}) {
    std::vector<Tensor> tensors = llama(experts);
    tensors.push_back({.name = "model.layers.0.extra.weight", .shape = {8}});
    EXPECT_EQ(choose_rules("", file_of(tensors), {.tp = 2}).error().message(),
              fmt::format("model.layers.0.extra.weight: has no rule in {}; expected "
                          "rules for every tensor, or --rules as-cut to cut the "
                          "tensors as the files are cut",
                          experts ? "hf-mixtral" : "hf-llama"));
    // Stages and replicas need no rules.
    const Parallel stages{.pp = 2, .dp = 2};
    EXPECT_EQ(choose_rules("", file_of(tensors), stages).value().rules, "as-cut");
    EXPECT_EQ(choose_rules("as-cut", file_of(tensors), {.tp = 2}).value().rules,
              "as-cut");
  }
}

TEST(Rules, TensorParallelismAsTheFilesAreCutNeedsFilesThatAreCut) {
  const std::vector<Tensor> tensors{{.name = "layers.0.own.weight", .shape = {8, 8}}};
  const RuledModel ruled = choose_rules("", file_of(tensors), {.tp = 2}).value();
  EXPECT_EQ(check_degrees(ruled, {.tp = 2}).error().message(),
            "as-cut: tp=2, but the source cuts no tensor; expected tp=1, or other rules "
            "(--rules)");
  EXPECT_TRUE(check_degrees(ruled, {.pp = 1, .dp = 2}).ok());
}

TEST(Rules, StagesGoByNumbersAndNamesInFilesThatAreSortedByName) {
  std::vector<std::pair<std::string, Shape>> rows;
  for (const int i : {0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9}) {
    rows.push_back({fmt::format("blocks.{}.a", i), {4}});
  }
  for (const char* name : {"lm_head.bias", "wpe.table", "x_embed"}) {
    rows.push_back({name, {2}});
  }
  const Collection all = cut(bf16(rows), "pp=2");
  for (int i = 0; i < 12; ++i) {
    const std::string name = fmt::format("blocks.{}.a", i);
    EXPECT_EQ(boxes_at(all, name, 0), i < 6 ? "[0:4]" : "") << name;
    EXPECT_EQ(boxes_at(all, name, 1), i < 6 ? "" : "[0:4]") << name;
  }
  EXPECT_EQ(boxes_at(all, "lm_head.bias", 1), "[0:2]");
  EXPECT_EQ(boxes_at(all, "wpe.table", 0), "[0:2]");
  EXPECT_EQ(boxes_at(all, "x_embed", 0), "[0:2]");
}

TEST(Rules, WhatRulesCannotDoIsRefused) {
  const std::vector<Tensor> tensors = gpt2();
  const RuledModel ruled = choose_rules("hf-gpt2", file_of(tensors), {}).value();
  EXPECT_EQ(cut_by_rules(ruled, tensors, {.tp = 2, .qkv = QkvLayout::kBlocked})
                .error()
                .message(),
            "parallel: tp=2,pp=1,dp=1,qkv=blocked: rules do not reorder the rows of a "
            "weight; expected qkv=interleaved");
  EXPECT_ERROR(cut_by_rules(ruled, tensors, {.dp = 1 << 20}), ErrorCode::kUnsupported);
}

TEST(Rules, WordsThatContradictEachOtherAreRefused) {
  for (const char* words : {"rows columns", "whole rows", "rows/2 vocabulary",
                            "optional some", "unit=2 unit=4", "rows rows"}) {
    EXPECT_FALSE(parse_rule("layers.#.w", words).ok()) << words;
  }
  EXPECT_EQ(parse_rule("w", "first last whole").error().message(),
            "w: says both \"first\" and \"last\"; expected one of them");
  for (const char* words : {"rows/0", "rows/", "rows/x", "rowsy", "unit", "unit="}) {
    EXPECT_THAT(parse_rule("layers.#.w", words).error().message(),
                HasSubstr("is no word of a rule"));
  }
  EXPECT_TRUE(parse_rule("layers.#.w", "rows/3 heads unit=2 optional").ok());
}

TEST(Rules, AJsonFileHasRules) {
  const auto read = [](std::string_view rules) {
    const std::string text = fmt::format(
        R"({{"holdfast": "rules", "version": 1, "name": "mine", "rules": {}}})", rules);
    return parse_rule_set(text, "mine.json");
  };
  const RuleSet set = read(R"({"in.weight": "first whole",
      "blocks.#.up.weight": "rows/2 unit=2", "out.weight": "last columns"})")
                          .value();
  const auto tensors = bf16({{"in.weight", {8, 8}},
                             {"blocks.0.up.weight", {16, 8}},
                             {"blocks.1.up.weight", {16, 8}},
                             {"out.weight", {8, 8}}});
  const RuledModel ruled = apply_rules(set, tensors).value();
  const auto config = [](std::string_view text) {
    return parse_parallel(text).value();
  };
  const Collection all = cut_by_rules(ruled, tensors, config("tp=4")).value();
  EXPECT_EQ(boxes_at(all, "blocks.1.up.weight", 1), "[2:4, 0:8][10:12, 0:8]");
  EXPECT_THAT(cut_by_rules(ruled, tensors, config("tp=8")).error().message(),
              HasSubstr("tp=8 does not divide its dimension of 8 in units of 2"));
  EXPECT_THAT(read(R"({"a.#.b": "rowz"})").error().message(),
              HasSubstr("\"rowz\" is no word of a rule"));
  EXPECT_THAT(read(R"({"a.b": "rows"})").error().message(), HasSubstr("first or last"));
  EXPECT_THAT(read(R"({"a.#.b": 3})").error().message(), HasSubstr("rules.a.#.b: number; expected a string"));
  EXPECT_THAT(read("{}").error().message(), HasSubstr("expected an object"));
}

TEST(Rules, ASourceThatIsCutShowsTheAxes) {
  const auto tensors = bf16({{"m.emb.weight", {8, 4}},
                             {"m.blocks.0.a.weight", {8, 4}},
                             {"m.blocks.1.a.weight", {8, 4}},
                             {"o.blocks.0.a.weight.slot", {8, 4}}});
  const auto build = [&](const std::function<std::vector<Box>(TensorId)>& boxes) {
    LayoutBuilder builder(tensors, {{.name = "a"}, {.name = "b"}});
    for (TensorId t = 0; t < 4; ++t) {
      for (const Box& box : boxes(t))
        builder.add(t, box, box[0].lo < 4 ? 0 : 1, t * 64 + box[1].lo * 8);
    }
    return Collection::create(tensors, std::move(builder).build().value()).value();
  };
  const Collection source = build([](TensorId t) {
    if (t == 0) return std::vector<Box>{{{0, 8}, {0, 4}}};
    return std::vector<Box>{{{0, 4}, {0, 4}}, {{4, 8}, {0, 4}}};
  });
  const RuledModel ruled = choose_rules("", source, {.tp = 4}).value();
  EXPECT_EQ(ruled.rules, "as-cut");
  const Collection all =
      cut_by_rules(ruled, tensors, parse_parallel("tp=4,pp=2").value()).value();
  EXPECT_EQ(boxes_at(all, "m.emb.weight", 3), "[0:8, 0:4]");
  EXPECT_EQ(boxes_at(all, "m.blocks.0.a.weight", 3), "[6:8, 0:4]");
  EXPECT_EQ(boxes_at(all, "m.blocks.1.a.weight", 4), "[0:2, 0:4]");
  EXPECT_EQ(boxes_at(all, "o.blocks.0.a.weight.slot", 3), "[6:8, 0:4]");
  const Collection odd = build([](TensorId) {
    return std::vector<Box>{{{0, 4}, {0, 2}}, {{0, 4}, {2, 4}}, {{4, 8}, {0, 4}}};
  });
  EXPECT_THAT(rules_of_cut(odd).error().message(),
              StartsWith("m.emb.weight: is cut along several dimensions"));
}

}  // namespace
}  // namespace holdfast
