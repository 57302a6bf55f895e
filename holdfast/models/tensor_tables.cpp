#include "holdfast/models/tensor_tables.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "holdfast/models/rules.h"

namespace holdfast {
namespace {

// H hidden size, V words, Q and K outputs of query and of key heads, O inputs of the
// output projection, D size of a head, F inner size of an MLP, E experts, M inner size of
// an expert, S inner size of the shared experts, R ranks of latent attention.
constexpr std::array kDecoder{
    TensorRow{"embed_tokens.weight", "V,H", "first vocabulary tied"},
    TensorRow{"layers.#.self_attn.q_proj.weight", "Q,H", "rows heads", "q"},
    TensorRow{"layers.#.self_attn.q_proj.bias", "Q", "rows heads", "q qkv_bias"},
    TensorRow{"layers.#.self_attn.k_proj.weight", "K,H", "rows kv_heads", "kv"},
    TensorRow{"layers.#.self_attn.k_proj.bias", "K", "rows kv_heads", "kv qkv_bias"},
    TensorRow{"layers.#.self_attn.v_proj.weight", "K,H", "rows kv_heads", "kv"},
    TensorRow{"layers.#.self_attn.v_proj.bias", "K", "rows kv_heads", "kv qkv_bias"},
    TensorRow{"layers.#.self_attn.qkv_proj.weight", "QKV,H", "rows/3 heads", "fused"},
    TensorRow{"layers.#.self_attn.q_a_proj.weight", "RQ,H", "whole", "q_lora"},
    TensorRow{"layers.#.self_attn.q_a_proj.bias", "RQ", "whole", "q_lora latent_bias"},
    TensorRow{"layers.#.self_attn.q_a_layernorm.weight", "RQ", "whole", "q_lora"},
    TensorRow{"layers.#.self_attn.q_b_proj.weight", "Q,RQ", "rows by_head", "q_lora"},
    TensorRow{"layers.#.self_attn.kv_a_proj_with_mqa.weight", "KVA,H", "whole",
              "latent"},
    TensorRow{"layers.#.self_attn.kv_a_proj_with_mqa.bias", "KVA", "whole",
              "latent latent_bias"},
    TensorRow{"layers.#.self_attn.kv_a_layernorm.weight", "RKV", "whole", "latent"},
    TensorRow{"layers.#.self_attn.kv_b_proj.weight", "KVB,RKV", "rows by_head",
              "latent"},
    TensorRow{"layers.#.self_attn.o_proj.weight", "H,O", "columns heads", "!latent"},
    TensorRow{"layers.#.self_attn.o_proj.weight", "H,O", "columns by_head", "latent"},
    TensorRow{"layers.#.self_attn.o_proj.bias", "H", "whole", "o_bias"},
    TensorRow{"layers.#.self_attn.q_norm.weight", "D", "whole", "qk_norm"},
    TensorRow{"layers.#.self_attn.k_norm.weight", "D", "whole", "qk_norm"},
    TensorRow{"layers.#.mlp.gate_proj.weight", "F,H", "rows", "dense !fused"},
    TensorRow{"layers.#.mlp.gate_proj.bias", "F", "rows", "dense mlp_bias"},
    TensorRow{"layers.#.mlp.up_proj.weight", "F,H", "rows", "dense !fused"},
    TensorRow{"layers.#.mlp.up_proj.bias", "F", "rows", "dense mlp_bias"},
    TensorRow{"layers.#.mlp.gate_up_proj.weight", "2F,H", "rows/2", "dense fused"},
    TensorRow{"layers.#.mlp.down_proj.weight", "H,F", "columns", "dense"},
    TensorRow{"layers.#.mlp.down_proj.bias", "H", "whole", "dense mlp_bias"},
    TensorRow{"layers.#.mlp.gate.weight", "E,H", "whole", "sparse"},
    TensorRow{"layers.#.mlp.gate.e_score_correction_bias", "E", "whole buffer",
              "sparse score_bias"},
    TensorRow{"layers.#.mlp.experts.gate_up_proj", "E,2M,H", "stacked rows/2",
              "sparse"},
    TensorRow{"layers.#.mlp.experts.down_proj", "E,H,M", "stacked columns", "sparse"},
    // save_pretrained() writes a tensor for each expert.
    TensorRow{"layers.#.mlp.experts.%.gate_proj.weight", "", "rows", "sparse one_each"},
    TensorRow{"layers.#.mlp.experts.%.up_proj.weight", "", "rows", "sparse one_each"},
    TensorRow{"layers.#.mlp.experts.%.down_proj.weight", "", "columns",
              "sparse one_each"},
    TensorRow{"layers.#.block_sparse_moe.gate.weight", "", "whole", "sparse mixtral"},
    TensorRow{"layers.#.block_sparse_moe.experts.%.w1.weight", "", "rows",
              "sparse mixtral"},
    TensorRow{"layers.#.block_sparse_moe.experts.%.w2.weight", "", "columns",
              "sparse mixtral"},
    TensorRow{"layers.#.block_sparse_moe.experts.%.w3.weight", "", "rows",
              "sparse mixtral"},
    TensorRow{"layers.#.mlp.shared_experts.gate_proj.weight", "S,H", "rows",
              "sparse shared"},
    TensorRow{"layers.#.mlp.shared_experts.gate_proj.bias", "S", "rows",
              "sparse shared mlp_bias"},
    TensorRow{"layers.#.mlp.shared_experts.up_proj.weight", "S,H", "rows",
              "sparse shared"},
    TensorRow{"layers.#.mlp.shared_experts.up_proj.bias", "S", "rows",
              "sparse shared mlp_bias"},
    TensorRow{"layers.#.mlp.shared_experts.down_proj.weight", "H,S", "columns",
              "sparse shared"},
    TensorRow{"layers.#.mlp.shared_experts.down_proj.bias", "H", "whole",
              "sparse shared mlp_bias"},
    TensorRow{"layers.#.mlp.shared_expert.gate_proj.weight", "S,H", "rows",
              "sparse shared_one"},
    TensorRow{"layers.#.mlp.shared_expert.up_proj.weight", "S,H", "rows",
              "sparse shared_one"},
    TensorRow{"layers.#.mlp.shared_expert.down_proj.weight", "H,S", "columns",
              "sparse shared_one"},
    TensorRow{"layers.#.mlp.shared_expert_gate.weight", "1,H", "whole",
              "sparse shared_one"},
    TensorRow{"layers.#.input_layernorm.weight", "H", "whole"},
    TensorRow{"layers.#.post_attention_layernorm.weight", "H", "whole"},
    TensorRow{"layers.#.pre_feedforward_layernorm.weight", "H", "whole", "four_norms"},
    TensorRow{"layers.#.post_feedforward_layernorm.weight", "H", "whole", "four_norms"},
    // Older versions of transformers have saved these.
    TensorRow{"layers.#.self_attn.rotary_emb.inv_freq", "", "whole buffer", "stored"},
    TensorRow{"rotary_emb.inv_freq", "", "first whole buffer", "stored"},
    TensorRow{"norm.weight", "H", "last whole"},
    TensorRow{"/lm_head.weight", "V,H", "last vocabulary", "!tied"},
};

constexpr std::array kNeox{
    TensorRow{"embed_in.weight", "V,H", "first vocabulary tied"},
    TensorRow{"layers.#.input_layernorm.weight", "H", "whole"},
    TensorRow{"layers.#.input_layernorm.bias", "H", "whole"},
    TensorRow{"layers.#.post_attention_layernorm.weight", "H", "whole"},
    TensorRow{"layers.#.post_attention_layernorm.bias", "H", "whole"},
    TensorRow{"layers.#.attention.query_key_value.weight", "QKV,H", "rows heads*3"},
    TensorRow{"layers.#.attention.query_key_value.bias", "QKV", "rows heads*3",
              "qkv_bias"},
    TensorRow{"layers.#.attention.dense.weight", "H,H", "columns heads"},
    TensorRow{"layers.#.attention.dense.bias", "H", "whole", "qkv_bias"},
    TensorRow{"layers.#.mlp.dense_h_to_4h.weight", "F,H", "rows"},
    TensorRow{"layers.#.mlp.dense_h_to_4h.bias", "F", "rows"},
    TensorRow{"layers.#.mlp.dense_4h_to_h.weight", "H,F", "columns"},
    TensorRow{"layers.#.mlp.dense_4h_to_h.bias", "H", "whole"},
    TensorRow{"layers.#.attention.bias", "", "whole buffer", "stored"},
    TensorRow{"layers.#.attention.masked_bias", "", "whole buffer", "stored"},
    TensorRow{"layers.#.attention.rotary_emb.inv_freq", "", "whole buffer", "stored"},
    TensorRow{"final_layer_norm.weight", "H", "last whole"},
    TensorRow{"final_layer_norm.bias", "H", "last whole"},
    TensorRow{"/lm_head.weight", "V,H", "last vocabulary", "!tied"},
    TensorRow{"/embed_out.weight", "", "last vocabulary", "stored"},
};

// W is the size of a word's embedding, P the number of positions with two additional
// ones.
constexpr std::array kOpt{
    TensorRow{"decoder.embed_tokens.weight", "V,W", "first vocabulary tied"},
    TensorRow{"decoder.embed_positions.weight", "P,H", "first whole"},
    TensorRow{"decoder.project_in.weight", "H,W", "first whole", "project"},
    TensorRow{"decoder.layers.#.self_attn.k_proj.weight", "H,H", "rows kv_heads"},
    TensorRow{"decoder.layers.#.self_attn.k_proj.bias", "H", "rows kv_heads", "bias"},
    TensorRow{"decoder.layers.#.self_attn.v_proj.weight", "H,H", "rows kv_heads"},
    TensorRow{"decoder.layers.#.self_attn.v_proj.bias", "H", "rows kv_heads", "bias"},
    TensorRow{"decoder.layers.#.self_attn.q_proj.weight", "H,H", "rows heads"},
    TensorRow{"decoder.layers.#.self_attn.q_proj.bias", "H", "rows heads", "bias"},
    TensorRow{"decoder.layers.#.self_attn.out_proj.weight", "H,H", "columns heads"},
    TensorRow{"decoder.layers.#.self_attn.out_proj.bias", "H", "whole", "bias"},
    TensorRow{"decoder.layers.#.self_attn_layer_norm.weight", "H", "whole", "affine"},
    TensorRow{"decoder.layers.#.self_attn_layer_norm.bias", "H", "whole", "affine"},
    TensorRow{"decoder.layers.#.fc1.weight", "F,H", "rows"},
    TensorRow{"decoder.layers.#.fc1.bias", "F", "rows", "bias"},
    TensorRow{"decoder.layers.#.fc2.weight", "H,F", "columns"},
    TensorRow{"decoder.layers.#.fc2.bias", "H", "whole", "bias"},
    TensorRow{"decoder.layers.#.final_layer_norm.weight", "H", "whole", "affine"},
    TensorRow{"decoder.layers.#.final_layer_norm.bias", "H", "whole", "affine"},
    TensorRow{"decoder.final_layer_norm.weight", "H", "last whole",
              "final_norm affine"},
    TensorRow{"decoder.final_layer_norm.bias", "H", "last whole", "final_norm affine"},
    TensorRow{"decoder.project_out.weight", "W,H", "last whole", "project"},
    TensorRow{"/lm_head.weight", "V,W", "last vocabulary", "!tied"},
};

constexpr std::array kBert{
    TensorRow{"embeddings.word_embeddings.weight", "V,H",
              "first vocabulary tied=cls.predictions.bias"},
    TensorRow{"embeddings.position_embeddings.weight", "P,H", "first whole"},
    TensorRow{"embeddings.position_ids", "", "first whole buffer", "stored"},
    TensorRow{"embeddings.token_type_embeddings.weight", "T,H", "first whole"},
    TensorRow{"embeddings.LayerNorm.weight", "H", "first whole"},
    TensorRow{"embeddings.LayerNorm.bias", "H", "first whole"},
    TensorRow{"encoder.layer.#.attention.self.query.weight", "H,H", "rows heads"},
    TensorRow{"encoder.layer.#.attention.self.query.bias", "H", "rows heads"},
    TensorRow{"encoder.layer.#.attention.self.key.weight", "H,H", "rows kv_heads"},
    TensorRow{"encoder.layer.#.attention.self.key.bias", "H", "rows kv_heads"},
    TensorRow{"encoder.layer.#.attention.self.value.weight", "H,H", "rows kv_heads"},
    TensorRow{"encoder.layer.#.attention.self.value.bias", "H", "rows kv_heads"},
    TensorRow{"encoder.layer.#.attention.output.dense.weight", "H,H", "columns heads"},
    TensorRow{"encoder.layer.#.attention.output.dense.bias", "H", "whole"},
    TensorRow{"encoder.layer.#.attention.output.LayerNorm.weight", "H", "whole"},
    TensorRow{"encoder.layer.#.attention.output.LayerNorm.bias", "H", "whole"},
    TensorRow{"encoder.layer.#.intermediate.dense.weight", "F,H", "rows"},
    TensorRow{"encoder.layer.#.intermediate.dense.bias", "F", "rows"},
    TensorRow{"encoder.layer.#.output.dense.weight", "H,F", "columns"},
    TensorRow{"encoder.layer.#.output.dense.bias", "H", "whole"},
    TensorRow{"encoder.layer.#.output.LayerNorm.weight", "H", "whole"},
    TensorRow{"encoder.layer.#.output.LayerNorm.bias", "H", "whole"},
    TensorRow{"pooler.dense.weight", "H,H", "last whole", "pooler"},
    TensorRow{"pooler.dense.bias", "H", "last whole", "pooler"},
    TensorRow{"/cls.predictions.bias", "V", "last vocabulary", "words"},
    TensorRow{"/cls.predictions.transform.dense.weight", "H,H", "last whole", "words"},
    TensorRow{"/cls.predictions.transform.dense.bias", "H", "last whole", "words"},
    TensorRow{"/cls.predictions.transform.LayerNorm.weight", "H", "last whole",
              "words"},
    TensorRow{"/cls.predictions.transform.LayerNorm.bias", "H", "last whole", "words"},
    TensorRow{"/cls.predictions.decoder.weight", "V,H", "last vocabulary",
              "words !tied"},
    TensorRow{"/cls.predictions.decoder.bias", "V", "last vocabulary", "words !tied"},
    TensorRow{"/cls.seq_relationship.weight", "2,H", "last whole", "sentences"},
    TensorRow{"/cls.seq_relationship.bias", "2", "last whole", "sentences"},
    TensorRow{"/classifier.weight", "L,H", "last whole", "labels"},
    TensorRow{"/classifier.bias", "L", "last whole", "labels"},
};

// P is the number of patches and one, N the channels of the image, A and B the size of a
// patch, L the number of labels.
constexpr std::array kVit{
    TensorRow{"embeddings.cls_token", "1,1,H", "first whole"},
    TensorRow{"embeddings.position_embeddings", "1,P,H", "first whole"},
    TensorRow{"embeddings.patch_embeddings.projection.weight", "H,N,A,B",
              "first whole"},
    TensorRow{"embeddings.patch_embeddings.projection.bias", "H", "first whole"},
    TensorRow{"layers.#.attention.q_proj.weight", "H,H", "rows heads"},
    TensorRow{"layers.#.attention.q_proj.bias", "H", "rows heads", "qkv_bias"},
    TensorRow{"layers.#.attention.k_proj.weight", "H,H", "rows kv_heads"},
    TensorRow{"layers.#.attention.k_proj.bias", "H", "rows kv_heads", "qkv_bias"},
    TensorRow{"layers.#.attention.v_proj.weight", "H,H", "rows kv_heads"},
    TensorRow{"layers.#.attention.v_proj.bias", "H", "rows kv_heads", "qkv_bias"},
    TensorRow{"layers.#.attention.o_proj.weight", "H,H", "columns heads"},
    TensorRow{"layers.#.attention.o_proj.bias", "H", "whole"},
    TensorRow{"layers.#.layernorm_before.weight", "H", "whole"},
    TensorRow{"layers.#.layernorm_before.bias", "H", "whole"},
    TensorRow{"layers.#.layernorm_after.weight", "H", "whole"},
    TensorRow{"layers.#.layernorm_after.bias", "H", "whole"},
    TensorRow{"layers.#.mlp.fc1.weight", "F,H", "rows"},
    TensorRow{"layers.#.mlp.fc1.bias", "F", "rows"},
    TensorRow{"layers.#.mlp.fc2.weight", "H,F", "columns"},
    TensorRow{"layers.#.mlp.fc2.bias", "H", "whole"},
    TensorRow{"layernorm.weight", "H", "last whole"},
    TensorRow{"layernorm.bias", "H", "last whole"},
    TensorRow{"pooler.dense.weight", "O,H", "last whole", "pooler"},
    TensorRow{"pooler.dense.bias", "O", "last whole", "pooler"},
    TensorRow{"/classifier.weight", "L,H", "last whole", "labels"},
    TensorRow{"/classifier.bias", "L", "last whole", "labels"},
};

// The same in the names of transformers 4, which save_pretrained() still writes.
constexpr std::array kVitOfFiles{
    TensorRow{"embeddings.cls_token", "", "first whole"},
    TensorRow{"embeddings.position_embeddings", "", "first whole"},
    TensorRow{"embeddings.patch_embeddings.projection.weight", "", "first whole"},
    TensorRow{"embeddings.patch_embeddings.projection.bias", "", "first whole"},
    TensorRow{"encoder.layer.#.layernorm_before.weight", "", "whole"},
    TensorRow{"encoder.layer.#.layernorm_before.bias", "", "whole"},
    TensorRow{"encoder.layer.#.attention.attention.query.weight", "", "rows heads"},
    TensorRow{"encoder.layer.#.attention.attention.key.weight", "", "rows kv_heads"},
    TensorRow{"encoder.layer.#.attention.attention.value.weight", "", "rows kv_heads"},
    TensorRow{"encoder.layer.#.attention.attention.query.bias", "", "rows heads",
              "qkv_bias"},
    TensorRow{"encoder.layer.#.attention.attention.key.bias", "", "rows kv_heads",
              "qkv_bias"},
    TensorRow{"encoder.layer.#.attention.attention.value.bias", "", "rows kv_heads",
              "qkv_bias"},
    TensorRow{"encoder.layer.#.attention.output.dense.weight", "", "columns heads"},
    TensorRow{"encoder.layer.#.attention.output.dense.bias", "", "whole"},
    TensorRow{"encoder.layer.#.layernorm_after.weight", "", "whole"},
    TensorRow{"encoder.layer.#.layernorm_after.bias", "", "whole"},
    TensorRow{"encoder.layer.#.intermediate.dense.weight", "", "rows"},
    TensorRow{"encoder.layer.#.intermediate.dense.bias", "", "rows"},
    TensorRow{"encoder.layer.#.output.dense.weight", "", "columns"},
    TensorRow{"encoder.layer.#.output.dense.bias", "", "whole"},
    TensorRow{"layernorm.weight", "", "last whole"},
    TensorRow{"layernorm.bias", "", "last whole"},
    TensorRow{"pooler.dense.weight", "", "last whole", "pooler"},
    TensorRow{"pooler.dense.bias", "", "last whole", "pooler"},
    TensorRow{"/classifier.weight", "", "last whole", "labels"},
    TensorRow{"/classifier.bias", "", "last whole", "labels"},
};

// GPT-2 of transformers. Its weights are [inputs, outputs], as Conv1D has them.
constexpr std::array kGpt2{
    TensorRow{"wte.weight", "", "first vocabulary tied"},
    TensorRow{"wpe.weight", "", "first whole"},
    TensorRow{"h.#.ln_1.weight", "", "whole"},
    TensorRow{"h.#.ln_1.bias", "", "whole"},
    TensorRow{"h.#.attn.c_attn.weight", "", "columns/3 heads"},
    TensorRow{"h.#.attn.c_attn.bias", "", "rows/3 heads"},
    TensorRow{"h.#.attn.c_proj.weight", "", "rows heads"},
    TensorRow{"h.#.attn.c_proj.bias", "", "whole"},
    TensorRow{"h.#.attn.bias", "", "whole buffer optional"},
    TensorRow{"h.#.attn.masked_bias", "", "whole buffer optional"},
    TensorRow{"h.#.ln_2.weight", "", "whole"},
    TensorRow{"h.#.ln_2.bias", "", "whole"},
    TensorRow{"h.#.mlp.c_fc.weight", "", "columns"},
    TensorRow{"h.#.mlp.c_fc.bias", "", "rows"},
    TensorRow{"h.#.mlp.c_proj.weight", "", "rows"},
    TensorRow{"h.#.mlp.c_proj.bias", "", "whole"},
    TensorRow{"ln_f.weight", "", "last whole"},
    TensorRow{"ln_f.bias", "", "last whole"},
    TensorRow{"lm_head.weight", "", "last vocabulary optional"},
};

// GPT of Megatron-LM, whole as its ranks have it together: the layers of all stages are
// numbered through. The rows of a fused QKV are ordered by head, so that any number of
// ranks that divides the heads has an interval of them.
constexpr std::array kMegatronGpt{
    TensorRow{"embedding.word_embeddings.weight", "", "first vocabulary tied"},
    TensorRow{"embedding.position_embeddings.weight", "", "first whole optional"},
    TensorRow{"layers.#.input_layernorm.weight", "", "whole optional"},
    TensorRow{"layers.#.input_layernorm.bias", "", "whole optional"},
    TensorRow{"layers.#.self_attention.query_key_value.weight", "", "rows optional"},
    TensorRow{"layers.#.self_attention.query_key_value.bias", "", "rows optional"},
    TensorRow{"layers.#.self_attention.dense.weight", "", "columns optional"},
    TensorRow{"layers.#.self_attention.dense.bias", "", "whole optional"},
    TensorRow{"layers.#.attention.query_key_value.weight", "", "rows optional"},
    TensorRow{"layers.#.attention.query_key_value.bias", "", "rows optional"},
    TensorRow{"layers.#.attention.dense.weight", "", "columns optional"},
    TensorRow{"layers.#.attention.dense.bias", "", "whole optional"},
    TensorRow{"layers.#.post_attention_layernorm.weight", "", "whole optional"},
    TensorRow{"layers.#.post_attention_layernorm.bias", "", "whole optional"},
    TensorRow{"layers.#.mlp.dense_h_to_4h.weight", "", "rows optional"},
    TensorRow{"layers.#.mlp.dense_h_to_4h.bias", "", "rows optional"},
    TensorRow{"layers.#.mlp.dense_4h_to_h.weight", "", "columns optional"},
    TensorRow{"layers.#.mlp.dense_4h_to_h.bias", "", "whole optional"},
    // The names of Megatron Core.
    TensorRow{"layers.#.self_attention.linear_qkv.layer_norm_weight", "",
              "whole optional"},
    TensorRow{"layers.#.self_attention.linear_qkv.layer_norm_bias", "",
              "whole optional"},
    TensorRow{"layers.#.self_attention.linear_qkv.weight", "", "rows optional"},
    TensorRow{"layers.#.self_attention.linear_qkv.bias", "", "rows optional"},
    TensorRow{"layers.#.self_attention.linear_proj.weight", "", "columns optional"},
    TensorRow{"layers.#.self_attention.linear_proj.bias", "", "whole optional"},
    TensorRow{"layers.#.pre_mlp_layernorm.weight", "", "whole optional"},
    TensorRow{"layers.#.pre_mlp_layernorm.bias", "", "whole optional"},
    TensorRow{"layers.#.mlp.linear_fc1.layer_norm_weight", "", "whole optional"},
    TensorRow{"layers.#.mlp.linear_fc1.layer_norm_bias", "", "whole optional"},
    TensorRow{"layers.#.mlp.linear_fc1.weight", "", "rows optional"},
    TensorRow{"layers.#.mlp.linear_fc1.bias", "", "rows optional"},
    TensorRow{"layers.#.mlp.linear_fc2.weight", "", "columns optional"},
    TensorRow{"layers.#.mlp.linear_fc2.bias", "", "whole optional"},
    TensorRow{"final_layernorm.weight", "", "last whole"},
    TensorRow{"final_layernorm.bias", "", "last whole optional"},
    TensorRow{"output_layer.weight", "", "last vocabulary optional"},
};

// A rule set: the rows of a table that a kind of checkpoint has.
struct Set {
  std::string_view name;
  std::span<const TensorRow> rows;
  std::string_view always = "";  // flags that are set in every such checkpoint
  std::string_view maybe = "";   // flags that are set in some of them
  std::string_view some = "";    // flags of which each layer has some
};

// The first set that fits a checkpoint counts.
constexpr std::array kSets{
    Set{"hf-gpt2", kGpt2},
    Set{"hf-llama", kDecoder, "q kv dense",
        "tied qkv_bias o_bias mlp_bias qk_norm four_norms stored"},
    Set{"hf-mixtral", kDecoder, "q kv", "tied qk_norm sparse mixtral stored"},
    Set{"hf-qwen-moe", kDecoder, "q kv", "tied qkv_bias o_bias qk_norm shared_one stored",
        "sparse dense one_each"},
    Set{"hf-phi3", kDecoder, "fused dense", "tied stored"},
    Set{"hf-deepseek", kDecoder, "latent",
        "tied q q_lora latent_bias o_bias mlp_bias score_bias stored",
        "sparse dense one_each shared"},
    Set{"hf-gpt-neox", kNeox, "", "tied qkv_bias stored"},
    Set{"hf-opt", kOpt, "", "tied bias affine final_norm project"},
    Set{"hf-bert", kBert, "", "tied words pooler sentences labels stored"},
    Set{"hf-vit", kVit, "", "qkv_bias pooler labels"},
    Set{"hf-vit-of-files", kVitOfFiles, "", "qkv_bias pooler labels"},
    Set{"megatron-gpt", kMegatronGpt},
};

// Calls `visit` with each part of a text that is cut at `separator`.
void for_each_part(std::string_view text, char separator, auto visit) {
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

bool has_word(std::string_view words, std::string_view word) {
  bool found = false;
  for_each_part(words, ' ', [&](std::string_view each) { found |= each == word; });
  return found;
}

// The word about the presence of a row in the checkpoints of a set: "" if all of them
// have it, "optional" or "some". Returns nullopt if none has it.
std::optional<std::string_view> presence_of(const TensorRow& row, const Set& set) {
  bool never = false, maybe = false, some = false;
  for_each_part(row.when, ' ', [&](std::string_view flag) {
    const bool expected = !flag.starts_with('!');
    if (!expected) flag.remove_prefix(1);
    const bool open = has_word(set.maybe, flag), in_layers = has_word(set.some, flag);
    maybe |= open;
    some |= in_layers;
    never |= !open && !in_layers && has_word(set.always, flag) != expected;
  });
  if (never) return std::nullopt;
  return some ? "some" : maybe ? "optional" : "";
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

std::vector<std::string> rule_set_names() {
  std::vector<std::string> names;
  for (const Set& set : kSets) names.emplace_back(set.name);
  return names;
}

Result<RuleSet> find_rule_set(std::string_view name) {
  const auto found = std::ranges::find(kSets, name, &Set::name);
  if (found == kSets.end()) {
    return not_found("rules \"{}\": not known; expected {}, as-cut or a JSON file",
                     name.substr(0, 80), fmt::join(rule_set_names(), ", "));
  }
  RuleSet set{.name = std::string(name)};
  for (const TensorRow& row : found->rows) {
    const auto presence = presence_of(row, *found);
    if (!presence) continue;
    const size_t outside = row.name.starts_with('/') ? 1 : 0;
    const std::string words = std::string(row.words) + " " + std::string(*presence);
    set.rules.push_back(HOLDFAST_TRY(parse_rule(row.name.substr(outside), words)));
  }
  return set;
}

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
    if (row.shape.empty() || !applies(row, values, sparse)) return {};
    NamedTensor each;
    each.tensor.name = name_of(row, layer, values.prefix);
    each.tensor.shape = HOLDFAST_TRY(shape_of(row, values));
    each.words = row.words;
    if (has_word(row.words, "buffer")) each.tensor.role = Role::kBuffer;
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
