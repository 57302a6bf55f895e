#include "holdfast/models/transformers.h"

#include "holdfast/models/tensor_tables.h"

namespace holdfast {
namespace {

constexpr const char* kWords = "embedding.word_embeddings.weight";
constexpr const char* kHead = "output_layer.weight";

// Adds what all models have, and expands the table.
Model make(const std::string& name, TableValues values, HeadCounts heads, int64_t head,
           bool tied) {
  values.flags.insert("classic");
  if (tied) values.flags.insert("tied");
  if (tied) values.ties[kWords] = kHead;
  values.sizes["O"] = heads.heads * head;
  values.sizes["QKV"] = (heads.heads + 2 * heads.kv_heads) * head;
  return model_of_tensors(name, expand_table(megatron_rows(), values).value(), heads)
      .value();
}

}  // namespace

Model make_gpt(const GptDims& dims) {
  HOLDFAST_CHECK(dims.layers > 0 && dims.heads > 0 && dims.hidden > 0 &&
                     dims.vocabulary > 0 && dims.positions > 0 && dims.inner >= 0 &&
                     dims.hidden % dims.heads == 0,
                 "{}: bad dimensions", dims.name);
  TableValues values{.layers = dims.layers};
  values.sizes = {{"H", dims.hidden},
                  {"V", dims.vocabulary},
                  {"P", dims.positions},
                  {"F", dims.inner > 0 ? dims.inner : 4 * dims.hidden}};
  values.flags = {"positions", "norm_bias", "attention_bias", "mlp_bias"};
  return make(dims.name, std::move(values), {dims.heads, dims.heads},
              dims.hidden / dims.heads, dims.tied);
}

Model make_llama(const LlamaDims& dims) {
  HOLDFAST_CHECK(dims.layers > 0 && dims.heads > 0 && dims.kv_heads > 0 &&
                     dims.hidden > 0 && dims.inner > 0 && dims.vocabulary > 0 &&
                     dims.head >= 0 && dims.experts >= 0 &&
                     dims.heads % dims.kv_heads == 0 &&
                     (dims.head > 0 || dims.hidden % dims.heads == 0),
                 "{}: bad dimensions", dims.name);
  TableValues values{.layers = dims.layers};
  values.sizes = {{"H", dims.hidden},
                  {"V", dims.vocabulary},
                  {"E", dims.experts},
                  {"F", dims.inner}};
  values.flags = {"gated"};
  if (dims.attention_bias) values.flags.insert("attention_bias");
  if (dims.mlp_bias) values.flags.insert("mlp_bias");
  values.sparse = [sparse = dims.experts > 0](int64_t) { return sparse; };
  return make(dims.name, std::move(values), {dims.heads, dims.kv_heads},
              dims.head > 0 ? dims.head : dims.hidden / dims.heads, dims.tied);
}

}  // namespace holdfast
