#include "holdfast/models/tensor_tables.h"

#include <algorithm>
#include <array>

namespace holdfast {
namespace {

// A TensorRow, or with a name that ends in ".*" the rows of a weight and its bias. So
//
//   Row{"layers.#.self_attn.q_proj.*", "Q,H", "rows heads", "q", "qkv_bias"}
//
// says: in each layer of a model that has the flag "q" there is a q_proj.weight of Q x H
// elements, whose rows tensor parallelism cuts between heads, and if the model has
// "qkv_bias", too, a q_proj.bias of Q elements. hf_config.cpp sets sizes and flags.
struct Row {
  std::string_view name, shape, words, when = "";
  std::string_view bias = "";  // a flag that must be set, too, if there is a bias
  std::string_view in_files = "";
};

// The sizes: H hidden size, V words, Q and K outputs of query and of key heads, QKV all of
// them fused, O inputs of the output projection, D size of a head, F inner size of an MLP,
// E experts, M inner size of an expert, S inner size of the shared experts. Of latent
// attention: RQ and RKV ranks, KVA rank and rotary part together, KVB keys and values of all
// heads.
constexpr std::array kDecoder{
    Row{"embed_tokens.weight", "V,H", "first vocabulary tied"},
    Row{"layers.#.self_attn.q_proj.*", "Q,H", "rows heads", "q", "qkv_bias"},
    Row{"layers.#.self_attn.k_proj.*", "K,H", "rows kv_heads", "kv", "qkv_bias"},
    Row{"layers.#.self_attn.v_proj.*", "K,H", "rows kv_heads", "kv", "qkv_bias"},
    Row{"layers.#.self_attn.qkv_proj.weight", "QKV,H", "rows/3 heads with=o_proj",
        "fused"},
    Row{"layers.#.self_attn.q_a_proj.*", "RQ,H", "whole", "q_lora", "latent_bias"},
    Row{"layers.#.self_attn.q_a_layernorm.weight", "RQ", "whole", "q_lora"},
    Row{"layers.#.self_attn.q_b_proj.weight", "Q,RQ", "rows by_head", "q_lora"},
    Row{"layers.#.self_attn.kv_a_proj_with_mqa.*", "KVA,H", "whole", "latent",
        "latent_bias"},
    Row{"layers.#.self_attn.kv_a_layernorm.weight", "RKV", "whole", "latent"},
    Row{"layers.#.self_attn.kv_b_proj.weight", "KVB,RKV", "rows by_head", "latent"},
    Row{"layers.#.self_attn.o_proj.weight", "H,O", "columns heads", "!latent"},
    Row{"layers.#.self_attn.o_proj.weight", "H,O", "columns by_head", "latent"},
    Row{"layers.#.self_attn.o_proj.bias", "H", "whole", "o_bias"},
    Row{"layers.#.self_attn.q_norm.weight", "D", "whole", "qk_norm"},
    Row{"layers.#.self_attn.k_norm.weight", "D", "whole", "qk_norm"},
    Row{"layers.#.mlp.gate_proj.*", "F,H", "rows", "dense !fused", "mlp_bias"},
    Row{"layers.#.mlp.up_proj.*", "F,H", "rows", "dense !fused", "mlp_bias"},
    Row{"layers.#.mlp.gate_up_proj.weight", "2F,H", "rows/2", "dense fused"},
    Row{"layers.#.mlp.down_proj.*", "H,F", "columns", "dense", "mlp_bias"},
    Row{"layers.#.mlp.gate.weight", "E,H", "whole", "sparse !mixtral"},
    Row{"layers.#.mlp.gate.weight", "E,H", "whole", "sparse mixtral", "",
        "layers.#.block_sparse_moe.gate.weight"},
    Row{"layers.#.mlp.gate.e_score_correction_bias", "E", "whole buffer",
        "sparse score_bias"},
    Row{"layers.#.mlp.experts.gate_up_proj", "E,2M,H", "stacked rows/2",
        "sparse !mixtral", "",
        "layers.#.mlp.experts.%.gate_proj.weight "
        "layers.#.mlp.experts.%.up_proj.weight"},
    Row{"layers.#.mlp.experts.down_proj", "E,H,M", "stacked columns", "sparse !mixtral",
        "", "layers.#.mlp.experts.%.down_proj.weight"},
    Row{"layers.#.mlp.experts.gate_up_proj", "E,2M,H", "stacked rows/2",
        "sparse mixtral", "",
        "layers.#.block_sparse_moe.experts.%.w1.weight "
        "layers.#.block_sparse_moe.experts.%.w3.weight"},
    Row{"layers.#.mlp.experts.down_proj", "E,H,M", "stacked columns", "sparse mixtral",
        "", "layers.#.block_sparse_moe.experts.%.w2.weight"},
    Row{"layers.#.mlp.shared_experts.gate_proj.*", "S,H", "rows", "sparse shared",
        "mlp_bias"},
    Row{"layers.#.mlp.shared_experts.up_proj.*", "S,H", "rows", "sparse shared",
        "mlp_bias"},
    Row{"layers.#.mlp.shared_experts.down_proj.*", "H,S", "columns", "sparse shared",
        "mlp_bias"},
    Row{"layers.#.mlp.shared_expert.gate_proj.weight", "S,H", "rows",
        "sparse shared_one"},
    Row{"layers.#.mlp.shared_expert.up_proj.weight", "S,H", "rows",
        "sparse shared_one"},
    Row{"layers.#.mlp.shared_expert.down_proj.weight", "H,S", "columns",
        "sparse shared_one"},
    Row{"layers.#.mlp.shared_expert_gate.weight", "1,H", "whole", "sparse shared_one"},
    Row{"layers.#.input_layernorm.weight", "H", "whole"},
    Row{"layers.#.post_attention_layernorm.weight", "H", "whole"},
    Row{"layers.#.pre_feedforward_layernorm.weight", "H", "whole", "four_norms"},
    Row{"layers.#.post_feedforward_layernorm.weight", "H", "whole", "four_norms"},
    // Older versions of transformers have saved these.
    Row{"layers.#.self_attn.rotary_emb.inv_freq", "", "whole buffer", "stored"},
    Row{"rotary_emb.inv_freq", "", "first whole buffer", "stored"},
    Row{"norm.weight", "H", "last whole"},
    Row{"/lm_head.weight", "V,H", "last vocabulary", "!tied"},
};

constexpr std::array kNeox{
    Row{"embed_in.weight", "V,H", "first vocabulary tied"},
    Row{"layers.#.input_layernorm.*", "H", "whole"},
    Row{"layers.#.post_attention_layernorm.*", "H", "whole"},
    Row{"layers.#.attention.query_key_value.*", "QKV,H", "rows heads*3", "",
        "qkv_bias"},
    Row{"layers.#.attention.dense.*", "H,H", "columns heads", "", "qkv_bias"},
    Row{"layers.#.mlp.dense_h_to_4h.*", "F,H", "rows"},
    Row{"layers.#.mlp.dense_4h_to_h.*", "H,F", "columns"},
    Row{"layers.#.attention.bias", "", "whole buffer", "stored"},
    Row{"layers.#.attention.masked_bias", "", "whole buffer", "stored"},
    Row{"layers.#.attention.rotary_emb.inv_freq", "", "whole buffer", "stored"},
    Row{"final_layer_norm.*", "H", "last whole"},
    Row{"/lm_head.weight", "V,H", "last vocabulary", "!tied", "", "/embed_out.weight"},
};

// W is the size of a word's embedding, P the number of positions with two additional
// ones.
constexpr std::array kOpt{
    Row{"embed_tokens.weight", "V,W", "first vocabulary tied"},
    Row{"embed_positions.weight", "P,H", "first whole"},
    Row{"project_in.weight", "H,W", "first whole", "project"},
    Row{"layers.#.self_attn.k_proj.*", "H,H", "rows kv_heads", "", "bias"},
    Row{"layers.#.self_attn.v_proj.*", "H,H", "rows kv_heads", "", "bias"},
    Row{"layers.#.self_attn.q_proj.*", "H,H", "rows heads", "", "bias"},
    Row{"layers.#.self_attn.out_proj.*", "H,H", "columns heads", "", "bias"},
    Row{"layers.#.self_attn_layer_norm.*", "H", "whole", "affine"},
    Row{"layers.#.fc1.*", "F,H", "rows", "", "bias"},
    Row{"layers.#.fc2.*", "H,F", "columns", "", "bias"},
    Row{"layers.#.final_layer_norm.*", "H", "whole", "affine"},
    Row{"final_layer_norm.*", "H", "last whole", "final_norm affine"},
    Row{"project_out.weight", "W,H", "last whole", "project"},
    Row{"/lm_head.weight", "V,W", "last vocabulary", "!tied"},
};

constexpr std::array kBert{
    Row{"embeddings.word_embeddings.weight", "V,H",
        "first vocabulary tied=cls.predictions.bias"},
    Row{"embeddings.position_embeddings.weight", "P,H", "first whole"},
    Row{"embeddings.position_ids", "", "first whole buffer", "stored"},
    Row{"embeddings.token_type_embeddings.weight", "T,H", "first whole"},
    Row{"embeddings.LayerNorm.*", "H", "first whole"},
    Row{"encoder.layer.#.attention.self.query.*", "H,H", "rows heads"},
    Row{"encoder.layer.#.attention.self.key.*", "H,H", "rows kv_heads"},
    Row{"encoder.layer.#.attention.self.value.*", "H,H", "rows kv_heads"},
    Row{"encoder.layer.#.attention.output.dense.*", "H,H", "columns heads"},
    Row{"encoder.layer.#.attention.output.LayerNorm.*", "H", "whole"},
    Row{"encoder.layer.#.intermediate.dense.*", "F,H", "rows"},
    Row{"encoder.layer.#.output.dense.*", "H,F", "columns"},
    Row{"encoder.layer.#.output.LayerNorm.*", "H", "whole"},
    Row{"pooler.dense.*", "H,H", "last whole", "pooler"},
    Row{"/cls.predictions.bias", "V", "last vocabulary", "words"},
    Row{"/cls.predictions.transform.dense.*", "H,H", "last whole", "words"},
    Row{"/cls.predictions.transform.LayerNorm.*", "H", "last whole", "words"},
    Row{"/cls.predictions.decoder.*", "V,H", "last vocabulary", "words !tied"},
    Row{"/cls.seq_relationship.*", "2,H", "last whole", "sentences"},
    Row{"/classifier.*", "L,H", "last whole", "labels"},
};

// P is the number of patches and one, N the channels of the image, A and B the size of a
// patch, L the number of labels.
constexpr std::array kVit{
    Row{"embeddings.cls_token", "1,1,H", "first whole"},
    Row{"embeddings.position_embeddings", "1,P,H", "first whole"},
    Row{"embeddings.patch_embeddings.projection.*", "H,N,A,B", "first whole"},
    Row{"layers.#.attention.q_proj.*", "H,H", "rows heads", "", "qkv_bias",
        "encoder.layer.#.attention.attention.query.*"},
    Row{"layers.#.attention.k_proj.*", "H,H", "rows kv_heads", "", "qkv_bias",
        "encoder.layer.#.attention.attention.key.*"},
    Row{"layers.#.attention.v_proj.*", "H,H", "rows kv_heads", "", "qkv_bias",
        "encoder.layer.#.attention.attention.value.*"},
    Row{"layers.#.attention.o_proj.*", "H,H", "columns heads", "", "",
        "encoder.layer.#.attention.output.dense.*"},
    Row{"layers.#.layernorm_before.*", "H", "whole", "", "",
        "encoder.layer.#.layernorm_before.*"},
    Row{"layers.#.layernorm_after.*", "H", "whole", "", "",
        "encoder.layer.#.layernorm_after.*"},
    Row{"layers.#.mlp.fc1.*", "F,H", "rows", "", "",
        "encoder.layer.#.intermediate.dense.*"},
    Row{"layers.#.mlp.fc2.*", "H,F", "columns", "", "",
        "encoder.layer.#.output.dense.*"},
    Row{"layernorm.*", "H", "last whole"},
    Row{"pooler.dense.*", "O,H", "last whole", "pooler"},
    Row{"/classifier.*", "L,H", "last whole", "labels"},
};

// GPT-2 of transformers. Its weights are [inputs, outputs], as Conv1D has them.
constexpr std::array kGpt2{
    Row{"wte.weight", "V,H", "first vocabulary tied"},
    Row{"wpe.weight", "P,H", "first whole"},
    Row{"h.#.ln_1.*", "H", "whole"},
    Row{"h.#.attn.c_attn.*", "H,3H", "transposed rows/3 heads"},
    Row{"h.#.attn.c_proj.*", "H,H", "transposed columns heads"},
    Row{"h.#.attn.bias", "", "whole buffer", "stored"},
    Row{"h.#.attn.masked_bias", "", "whole buffer", "stored"},
    Row{"h.#.ln_2.*", "H", "whole"},
    Row{"h.#.mlp.c_fc.*", "H,F", "transposed rows"},
    Row{"h.#.mlp.c_proj.*", "F,H", "transposed columns"},
    Row{"ln_f.*", "H", "last whole"},
    Row{"/lm_head.weight", "V,H", "last vocabulary", "!tied"},
};

// GPT and Llama of Megatron-LM, whole as its ranks have them together: the layers of all
// stages are numbered through. The rows of a fused QKV are ordered by group, so that any
// number of ranks that divides the groups has an interval of them. "classic" are the names
// of Megatron-LM, "older" those before, and "core" those of Megatron Core.
constexpr std::array kMegatron{
    Row{"embedding.word_embeddings.weight", "V,H", "first vocabulary tied"},
    Row{"embedding.position_embeddings.weight", "P,H", "first whole", "positions"},
    Row{"layers.#.input_layernorm.*", "H", "whole", "classic", "norm_bias"},
    Row{"layers.#.self_attention.query_key_value.*", "QKV,H", "rows groups", "classic",
        "attention_bias"},
    Row{"layers.#.self_attention.dense.*", "H,O", "columns heads", "classic",
        "attention_bias"},
    Row{"layers.#.attention.query_key_value.*", "QKV,H", "rows groups", "older"},
    Row{"layers.#.attention.dense.*", "H,O", "columns heads", "older"},
    Row{"layers.#.post_attention_layernorm.*", "H", "whole", "classic", "norm_bias"},
    Row{"layers.#.mlp.router.weight", "E,H", "whole", "sparse"},
    Row{"layers.#.mlp.experts.dense_h_to_4h.weight", "E,2F,H", "stacked rows/2",
        "sparse"},
    Row{"layers.#.mlp.experts.dense_4h_to_h.weight", "E,H,F", "stacked columns",
        "sparse"},
    Row{"layers.#.mlp.dense_h_to_4h.*", "F,H", "rows with=dense_4h_to_h",
        "dense classic !gated", "mlp_bias"},
    Row{"layers.#.mlp.dense_h_to_4h.*", "2F,H", "rows/2 with=dense_4h_to_h",
        "dense classic gated", "mlp_bias"},
    Row{"layers.#.mlp.dense_4h_to_h.*", "H,F", "columns", "dense classic", "mlp_bias"},
    Row{"layers.#.self_attention.linear_qkv.layer_norm_weight", "H", "whole", "core"},
    Row{"layers.#.self_attention.linear_qkv.layer_norm_bias", "H", "whole", "core"},
    Row{"layers.#.self_attention.linear_qkv.*", "QKV,H", "rows groups", "core"},
    Row{"layers.#.self_attention.linear_proj.*", "H,O", "columns heads", "core"},
    Row{"layers.#.pre_mlp_layernorm.*", "H", "whole", "core"},
    Row{"layers.#.mlp.linear_fc1.layer_norm_weight", "H", "whole", "core"},
    Row{"layers.#.mlp.linear_fc1.layer_norm_bias", "H", "whole", "core"},
    Row{"layers.#.mlp.linear_fc1.*", "F,H", "rows with=linear_fc2", "core"},
    Row{"layers.#.mlp.linear_fc2.*", "H,F", "columns", "core"},
    Row{"final_layernorm.*", "H", "last whole", "", "norm_bias"},
    Row{"output_layer.weight", "V,H", "last vocabulary", "!tied"},
};

// Modules of torch, timm, torchtitan and T5, whose models have no table. The names are
// the ends of theirs.
constexpr std::array kModules{
    Row{"to_q", "", "rows heads"},
    Row{"wq", "", "rows heads"},
    Row{"SelfAttention.q", "", "rows heads"},
    Row{"EncDecAttention.q", "", "rows heads"},
    Row{"to_k", "", "rows kv_heads"},
    Row{"to_v", "", "rows kv_heads"},
    Row{"wk", "", "rows kv_heads"},
    Row{"wv", "", "rows kv_heads"},
    Row{"SelfAttention.k", "", "rows kv_heads"},
    Row{"SelfAttention.v", "", "rows kv_heads"},
    Row{"EncDecAttention.k", "", "rows kv_heads"},
    Row{"EncDecAttention.v", "", "rows kv_heads"},
    Row{"qkv", "", "rows/3 heads"},
    Row{"Wqkv", "", "rows/3 heads"},
    Row{"in_proj", "", "rows/3 heads"},
    Row{"SelfAttention.o", "", "columns heads"},
    Row{"EncDecAttention.o", "", "columns heads"},
    Row{"attention.wo", "", "columns heads"},
    Row{"attn.proj", "", "columns heads"},
    Row{"linear1", "", "rows"},
    Row{"wi", "", "rows"},
    Row{"wi_0", "", "rows"},
    Row{"wi_1", "", "rows"},
    Row{"linear2", "", "columns"},
    Row{"wo", "", "columns"},
    Row{"tok_embeddings", "", "first vocabulary"},
    Row{"head", "", "last whole"},
    Row{"score", "", "last whole"},
    Row{"output", "", "last whole"},
};

// The words of a bias. One that is added to what all ranks have computed is not cut.
std::string words_of_bias(std::string_view words) {
  const bool added_once = words.find("columns") != words.npos;
  std::string result;
  for_each_word(words, [&](std::string_view word) {
    const bool site = word == "first" || word == "last";
    if (word != "transposed" && (site || !added_once)) result += fmt::format("{} ", word);
  });
  return added_once ? result + "whole" : result;
}

std::string outputs_of(const Row& row) {
  const bool last = row.words.find("transposed") != row.words.npos;
  const size_t comma = std::min(row.shape.find(','), row.shape.size());
  return std::string(last ? row.shape.substr(comma + 1) : row.shape.substr(0, comma));
}

std::vector<TensorRow> with_biases(std::span<const Row> rows) {
  std::vector<TensorRow> all;
  const auto named = [](std::string_view name, std::string_view last) {
    const bool pair = name.ends_with(".*");
    return pair ? fmt::format("{}{}", name.substr(0, name.size() - 1), last)
                : std::string(name);
  };
  for (const Row& row : rows) {
    all.push_back({named(row.name, "weight"), std::string(row.shape),
                   std::string(row.words), std::string(row.when),
                   named(row.in_files, "weight")});
    if (!row.name.ends_with(".*")) continue;
    all.push_back({named(row.name, "bias"), outputs_of(row), words_of_bias(row.words),
                   fmt::format("{} {}", row.when, row.bias),
                   named(row.in_files, "bias")});
  }
  return all;
}

// The rows of one of the tables above.
template <const auto& kRows>
std::span<const TensorRow> rows_of() {
  static const std::vector<TensorRow> rows = with_biases(kRows);
  return rows;
}

}  // namespace

std::span<const TensorRow> decoder_rows() { return rows_of<kDecoder>(); }
std::span<const TensorRow> neox_rows() { return rows_of<kNeox>(); }
std::span<const TensorRow> opt_rows() { return rows_of<kOpt>(); }
std::span<const TensorRow> bert_rows() { return rows_of<kBert>(); }
std::span<const TensorRow> vit_rows() { return rows_of<kVit>(); }
std::span<const TensorRow> gpt2_rows() { return rows_of<kGpt2>(); }
std::span<const TensorRow> megatron_rows() { return rows_of<kMegatron>(); }
std::span<const TensorRow> module_rows() { return rows_of<kModules>(); }

}  // namespace holdfast
