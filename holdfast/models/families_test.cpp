#include "holdfast/models/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "holdfast/models/model_testing.h"

namespace holdfast {
namespace {

int64_t count(std::string_view name) {
  return tests::parameter_count(find_model(name).value());
}

TEST(FamiliesTest, ParameterCountsAreThePublishedOnes) {
  const std::map<std::string, int64_t> published{
      {"gpt2", 124'439'808},
      {"gpt2-medium", 354'823'168},
      {"gpt2-large", 774'030'080},
      {"gpt2-xl", 1'557'611'200},
      {"llama-3-8b", 8'030'261'248},
      {"llama-3-70b", 70'553'706'496},
      {"llama-3-405b", 405'853'388'800},
      {"resnet50", 25'557'032},
      {"vgg16", 138'357'544},
      {"mixtral-8x7b", 46'702'792'704},
  };
  for (const auto& [name, parameters] : published)
    EXPECT_EQ(count(name), parameters) << name;
}

// GPT-3's and Tenplex's sizes have no exact published totals. So this compares them
// with the closed form for a GPT, L (12 h^2 + 13 h) + (V + S + 2) h, and with the size
// in the name.
TEST(FamiliesTest, GptSizesFollowTheClosedForm) {
  struct Row {
    const char* name;
    int64_t layers, hidden, positions;
    double about;
  };
  for (const Row& row :
       {Row{"gpt-125m", 12, 768, 2048, 125e6}, Row{"gpt-350m", 24, 1024, 2048, 356e6},
        Row{"gpt-760m", 24, 1536, 2048, 760e6}, Row{"gpt-1.3b", 24, 2048, 2048, 1.3e9},
        Row{"gpt-2.7b", 32, 2560, 2048, 2.65e9},
        Row{"gpt-6.7b", 32, 4096, 2048, 6.65e9},
        Row{"gpt-13b", 40, 5120, 2048, 12.85e9},
        Row{"gpt-175b", 96, 12288, 2048, 174.6e9},
        Row{"tenplex-large", 24, 1536, 1024, 758e6},
        Row{"tenplex-1.3b", 24, 2064, 1024, 1.33e9},
        Row{"tenplex-2.7b", 32, 2560, 1024, 2.65e9},
        Row{"tenplex-6.7b", 32, 4096, 1024, 6.65e9}}) {
    const int64_t h = row.hidden;
    const int64_t parameters = count(row.name);
    EXPECT_EQ(parameters,
              row.layers * (12 * h * h + 13 * h) + (50257 + row.positions + 2) * h)
        << row.name;
    EXPECT_NEAR(static_cast<double>(parameters) / row.about, 1.0, 0.02) << row.name;
    EXPECT_EQ(find_model(row.name)->layers, row.layers) << row.name;
  }
}

TEST(FamiliesTest, TheTinyGptOfTheGoldenTableHas466048Parameters) {
  const Model model = make_gpt({.name = "tiny",
                                .layers = 8,
                                .hidden = 64,
                                .heads = 4,
                                .vocabulary = 1000,
                                .positions = 32});
  EXPECT_EQ(tests::parameter_count(model), 466'048);
}

TEST(FamiliesTest, EveryListedModelIsFoundUnderItsNameWithDistinctTensors) {
  for (const std::string& name : model_names()) {
    const auto model = find_model(name);
    ASSERT_TRUE(model.ok()) << name;
    EXPECT_EQ(model->name, name);
    std::set<std::string> seen;
    std::set<int64_t> layers;
    for (const Parameter& parameter : model->parameters) {
      EXPECT_TRUE(seen.insert(parameter.tensor.name).second) << parameter.tensor.name;
      if (parameter.site == Site::kLayer) layers.insert(parameter.layer);
    }
    EXPECT_EQ(std::ssize(layers), model->layers) << name;
    EXPECT_EQ(*layers.rbegin(), model->layers - 1) << name;
  }
}

TEST(FamiliesTest, UnknownNameIsNotFoundAndTheMessageListsTheNames) {
  const auto model = find_model("gpt-5");
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(model.error().message(), testing::HasSubstr("gpt-5"));
  for (const std::string& name : model_names()) {
    EXPECT_THAT(model.error().message(), testing::HasSubstr(name));
  }
}

TEST(FamiliesTest, ResnetHas53BatchNormsWhoseBuffersAreNoParameters) {
  const Model model = make_resnet50();
  int64_t buffers = 0, counters = 0;
  for (const Parameter& parameter : model.parameters) {
    if (parameter.tensor.role == Role::kBuffer) {
      buffers += parameter.tensor.shape.elements();
    }
    if (parameter.tensor.role == Role::kCounter) {
      ++counters;
      EXPECT_EQ(parameter.tensor.dtype, Dtype::kI64);
      EXPECT_EQ(parameter.tensor.shape.rank(), 0);
    }
  }
  EXPECT_EQ(buffers, 53'120);
  EXPECT_EQ(counters, 53);
  EXPECT_FALSE(model.can_cut());
}

TEST(FamiliesTest, OnlyTheTwoLargeFullyConnectedLayersOfVggCanBeCut) {
  std::vector<std::string> cut;
  for (const Parameter& parameter : make_vgg16().parameters) {
    if (parameter.cut != Cut::kReplicated) cut.push_back(parameter.tensor.name);
  }
  EXPECT_THAT(cut, testing::ElementsAre("classifier.0.weight", "classifier.0.bias",
                                        "classifier.3.weight"));
}

TEST(FamiliesTest, PackedTensorsHaveEachComponentOnAnAxisOfItsOwn) {
  const Model llama = find_model("llama-3-70b").value();
  const Model mixtral = find_model("mixtral-8x7b").value();
  const auto shape = [](const Model& model, std::string_view name) {
    for (const Parameter& parameter : model.parameters) {
      if (parameter.tensor.name == name) return parameter.tensor.shape;
    }
    return Shape();
  };
  EXPECT_EQ(shape(llama, "layers.79.self_attention.query_key_value.weight"),
            (Shape{8, 10, 128, 8192}));
  EXPECT_EQ(shape(llama, "layers.0.mlp.dense_h_to_4h.weight"), (Shape{2, 28672, 8192}));
  EXPECT_EQ(shape(mixtral, "layers.3.mlp.experts.dense_h_to_4h.weight"),
            (Shape{8, 2, 14336, 4096}));
  EXPECT_EQ(shape(find_model("gpt2").value(), "layers.0.self_attention.query_key_value.bias"),
            (Shape{12, 3, 64}));
}

TEST(FamiliesTest, GptTiesItsHeadAndLlamaDoesNot) {
  const Parameter gpt = find_model("gpt2")->parameters.front();
  EXPECT_TRUE(gpt.also_last);
  EXPECT_THAT(gpt.tensor.aliases, testing::ElementsAre("output_layer.weight"));
  const Model llama = find_model("llama-3-8b").value();
  EXPECT_FALSE(llama.parameters.front().also_last);
  EXPECT_EQ(llama.parameters.back().tensor.name, "output_layer.weight");
  EXPECT_EQ(llama.parameters.back().site, Site::kLast);
}

}  // namespace
}  // namespace holdfast
