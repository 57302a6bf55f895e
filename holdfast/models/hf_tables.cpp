#include "holdfast/models/hf_tables.h"

#include <algorithm>
#include <array>

namespace holdfast {
namespace {

// H hidden size, V words, Q and K outputs of query and of key heads, O inputs of the
// output projection, D size of a head, F inner size of an MLP, E experts, M inner size of
// an expert, S inner size of the shared experts, R ranks of latent attention.
constexpr std::array kDecoder{
    TensorRow{"model.embed_tokens.weight", "V,H"},
    TensorRow{"model.layers.#.self_attn.q_proj.weight", "Q,H", "q"},
    TensorRow{"model.layers.#.self_attn.q_proj.bias", "Q", "q qkv_bias"},
    TensorRow{"model.layers.#.self_attn.k_proj.weight", "K,H", "kv"},
    TensorRow{"model.layers.#.self_attn.k_proj.bias", "K", "kv qkv_bias"},
    TensorRow{"model.layers.#.self_attn.v_proj.weight", "K,H", "kv"},
    TensorRow{"model.layers.#.self_attn.v_proj.bias", "K", "kv qkv_bias"},
    TensorRow{"model.layers.#.self_attn.qkv_proj.weight", "QKV,H", "fused"},
    TensorRow{"model.layers.#.self_attn.q_a_proj.weight", "RQ,H", "q_lora"},
    TensorRow{"model.layers.#.self_attn.q_a_proj.bias", "RQ", "q_lora latent_bias"},
    TensorRow{"model.layers.#.self_attn.q_a_layernorm.weight", "RQ", "q_lora"},
    TensorRow{"model.layers.#.self_attn.q_b_proj.weight", "Q,RQ", "q_lora"},
    TensorRow{"model.layers.#.self_attn.kv_a_proj_with_mqa.weight", "KVA,H", "latent"},
    TensorRow{"model.layers.#.self_attn.kv_a_proj_with_mqa.bias", "KVA",
              "latent latent_bias"},
    TensorRow{"model.layers.#.self_attn.kv_a_layernorm.weight", "RKV", "latent"},
    TensorRow{"model.layers.#.self_attn.kv_b_proj.weight", "KVB,RKV", "latent"},
    TensorRow{"model.layers.#.self_attn.o_proj.weight", "H,O"},
    TensorRow{"model.layers.#.self_attn.o_proj.bias", "H", "o_bias"},
    TensorRow{"model.layers.#.self_attn.q_norm.weight", "D", "qk_norm"},
    TensorRow{"model.layers.#.self_attn.k_norm.weight", "D", "qk_norm"},
    TensorRow{"model.layers.#.mlp.gate_proj.weight", "F,H", "dense !fused"},
    TensorRow{"model.layers.#.mlp.gate_proj.bias", "F", "dense mlp_bias"},
    TensorRow{"model.layers.#.mlp.up_proj.weight", "F,H", "dense !fused"},
    TensorRow{"model.layers.#.mlp.up_proj.bias", "F", "dense mlp_bias"},
    TensorRow{"model.layers.#.mlp.gate_up_proj.weight", "2F,H", "dense fused"},
    TensorRow{"model.layers.#.mlp.down_proj.weight", "H,F", "dense"},
    TensorRow{"model.layers.#.mlp.down_proj.bias", "H", "dense mlp_bias"},
    TensorRow{"model.layers.#.mlp.gate.weight", "E,H", "sparse"},
    TensorRow{"model.layers.#.mlp.gate.e_score_correction_bias", "E",
              "sparse score_bias", Role::kBuffer},
    TensorRow{"model.layers.#.mlp.experts.gate_up_proj", "E,2M,H", "sparse"},
    TensorRow{"model.layers.#.mlp.experts.down_proj", "E,H,M", "sparse"},
    TensorRow{"model.layers.#.mlp.shared_experts.gate_proj.weight", "S,H",
              "sparse shared"},
    TensorRow{"model.layers.#.mlp.shared_experts.gate_proj.bias", "S",
              "sparse shared mlp_bias"},
    TensorRow{"model.layers.#.mlp.shared_experts.up_proj.weight", "S,H",
              "sparse shared"},
    TensorRow{"model.layers.#.mlp.shared_experts.up_proj.bias", "S",
              "sparse shared mlp_bias"},
    TensorRow{"model.layers.#.mlp.shared_experts.down_proj.weight", "H,S",
              "sparse shared"},
    TensorRow{"model.layers.#.mlp.shared_experts.down_proj.bias", "H",
              "sparse shared mlp_bias"},
    TensorRow{"model.layers.#.mlp.shared_expert.gate_proj.weight", "S,H",
              "sparse shared_one"},
    TensorRow{"model.layers.#.mlp.shared_expert.up_proj.weight", "S,H",
              "sparse shared_one"},
    TensorRow{"model.layers.#.mlp.shared_expert.down_proj.weight", "H,S",
              "sparse shared_one"},
    TensorRow{"model.layers.#.mlp.shared_expert_gate.weight", "1,H",
              "sparse shared_one"},
    TensorRow{"model.layers.#.input_layernorm.weight", "H"},
    TensorRow{"model.layers.#.post_attention_layernorm.weight", "H"},
    TensorRow{"model.layers.#.pre_feedforward_layernorm.weight", "H", "four_norms"},
    TensorRow{"model.layers.#.post_feedforward_layernorm.weight", "H", "four_norms"},
    TensorRow{"model.norm.weight", "H"},
    TensorRow{"lm_head.weight", "V,H", "!tied"},
};

constexpr std::array kNeox{
    TensorRow{"gpt_neox.embed_in.weight", "V,H"},
    TensorRow{"gpt_neox.layers.#.input_layernorm.weight", "H"},
    TensorRow{"gpt_neox.layers.#.input_layernorm.bias", "H"},
    TensorRow{"gpt_neox.layers.#.post_attention_layernorm.weight", "H"},
    TensorRow{"gpt_neox.layers.#.post_attention_layernorm.bias", "H"},
    TensorRow{"gpt_neox.layers.#.attention.query_key_value.weight", "QKV,H"},
    TensorRow{"gpt_neox.layers.#.attention.query_key_value.bias", "QKV", "qkv_bias"},
    TensorRow{"gpt_neox.layers.#.attention.dense.weight", "H,H"},
    TensorRow{"gpt_neox.layers.#.attention.dense.bias", "H", "qkv_bias"},
    TensorRow{"gpt_neox.layers.#.mlp.dense_h_to_4h.weight", "F,H"},
    TensorRow{"gpt_neox.layers.#.mlp.dense_h_to_4h.bias", "F"},
    TensorRow{"gpt_neox.layers.#.mlp.dense_4h_to_h.weight", "H,F"},
    TensorRow{"gpt_neox.layers.#.mlp.dense_4h_to_h.bias", "H"},
    TensorRow{"gpt_neox.final_layer_norm.weight", "H"},
    TensorRow{"gpt_neox.final_layer_norm.bias", "H"},
    TensorRow{"lm_head.weight", "V,H", "!tied"},
};

// W is the size of a word's embedding, P the number of positions with two additional
// ones.
constexpr std::array kOpt{
    TensorRow{"model.decoder.embed_tokens.weight", "V,W"},
    TensorRow{"model.decoder.embed_positions.weight", "P,H"},
    TensorRow{"model.decoder.project_in.weight", "H,W", "project"},
    TensorRow{"model.decoder.layers.#.self_attn.k_proj.weight", "H,H"},
    TensorRow{"model.decoder.layers.#.self_attn.k_proj.bias", "H", "bias"},
    TensorRow{"model.decoder.layers.#.self_attn.v_proj.weight", "H,H"},
    TensorRow{"model.decoder.layers.#.self_attn.v_proj.bias", "H", "bias"},
    TensorRow{"model.decoder.layers.#.self_attn.q_proj.weight", "H,H"},
    TensorRow{"model.decoder.layers.#.self_attn.q_proj.bias", "H", "bias"},
    TensorRow{"model.decoder.layers.#.self_attn.out_proj.weight", "H,H"},
    TensorRow{"model.decoder.layers.#.self_attn.out_proj.bias", "H", "bias"},
    TensorRow{"model.decoder.layers.#.self_attn_layer_norm.weight", "H", "affine"},
    TensorRow{"model.decoder.layers.#.self_attn_layer_norm.bias", "H", "affine"},
    TensorRow{"model.decoder.layers.#.fc1.weight", "F,H"},
    TensorRow{"model.decoder.layers.#.fc1.bias", "F", "bias"},
    TensorRow{"model.decoder.layers.#.fc2.weight", "H,F"},
    TensorRow{"model.decoder.layers.#.fc2.bias", "H", "bias"},
    TensorRow{"model.decoder.layers.#.final_layer_norm.weight", "H", "affine"},
    TensorRow{"model.decoder.layers.#.final_layer_norm.bias", "H", "affine"},
    TensorRow{"model.decoder.final_layer_norm.weight", "H", "final_norm affine"},
    TensorRow{"model.decoder.final_layer_norm.bias", "H", "final_norm affine"},
    TensorRow{"model.decoder.project_out.weight", "W,H", "project"},
    TensorRow{"lm_head.weight", "V,W", "!tied"},
};

constexpr std::array kBert{
    TensorRow{"embeddings.word_embeddings.weight", "V,H"},
    TensorRow{"embeddings.position_embeddings.weight", "P,H"},
    TensorRow{"embeddings.token_type_embeddings.weight", "T,H"},
    TensorRow{"embeddings.LayerNorm.weight", "H"},
    TensorRow{"embeddings.LayerNorm.bias", "H"},
    TensorRow{"encoder.layer.#.attention.self.query.weight", "H,H"},
    TensorRow{"encoder.layer.#.attention.self.query.bias", "H"},
    TensorRow{"encoder.layer.#.attention.self.key.weight", "H,H"},
    TensorRow{"encoder.layer.#.attention.self.key.bias", "H"},
    TensorRow{"encoder.layer.#.attention.self.value.weight", "H,H"},
    TensorRow{"encoder.layer.#.attention.self.value.bias", "H"},
    TensorRow{"encoder.layer.#.attention.output.dense.weight", "H,H"},
    TensorRow{"encoder.layer.#.attention.output.dense.bias", "H"},
    TensorRow{"encoder.layer.#.attention.output.LayerNorm.weight", "H"},
    TensorRow{"encoder.layer.#.attention.output.LayerNorm.bias", "H"},
    TensorRow{"encoder.layer.#.intermediate.dense.weight", "F,H"},
    TensorRow{"encoder.layer.#.intermediate.dense.bias", "F"},
    TensorRow{"encoder.layer.#.output.dense.weight", "H,F"},
    TensorRow{"encoder.layer.#.output.dense.bias", "H"},
    TensorRow{"encoder.layer.#.output.LayerNorm.weight", "H"},
    TensorRow{"encoder.layer.#.output.LayerNorm.bias", "H"},
    TensorRow{"pooler.dense.weight", "H,H", "pooler"},
    TensorRow{"pooler.dense.bias", "H", "pooler"},
    TensorRow{"/cls.predictions.bias", "V", "words"},
    TensorRow{"/cls.predictions.transform.dense.weight", "H,H", "words"},
    TensorRow{"/cls.predictions.transform.dense.bias", "H", "words"},
    TensorRow{"/cls.predictions.transform.LayerNorm.weight", "H", "words"},
    TensorRow{"/cls.predictions.transform.LayerNorm.bias", "H", "words"},
    TensorRow{"/cls.predictions.decoder.weight", "V,H", "words !tied"},
    TensorRow{"/cls.predictions.decoder.bias", "V", "words !tied"},
    TensorRow{"/cls.seq_relationship.weight", "2,H", "sentences"},
    TensorRow{"/cls.seq_relationship.bias", "2", "sentences"},
    TensorRow{"/classifier.weight", "L,H", "labels"},
    TensorRow{"/classifier.bias", "L", "labels"},
};

// P is the number of patches and one, N the channels of the image, A and B the size of a
// patch, L the number of labels.
constexpr std::array kVit{
    TensorRow{"embeddings.cls_token", "1,1,H"},
    TensorRow{"embeddings.position_embeddings", "1,P,H"},
    TensorRow{"embeddings.patch_embeddings.projection.weight", "H,N,A,B"},
    TensorRow{"embeddings.patch_embeddings.projection.bias", "H"},
    TensorRow{"layers.#.attention.q_proj.weight", "H,H"},
    TensorRow{"layers.#.attention.q_proj.bias", "H", "qkv_bias"},
    TensorRow{"layers.#.attention.k_proj.weight", "H,H"},
    TensorRow{"layers.#.attention.k_proj.bias", "H", "qkv_bias"},
    TensorRow{"layers.#.attention.v_proj.weight", "H,H"},
    TensorRow{"layers.#.attention.v_proj.bias", "H", "qkv_bias"},
    TensorRow{"layers.#.attention.o_proj.weight", "H,H"},
    TensorRow{"layers.#.attention.o_proj.bias", "H"},
    TensorRow{"layers.#.layernorm_before.weight", "H"},
    TensorRow{"layers.#.layernorm_before.bias", "H"},
    TensorRow{"layers.#.layernorm_after.weight", "H"},
    TensorRow{"layers.#.layernorm_after.bias", "H"},
    TensorRow{"layers.#.mlp.fc1.weight", "F,H"},
    TensorRow{"layers.#.mlp.fc1.bias", "F"},
    TensorRow{"layers.#.mlp.fc2.weight", "H,F"},
    TensorRow{"layers.#.mlp.fc2.bias", "H"},
    TensorRow{"layernorm.weight", "H"},
    TensorRow{"layernorm.bias", "H"},
    TensorRow{"pooler.dense.weight", "O,H", "pooler"},
    TensorRow{"pooler.dense.bias", "O", "pooler"},
    TensorRow{"/classifier.weight", "L,H", "labels"},
    TensorRow{"/classifier.bias", "L", "labels"},
};

// Calls `visit` with each part of a text that is cut at `separator`.
void for_each_part(std::string_view text, char separator, auto visit) {
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

bool applies(const TensorRow& row, const TableValues& values, bool sparse) {
  bool all = true;
  for_each_part(row.when, ' ', [&](std::string_view flag) {
    const bool expected = !flag.starts_with('!');
    if (!expected) flag.remove_prefix(1);
    const bool set = flag == "sparse"  ? sparse
                     : flag == "dense" ? !sparse
                                       : values.flags.contains(flag);
    all &= set == expected;
  });
  return all;
}

// "H" is the size of that name, "2F" is twice a size, and "1" is the number.
int64_t size_of(std::string_view symbol, const TableValues& values) {
  const bool has_factor = '0' <= symbol.front() && symbol.front() <= '9';
  const int64_t factor = has_factor ? symbol.front() - '0' : 1;
  if (has_factor) symbol.remove_prefix(1);
  if (symbol.empty()) return factor;
  const auto found = values.sizes.find(symbol);
  HOLDFAST_CHECK(found != values.sizes.end(), "no size {}", symbol);
  return factor * found->second;
}

Result<Shape> shape_of(const TensorRow& row, const TableValues& values) {
  std::vector<int64_t> sizes;
  for_each_part(row.shape, ',', [&](std::string_view symbol) {
    sizes.push_back(size_of(symbol, values));
  });
  return Shape::create(sizes).within(std::string(row.name));
}

// The name of the tensor: the number of the layer for "#", and the prefix of the table
// unless the name begins with "/".
std::string name_of(const TensorRow& row, int64_t layer, const std::string& prefix) {
  const bool outside = row.name.starts_with('/');
  std::string name = outside ? "" : prefix;
  for (const char c : row.name.substr(outside ? 1 : 0)) {
    name += c == '#' ? std::to_string(layer) : std::string(1, c);
  }
  return name;
}

}  // namespace

std::span<const TensorRow> decoder_rows() { return kDecoder; }
std::span<const TensorRow> neox_rows() { return kNeox; }
std::span<const TensorRow> opt_rows() { return kOpt; }
std::span<const TensorRow> bert_rows() { return kBert; }
std::span<const TensorRow> vit_rows() { return kVit; }

Result<std::vector<NamedTensor>> expand_table(std::span<const TensorRow> rows,
                                              const TableValues& values) {
  std::vector<NamedTensor> tensors;
  const auto add = [&](const TensorRow& row, int64_t layer) -> Result<void> {
    const bool sparse = values.sparse && values.sparse(layer);
    if (!applies(row, values, sparse)) return {};
    NamedTensor each;
    each.tensor.name = name_of(row, layer, values.prefix);
    each.tensor.shape = HOLDFAST_TRY(shape_of(row, values));
    each.tensor.role = row.role;
    const auto tie = values.ties.find(each.tensor.name);
    if (tie != values.ties.end()) each.tensor.aliases = {tie->second};
    tensors.push_back(std::move(each));
    return {};
  };
  const auto repeated = [](const TensorRow& row) {
    return row.name.find('#') != row.name.npos;
  };
  for (size_t i = 0; i < rows.size();) {
    size_t end = i + 1;
    if (!repeated(rows[i])) {
      HOLDFAST_TRY(add(rows[i], 0));
    } else {
      while (end < rows.size() && repeated(rows[end])) ++end;
      for (int64_t layer = 0; layer < values.layers; ++layer) {
        for (size_t k = i; k < end; ++k) HOLDFAST_TRY(add(rows[k], layer));
      }
    }
    i = end;
  }
  return tensors;
}

}  // namespace holdfast
