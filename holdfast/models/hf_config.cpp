#include "holdfast/models/hf_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>

#include "holdfast/base/checked.h"
#include "holdfast/models/hf_families.h"
#include "holdfast/models/hf_fields.h"
#include "holdfast/models/transformers.h"

namespace holdfast {
namespace {

constexpr int64_t kMaxParameters = int64_t{1} << 50;

// Fails if the product, which is a lower bound of the model's size, is above 2^50.
Result<void> check_product(const Fields& fields, const char* what,
                           std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    const auto next = checked_mul(product, size);
    if (!next || *next > kMaxParameters) {
      return invalid("{}: {} have more than 2^50 parameters", fields.where(), what);
    }
    product = *next;
  }
  return {};
}

Result<Model> read_gpt2(Fields& fields) {
  GptDims dims{.name = "gpt2"};
  dims.layers = HOLDFAST_TRY(size_of(fields, "n_layer", kMaxLayers));
  dims.hidden = HOLDFAST_TRY(size_of(fields, "n_embd"));
  dims.heads = HOLDFAST_TRY(size_of(fields, "n_head", kMaxHeads));
  dims.vocabulary = HOLDFAST_TRY(size_of(fields, "vocab_size"));
  dims.positions = HOLDFAST_TRY(size_of(fields, "n_positions"));
  dims.inner = HOLDFAST_TRY(size_or(fields, "n_inner", 4 * dims.hidden));
  dims.tied = HOLDFAST_TRY(flag_or(fields, "tie_word_embeddings", true));
  HOLDFAST_TRY(check_multiple(fields, "n_embd", dims.hidden, "n_head", dims.heads));
  if (HOLDFAST_TRY(flag_or(fields, "add_cross_attention", false))) {
    return unsupported("{}.add_cross_attention: true; expected false", fields.where());
  }
  HOLDFAST_TRY(check_product(fields, "its attention layers",
                             {dims.layers, 4, dims.hidden, dims.hidden}));
  HOLDFAST_TRY(
      check_product(fields, "its MLPs", {dims.layers, 2, dims.hidden, dims.inner}));
  HOLDFAST_TRY(
      check_product(fields, "its embeddings", {2, dims.vocabulary, dims.hidden}));
  HOLDFAST_TRY(check_product(fields, "its positions", {dims.positions, dims.hidden}));
  return make_gpt(dims);
}

Result<void> read_attention(Fields& fields, LlamaDims& dims) {
  dims.heads = HOLDFAST_TRY(size_of(fields, "num_attention_heads", kMaxHeads));
  dims.kv_heads =
      HOLDFAST_TRY(size_or(fields, "num_key_value_heads", dims.heads, kMaxHeads));
  dims.head = HOLDFAST_TRY(size_or(fields, "head_dim", 0));
  HOLDFAST_TRY(check_multiple(fields, "num_attention_heads", dims.heads,
                              "num_key_value_heads", dims.kv_heads));
  if (dims.head > 0) return {};
  HOLDFAST_TRY(check_multiple(fields, "hidden_size", dims.hidden, "num_attention_heads",
                              dims.heads));
  dims.head = dims.hidden / dims.heads;
  return {};
}

Result<Model> read_llama(Fields& fields, bool mixtral) {
  LlamaDims dims{.name = mixtral ? "mixtral" : "llama"};
  dims.layers = HOLDFAST_TRY(size_of(fields, "num_hidden_layers", kMaxLayers));
  dims.hidden = HOLDFAST_TRY(size_of(fields, "hidden_size"));
  dims.inner = HOLDFAST_TRY(size_of(fields, "intermediate_size"));
  dims.vocabulary = HOLDFAST_TRY(size_of(fields, "vocab_size"));
  dims.tied = HOLDFAST_TRY(flag_or(fields, "tie_word_embeddings", false));
  HOLDFAST_TRY(read_attention(fields, dims));
  if (mixtral) {
    dims.experts = HOLDFAST_TRY(size_of(fields, "num_local_experts", kMaxHeads));
  } else {
    dims.attention_bias = HOLDFAST_TRY(flag_or(fields, "attention_bias", false));
    dims.mlp_bias = HOLDFAST_TRY(flag_or(fields, "mlp_bias", false));
  }
  const int64_t experts = mixtral ? dims.experts : 1;
  HOLDFAST_TRY(check_product(fields, "its attention layers",
                             {dims.layers, 4, dims.heads, dims.head, dims.hidden}));
  HOLDFAST_TRY(check_product(fields, "its MLPs",
                             {dims.layers, 3, dims.hidden, dims.inner, experts}));
  HOLDFAST_TRY(
      check_product(fields, "its embeddings", {2, dims.vocabulary, dims.hidden}));
  return make_llama(dims);
}

}  // namespace

std::vector<std::string> config_types() {
  std::vector<std::string> types = table_types();
  types.insert(types.end(), {"gpt2", "llama", "mixtral"});
  std::ranges::sort(types);
  return types;
}

Result<Model> model_from_config(const Json& config, std::string_view where) {
  Fields fields = HOLDFAST_TRY(Fields::of(config, std::string(where)));
  const std::string type = HOLDFAST_TRY(fields.text("model_type"));
  if (type == "gpt2") return read_gpt2(fields);
  if (type == "llama") return read_llama(fields, false);
  if (type == "mixtral") return read_llama(fields, true);
  if (std::ranges::count(table_types(), type) > 0)
    return read_table_model(fields, type);
  return unsupported(
      "{}.model_type: \"{}\"; expected one of {} (plan --module takes any model)",
      where, type.substr(0, 40), fmt::join(config_types(), ", "));
}

}  // namespace holdfast
