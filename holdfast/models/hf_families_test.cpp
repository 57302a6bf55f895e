// Compares the tensors that configurations give with those of transformers' classes. The
// table was made by python/tests/adapters/planned_models.py.
#include "holdfast/models/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "holdfast/base/testing.h"
#include "holdfast/models/build.h"
#include "holdfast/models/model_testing.h"
#include "holdfast/models/named_model.h"
#include "holdfast/models/rules.h"

namespace holdfast {
namespace {

Json table() {
  std::ifstream file(HOLDFAST_MODEL_FIXTURES "/transformers.json");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return parse_json(text, "transformers.json").value()["models"];
}

// The sizes in which the fused dimensions of a canonical shape are one dimension.
Json framework_shape(const Parameter& parameter) {
  const Shape& shape = parameter.tensor.shape;
  // Of experts, and of the columns of a Conv1D.
  const bool inner = shape.rank() == (parameter.expert ? 4 : 3) && parameter.axis == 2;
  const int fused = inner ? 1 : 0;
  const int end = inner ? 3 : parameter.rows;
  Json sizes = Json::array();
  int64_t product = 1;
  for (int k = 0; k < shape.rank(); ++k) {
    if (fused <= k && k < end) {
      product *= shape[k];
      if (k + 1 == end) sizes.push_back(product);
    } else {
      sizes.push_back(shape[k]);
    }
  }
  return sizes;
}

// "outputs", "inputs" or "none", in the words of the table.
std::string cut_of(const Parameter& parameter) {
  const int inputs = parameter.tensor.shape.rank() - 1;
  const bool has_inputs = inputs > 0 && !parameter.tensor.name.ends_with("bias");
  switch (parameter.cut) {
    case Cut::kReplicated: return "none";
    case Cut::kQkv:
    case Cut::kVocabulary: return "outputs";
    default: return has_inputs && parameter.axis == inputs ? "inputs" : "outputs";
  }
}

Model model_of(const Json& config) {
  return model_from_config(JsonPlace(config, "config.json")).value();
}

const Parameter& find(const Model& model, std::string_view name) {
  const auto found = std::ranges::find_if(
      model.parameters, [&](const Parameter& p) { return p.tensor.name == name; });
  HOLDFAST_CHECK(found != model.parameters.end(), "no {}", name);
  return *found;
}

TEST(HfFamiliesTest, EveryTensorHasTheNameAndShapeOfTransformers) {
  for (const Json& row : table()) {
    SCOPED_TRACE(row["config"].dump());
    Json shapes = Json::object(), ties = Json::object();
    for (const Parameter& parameter : model_of(row["config"]).parameters) {
      shapes[parameter.tensor.name] = framework_shape(parameter);
      for (const std::string& alias : parameter.tensor.aliases) {
        ties[alias] = parameter.tensor.name;
      }
    }
    EXPECT_EQ(shapes, row["tensors"]);
    EXPECT_EQ(ties, row["ties"]);
  }
}

// A row-wise projection adds its bias once, so the bias is not cut; transformers lists
// the module and not its tensors.
TEST(HfFamiliesTest, TensorParallelismCutsWhatTransformersCuts) {
  int seen = 0;
  for (const Json& row : table()) {
    const Model model = model_of(row["config"]);
    SCOPED_TRACE(model.name);
    for (const auto& [name, cut] : row["cuts"].items()) {
      const bool added_once = cut == "inputs" && name.ends_with(".bias");
      EXPECT_EQ(cut_of(find(model, name)), added_once ? "none" : cut.get<std::string>())
          << name;
      ++seen;
    }
  }
  EXPECT_GT(seen, 300);
}

TEST(HfFamiliesTest, FamiliesWithoutAPlanOfTransformersAreCutByTheSameRules) {
  std::map<std::string, Model> models;
  for (const Json& row : table())
    models[row["config"]["architectures"][0]] = model_of(row["config"]);
  const std::tuple<const char*, const char*, const char*> expected[] = {
      {"OPTForCausalLM", "model.decoder.embed_tokens.weight", "outputs"},
      {"OPTForCausalLM", "model.decoder.embed_positions.weight", "none"},
      {"OPTForCausalLM", "model.decoder.layers.0.self_attn.k_proj.weight", "outputs"},
      {"OPTForCausalLM", "model.decoder.layers.0.self_attn.out_proj.weight", "inputs"},
      {"OPTForCausalLM", "model.decoder.layers.1.fc1.weight", "outputs"},
      {"OPTForCausalLM", "model.decoder.layers.1.fc2.weight", "inputs"},
      {"BertForMaskedLM", "bert.encoder.layer.0.attention.self.query.bias", "outputs"},
      {"BertForMaskedLM", "bert.encoder.layer.0.attention.output.dense.weight",
       "inputs"},
      {"BertForMaskedLM", "bert.encoder.layer.0.attention.output.dense.bias", "none"},
      {"BertForMaskedLM", "bert.encoder.layer.0.intermediate.dense.weight", "outputs"},
      {"BertForMaskedLM", "bert.encoder.layer.0.output.dense.weight", "inputs"},
      {"BertForMaskedLM", "cls.predictions.bias", "outputs"},
      {"BertForMaskedLM", "cls.predictions.transform.dense.weight", "none"},
      {"ViTForImageClassification", "vit.layers.1.attention.v_proj.weight", "outputs"},
      {"ViTForImageClassification", "vit.layers.1.attention.o_proj.weight", "inputs"},
      {"ViTForImageClassification", "vit.layers.1.mlp.fc2.bias", "none"},
      {"ViTForImageClassification", "vit.embeddings.patch_embeddings.projection.weight",
       "none"},
      {"DeepseekV3ForCausalLM", "model.layers.0.self_attn.q_a_proj.weight", "none"},
      {"DeepseekV3ForCausalLM", "model.layers.0.self_attn.q_b_proj.weight", "outputs"},
      {"DeepseekV3ForCausalLM", "model.layers.0.self_attn.kv_b_proj.weight", "outputs"},
      {"DeepseekV3ForCausalLM", "model.layers.0.self_attn.o_proj.weight", "inputs"},
  };
  for (const auto& [type, name, cut] : expected) {
    EXPECT_EQ(cut_of(find(models.at(type), name)), cut) << name;
  }
}

// The tensors of a model as one file has them.
Collection file_of(const Json& shapes) {
  std::vector<Tensor> tensors;
  for (const auto& [name, sizes] : shapes.items()) {
    Tensor& tensor = tensors.emplace_back(Tensor{.name = name});
    tensor.shape = Shape::create(sizes.get<std::vector<int64_t>>()).value();
  }
  return tests::file_of(std::move(tensors));
}

// What holdfast.layout_of() tells about the module: names, shapes and heads. The weights
// of a Conv1D are [inputs, outputs].
Model model_of_module(const Json& row) {
  const Json& config = row["config"];
  const auto number = [&](const char* a, const char* b) -> int64_t {
    return config.contains(a) ? config[a].get<int64_t>() : config.value(b, int64_t{0});
  };
  const int64_t heads = number("num_attention_heads", "n_head");
  const bool latent = config.contains("kv_lora_rank");
  const int64_t keys = latent ? 0 : number("num_key_value_heads", "");
  std::vector<NamedTensor> tensors;
  for (const auto& [name, sizes] : row["tensors"].items()) {
    NamedTensor& each = tensors.emplace_back();
    each.tensor.name = name;
    each.tensor.shape = Shape::create(sizes.get<std::vector<int64_t>>()).value();
    for (const auto& [alias, of] : row["ties"].items()) {
      if (of == name) each.tensor.aliases.push_back(alias);
    }
    each.transposed = config["model_type"] == "gpt2" && sizes.size() == 2 &&
                      name.find("h.") != name.npos;
  }
  return model_of_tensors("module", std::move(tensors),
                          {heads, keys > 0 ? keys : heads}, TensorOrder::kAny)
      .value();
}

// Names of other models must not be mistaken, so the cut of modules without a table is
// found by another way than that of a configuration. Both agree, head for head.
TEST(HfFamiliesTest, ModulesOfEveryFamilyAreCutAsTheirConfigurationIs) {
  for (const Json& row : table()) {
    SCOPED_TRACE(row["config"].dump());
    const Model model = model_of(row["config"]), module = model_of_module(row);
    ASSERT_EQ(module.parameters.size(), model.parameters.size());
    EXPECT_EQ(module.layers, model.layers);
    EXPECT_EQ(module.experts, model.experts);
    for (const Parameter& found : module.parameters) {
      SCOPED_TRACE(found.tensor.name);
      const Parameter& planned = find(model, found.tensor.name);
      if (planned.tensor.role == Role::kBuffer) continue;  // a shape does not tell
      EXPECT_EQ(found.tensor.shape, planned.tensor.shape);
      EXPECT_EQ(found.cut, planned.cut);
      EXPECT_EQ(found.axis, planned.axis);
      EXPECT_EQ(found.groups, planned.groups);
      EXPECT_EQ(found.queries, planned.queries);
      EXPECT_EQ(found.site, planned.site);
      EXPECT_EQ(found.also_last, planned.also_last);
    }
  }
}

// What `plan` knows by a configuration, `reshard` knows by the names in a checkpoint: those
// of the module, and those that save_pretrained() writes.
TEST(HfFamiliesTest, CheckpointsOfEveryFamilyAreCutAsItsConfigurationIs) {
  std::set<std::string> sets;
  for (const Json& row : table()) {
    const Model model = model_of(row["config"]);
    SCOPED_TRACE(row["config"].dump());
    const Collection file = file_of(row["tensors"]);
    const Parallel parallel = parse_parallel("tp=2,pp=2").value();
    const RuledModel ruled = choose_rules("", file, parallel).value();
    sets.insert(ruled.rules);
    ASSERT_EQ(ruled.model.parameters.size(), model.parameters.size());
    for (const Parameter& cut : ruled.model.parameters) {
      const Parameter& planned = find(model, cut.tensor.name);
      EXPECT_EQ(cut_of(cut), cut_of(planned)) << cut.tensor.name;
      EXPECT_EQ(cut.site, planned.site) << cut.tensor.name;
      // The file of a GPT2Model could be that of one with a head, which is tied.
      const bool unknown = row["config"]["architectures"][0] == "GPT2Model";
      EXPECT_TRUE(unknown || cut.also_last == planned.also_last) << cut.tensor.name;
    }
    EXPECT_OK(cut_by_rules(ruled, file.tensors(), parallel));
    if (!row.contains("saved")) continue;
    const Collection saved = file_of(row["saved"]);
    const RuledModel of_files = choose_rules("", saved, parallel).value();
    EXPECT_TRUE(of_files.rules.starts_with(ruled.rules)) << of_files.rules;
    EXPECT_OK(cut_by_rules(of_files, saved.tensors(), parallel));
  }
  EXPECT_THAT(sets, testing::UnorderedElementsAre(
                        "hf-gpt2", "hf-llama", "hf-mixtral", "hf-qwen-moe", "hf-phi3",
                        "hf-deepseek", "hf-gpt-neox", "hf-opt", "hf-bert", "hf-vit"));
}

// What `export` writes for transformers is called as in the files of save_pretrained().
TEST(HfFamiliesTest, FilesHaveTheNamesAndShapesOfSavePretrained) {
  int renamed = 0;
  for (const Json& row : table()) {
    SCOPED_TRACE(row["config"].dump());
    const std::string type = row["config"]["model_type"];
    const RuleSet rules = find_rule_set(rules_of_type(type)).value();
    Json files = Json::object();
    for (const auto& [name, sizes] : row["tensors"].items()) {
      const Shape shape = Shape::create(sizes.get<std::vector<int64_t>>()).value();
      const auto stored = file_tensors(rules, name, shape);
      if (stored.empty()) files[name] = sizes;
      int64_t elements = 0;
      for (const FileTensor& one : stored) {
        files[one.name] = one.shape.sizes();
        elements += one.box.elements();
        ++renamed;
      }
      EXPECT_EQ(elements, stored.empty() ? 0 : shape.elements()) << name;
    }
    EXPECT_EQ(files, row.contains("saved") ? row["saved"] : row["tensors"]);
  }
  EXPECT_GT(renamed, 200);
  EXPECT_EQ(rules_of_type("t5"), "");
}

// Two heads of keys and eight of queries, with 24 rows each, one after the other.
TEST(HfFamiliesTest, QueriesKeysAndValuesInOneWeightAreCutByHeads) {
  const auto file = [](int64_t rows) {
    std::vector<Tensor> tensors{
        {.name = "model.embed_tokens.weight", .shape = {10, 4}},
        {.name = "model.layers.0.self_attn.qkv_proj.weight", .shape = {rows, 4}},
        {.name = "model.layers.0.self_attn.o_proj.weight", .shape = {4, 192}},
        {.name = "model.layers.0.mlp.gate_up_proj.weight", .shape = {16, 4}},
        {.name = "model.layers.0.mlp.down_proj.weight", .shape = {4, 8}},
        {.name = "model.layers.0.input_layernorm.weight", .shape = {4}},
        {.name = "model.layers.0.post_attention_layernorm.weight", .shape = {4}},
        {.name = "model.norm.weight", .shape = {4}}};
    return tests::file_of(std::move(tensors));
  };
  const Collection grouped = file(192 + 2 * 48);
  for (const int64_t head : {0, 24}) {
    const RuledModel ruled = choose_rules("", grouped, {.tp = 2}, head).value();
    const Collection cut = cut_by_rules(ruled, grouped.tensors(), {.tp = 2}).value();
    const TensorId id = cut.find("model.layers.0.self_attn.qkv_proj.weight").value();
    std::vector<std::string> boxes;
    for (const Slice& slice : cut.layout().slices(id)) {
      if (cut.layout().holder(slice.first) == 1) boxes.push_back(to_string(slice.box));
    }
    EXPECT_THAT(boxes, testing::ElementsAre("[96:192, 0:4]", "[216:240, 0:4]",
                                            "[264:288, 0:4]"));
    // Any part of the rows can be a part of ZeRO.
    const Collection shards =
        cut_by_rules(ruled, grouped.tensors(), {.tp = 2, .dp = 5, .zero = 3}).value();
    EXPECT_OK(shards.check_covered());
    EXPECT_EQ(shards.bytes(), grouped.bytes());
  }
  const RuledModel heads = choose_rules("", grouped, {.tp = 2}, 24).value();
  EXPECT_THAT(check_degrees(heads, {.tp = 4}).error().message(),
              testing::HasSubstr("qkv_proj.weight: tp=4 does not divide its dimension of "
                                 "48 in units of 24"));
  EXPECT_THAT(choose_rules("", file(192 + 7), {.tp = 2}).error().message(),
              testing::HasSubstr("has 199 rows, and model.layers.0.self_attn.o_proj.weight "
                                 "has 192 columns; expected"));
}

TEST(HfFamiliesTest, LayersAndEndsAreOnTheirStages) {
  for (const Json& row : table()) {
    const Model model = model_of(row["config"]);
    SCOPED_TRACE(row["config"].dump());
    const Json& config = row["config"];
    const char* key = config.contains("n_layer") ? "n_layer" : "num_hidden_layers";
    EXPECT_EQ(model.layers, config[key].get<int64_t>());
    EXPECT_EQ(model.parameters.front().site, Site::kFirst);
    EXPECT_EQ(model.parameters.back().site, Site::kLast);
    EXPECT_EQ(model.parameters.front().also_last, !row["ties"].empty());
  }
}

// Sizes of well-known models, from their model cards and papers.
TEST(HfFamiliesTest, WellKnownModelsHaveTheirSizes) {
  const auto count = [](const char* text) {
    return tests::parameter_count(model_of(parse_json(text, "test").value()));
  };
  EXPECT_EQ(count(R"({"model_type": "mistral", "hidden_size": 4096,
      "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 32,
      "num_key_value_heads": 8, "vocab_size": 32000})"),
            7'241'732'096);
  EXPECT_EQ(count(R"({"model_type": "qwen2", "hidden_size": 3584,
      "intermediate_size": 18944, "num_attention_heads": 28, "num_hidden_layers": 28,
      "num_key_value_heads": 4, "vocab_size": 152064})"),
            7'615'616'512);
  EXPECT_EQ(count(R"({"model_type": "phi3", "hidden_size": 3072,
      "intermediate_size": 8192, "num_attention_heads": 32, "num_hidden_layers": 32,
      "num_key_value_heads": 32, "vocab_size": 32064})"),
            3'821'079'552);
  EXPECT_EQ(count(R"({"model_type": "bert", "hidden_size": 768,
      "architectures": ["BertModel"], "intermediate_size": 3072,
      "num_attention_heads": 12, "num_hidden_layers": 12, "vocab_size": 30522})"),
            109'482'240);
}

constexpr const char* kQwen = R"({"model_type": "qwen2", "hidden_size": 64,
    "intermediate_size": 160, "num_attention_heads": 8, "num_hidden_layers": 2,
    "num_key_value_heads": 2, "vocab_size": 300})";

// With whole heads, 4 ranks share 2 KV heads: each KV head has two holders.
TEST(HfFamiliesTest, WithWholeHeadsKvHeadsHaveReplicas) {
  const Model model = model_of(parse_json(kQwen, "test").value());
  const auto held = [&](const char* text) {
    const Parallel parallel = parse_parallel(text).value();
    const Collection made =
        build_collection(model, parallel, find_training("weights").value(),
                         make_devices(1, 4), {})
            .value();
    return made.bytes_held()[0];
  };
  const int64_t heads = 2 * (8 * 64 + 8);  // K and V, 8 rows of a head with their bias
  EXPECT_EQ(held("tp=4,qkv=blocked") - held("tp=4"), 2 * 2 * heads / 2);
}

TEST(HfFamiliesTest, WrongConfigurationsGetOneSentence) {
  const auto refusal = [](const Json& patch) {
    Json config = parse_json(kQwen, "test").value();
    config.update(patch);
    const auto model = model_from_config(JsonPlace(config, "c.json"));
    return model.ok() ? "" : model.error().message();
  };
  EXPECT_EQ(refusal({{"architectures", Json::array({"Qwen2ForTokenClassification"})}}),
            "c.json.architectures: \"Qwen2ForTokenClassification\"; expected a class "
            "that ends in ForCausalLM (plan --module takes any model)");
  EXPECT_EQ(refusal({{"num_key_value_heads", 3}}),
            "c.json: num_attention_heads is 8; expected a multiple of "
            "num_key_value_heads = 3");
  EXPECT_THAT(
      refusal({{"hidden_size", int64_t{1} << 28}, {"vocab_size", int64_t{1} << 28}}),
      testing::HasSubstr("2^50"));
  EXPECT_THAT(refusal({{"model_type", "gemma3"}}),
              testing::HasSubstr("gemma3_text, gpt2, gpt_neox, llama, mistral"));
}

}  // namespace
}  // namespace holdfast
