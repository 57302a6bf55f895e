#include "holdfast/models/families.h"

#include <fmt/ranges.h>

#include <array>

namespace holdfast {
namespace {

constexpr int64_t kGptVocabulary = 50257;

struct GptRow {
  const char* name;
  int64_t layers, hidden, heads, positions;
};

constexpr std::array kGpts{
    GptRow{"gpt2", 12, 768, 12, 1024},
    GptRow{"gpt2-medium", 24, 1024, 16, 1024},
    GptRow{"gpt2-large", 36, 1280, 20, 1024},
    GptRow{"gpt2-xl", 48, 1600, 25, 1024},
    GptRow{"gpt-125m", 12, 768, 12, 2048},
    GptRow{"gpt-350m", 24, 1024, 16, 2048},
    GptRow{"gpt-760m", 24, 1536, 16, 2048},
    GptRow{"gpt-1.3b", 24, 2048, 16, 2048},
    GptRow{"gpt-2.7b", 32, 2560, 32, 2048},
    GptRow{"gpt-6.7b", 32, 4096, 32, 2048},
    GptRow{"gpt-13b", 40, 5120, 40, 2048},
    GptRow{"gpt-175b", 96, 12288, 96, 2048},
    GptRow{"tenplex-large", 24, 1536, 16, 1024},
    GptRow{"tenplex-1.3b", 24, 2064, 24, 1024},
    GptRow{"tenplex-2.7b", 32, 2560, 32, 1024},
    GptRow{"tenplex-6.7b", 32, 4096, 32, 1024},
};

struct LlamaRow {
  const char* name;
  int64_t layers, hidden, heads, kv_heads, inner, vocabulary, experts;
};

constexpr std::array kLlamas{
    LlamaRow{"llama-3-8b", 32, 4096, 32, 8, 14336, 128256, 0},
    LlamaRow{"llama-3-70b", 80, 8192, 64, 8, 28672, 128256, 0},
    LlamaRow{"llama-3-405b", 126, 16384, 128, 8, 53248, 128256, 0},
    LlamaRow{"mixtral-8x7b", 32, 4096, 32, 8, 14336, 32000, 8},
};

Model make(const GptRow& row) {
  return make_gpt({.name = row.name,
                   .layers = row.layers,
                   .hidden = row.hidden,
                   .heads = row.heads,
                   .vocabulary = kGptVocabulary,
                   .positions = row.positions});
}

Model make(const LlamaRow& row) {
  return make_llama({.name = row.name,
                     .layers = row.layers,
                     .hidden = row.hidden,
                     .heads = row.heads,
                     .kv_heads = row.kv_heads,
                     .inner = row.inner,
                     .vocabulary = row.vocabulary,
                     .experts = row.experts});
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const GptRow& row : kGpts) names.emplace_back(row.name);
  for (const LlamaRow& row : kLlamas) names.emplace_back(row.name);
  names.emplace_back("resnet50");
  names.emplace_back("vgg16");
  return names;
}

Result<Model> find_model(std::string_view name) {
  for (const GptRow& row : kGpts) {
    if (row.name == name) return make(row);
  }
  for (const LlamaRow& row : kLlamas) {
    if (row.name == name) return make(row);
  }
  if (name == "resnet50") return make_resnet50();
  if (name == "vgg16") return make_vgg16();
  return not_found("model \"{}\": not known; expected one of {}", name.substr(0, 80),
                   fmt::join(model_names(), ", "));
}

}  // namespace holdfast
