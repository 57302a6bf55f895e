// The built-in rule sets, as tables.
#include <fmt/ranges.h>

#include <array>

#include "holdfast/models/rules.h"

namespace holdfast {
namespace {

struct Row {
  std::string_view pattern;
  std::string_view words;
};

// GPT-2 of transformers. Its weights are [inputs, outputs], as Conv1D has them.
constexpr std::array kGpt2{
    Row{"wte.weight", "first vocabulary tied"},
    Row{"wpe.weight", "first whole"},
    Row{"h.#.ln_1.weight", "whole"},
    Row{"h.#.ln_1.bias", "whole"},
    Row{"h.#.attn.c_attn.weight", "columns/3 heads"},
    Row{"h.#.attn.c_attn.bias", "rows/3 heads"},
    Row{"h.#.attn.c_proj.weight", "rows heads"},
    Row{"h.#.attn.c_proj.bias", "whole"},
    Row{"h.#.attn.bias", "whole buffer optional"},
    Row{"h.#.attn.masked_bias", "whole buffer optional"},
    Row{"h.#.ln_2.weight", "whole"},
    Row{"h.#.ln_2.bias", "whole"},
    Row{"h.#.mlp.c_fc.weight", "columns"},
    Row{"h.#.mlp.c_fc.bias", "rows"},
    Row{"h.#.mlp.c_proj.weight", "rows"},
    Row{"h.#.mlp.c_proj.bias", "whole"},
    Row{"ln_f.weight", "last whole"},
    Row{"ln_f.bias", "last whole"},
    Row{"lm_head.weight", "last vocabulary optional"},
};

// What Llama and Mixtral have in common.
constexpr std::array kLlamaAttention{
    Row{"embed_tokens.weight", "first vocabulary tied"},
    Row{"layers.#.input_layernorm.weight", "whole"},
    Row{"layers.#.self_attn.q_proj.weight", "rows heads"},
    Row{"layers.#.self_attn.q_proj.bias", "rows heads optional"},
    Row{"layers.#.self_attn.k_proj.weight", "rows heads"},
    Row{"layers.#.self_attn.k_proj.bias", "rows heads optional"},
    Row{"layers.#.self_attn.v_proj.weight", "rows heads"},
    Row{"layers.#.self_attn.v_proj.bias", "rows heads optional"},
    Row{"layers.#.self_attn.q_norm.weight", "whole optional"},
    Row{"layers.#.self_attn.k_norm.weight", "whole optional"},
    Row{"layers.#.self_attn.o_proj.weight", "columns heads"},
    Row{"layers.#.self_attn.o_proj.bias", "whole optional"},
    Row{"layers.#.self_attn.rotary_emb.inv_freq", "whole buffer optional"},
    Row{"layers.#.post_attention_layernorm.weight", "whole"},
    Row{"norm.weight", "last whole"},
    Row{"rotary_emb.inv_freq", "first whole buffer optional"},
    Row{"lm_head.weight", "last vocabulary optional"},
};

constexpr std::array kLlamaMlp{
    Row{"layers.#.mlp.gate_proj.weight", "rows"},
    Row{"layers.#.mlp.gate_proj.bias", "rows optional"},
    Row{"layers.#.mlp.up_proj.weight", "rows"},
    Row{"layers.#.mlp.up_proj.bias", "rows optional"},
    Row{"layers.#.mlp.down_proj.weight", "columns"},
    Row{"layers.#.mlp.down_proj.bias", "whole optional"},
};

// Files have a tensor for each expert. Models of transformers from 5 on have one tensor
// for all experts of a layer.
constexpr std::array kMixtralExperts{
    Row{"layers.#.block_sparse_moe.gate.weight", "whole optional"},
    Row{"layers.#.block_sparse_moe.experts.%.w1.weight", "rows optional"},
    Row{"layers.#.block_sparse_moe.experts.%.w2.weight", "columns optional"},
    Row{"layers.#.block_sparse_moe.experts.%.w3.weight", "rows optional"},
    Row{"layers.#.mlp.gate.weight", "whole optional"},
    Row{"layers.#.mlp.experts.gate_up_proj", "stacked rows/2 optional"},
    Row{"layers.#.mlp.experts.down_proj", "stacked columns optional"},
};

// GPT of Megatron-LM, whole as its ranks have it together: the layers of all stages are
// numbered through. The rows of a fused QKV are ordered by head, so that any number of
// ranks that divides the heads has an interval of them.
constexpr std::array kMegatronGpt{
    Row{"embedding.word_embeddings.weight", "first vocabulary tied"},
    Row{"embedding.position_embeddings.weight", "first whole optional"},
    Row{"layers.#.input_layernorm.weight", "whole optional"},
    Row{"layers.#.input_layernorm.bias", "whole optional"},
    Row{"layers.#.self_attention.query_key_value.weight", "rows optional"},
    Row{"layers.#.self_attention.query_key_value.bias", "rows optional"},
    Row{"layers.#.self_attention.dense.weight", "columns optional"},
    Row{"layers.#.self_attention.dense.bias", "whole optional"},
    Row{"layers.#.attention.query_key_value.weight", "rows optional"},
    Row{"layers.#.attention.query_key_value.bias", "rows optional"},
    Row{"layers.#.attention.dense.weight", "columns optional"},
    Row{"layers.#.attention.dense.bias", "whole optional"},
    Row{"layers.#.post_attention_layernorm.weight", "whole optional"},
    Row{"layers.#.post_attention_layernorm.bias", "whole optional"},
    Row{"layers.#.mlp.dense_h_to_4h.weight", "rows optional"},
    Row{"layers.#.mlp.dense_h_to_4h.bias", "rows optional"},
    Row{"layers.#.mlp.dense_4h_to_h.weight", "columns optional"},
    Row{"layers.#.mlp.dense_4h_to_h.bias", "whole optional"},
    // The names of Megatron Core.
    Row{"layers.#.self_attention.linear_qkv.layer_norm_weight", "whole optional"},
    Row{"layers.#.self_attention.linear_qkv.layer_norm_bias", "whole optional"},
    Row{"layers.#.self_attention.linear_qkv.weight", "rows optional"},
    Row{"layers.#.self_attention.linear_qkv.bias", "rows optional"},
    Row{"layers.#.self_attention.linear_proj.weight", "columns optional"},
    Row{"layers.#.self_attention.linear_proj.bias", "whole optional"},
    Row{"layers.#.pre_mlp_layernorm.weight", "whole optional"},
    Row{"layers.#.pre_mlp_layernorm.bias", "whole optional"},
    Row{"layers.#.mlp.linear_fc1.layer_norm_weight", "whole optional"},
    Row{"layers.#.mlp.linear_fc1.layer_norm_bias", "whole optional"},
    Row{"layers.#.mlp.linear_fc1.weight", "rows optional"},
    Row{"layers.#.mlp.linear_fc1.bias", "rows optional"},
    Row{"layers.#.mlp.linear_fc2.weight", "columns optional"},
    Row{"layers.#.mlp.linear_fc2.bias", "whole optional"},
    Row{"final_layernorm.weight", "last whole"},
    Row{"final_layernorm.bias", "last whole optional"},
    Row{"output_layer.weight", "last vocabulary optional"},
};

struct Table {
  std::string_view name;
  std::array<std::span<const Row>, 2> rows;
};

constexpr std::array kTables{
    Table{"hf-gpt2", {kGpt2}},
    Table{"hf-llama", {kLlamaAttention, kLlamaMlp}},
    Table{"hf-mixtral", {kLlamaAttention, kMixtralExperts}},
    Table{"megatron-gpt", {kMegatronGpt}},
};

}  // namespace

std::vector<std::string> rule_set_names() {
  std::vector<std::string> names;
  for (const Table& table : kTables) names.emplace_back(table.name);
  return names;
}

Result<RuleSet> find_rule_set(std::string_view name) {
  for (const Table& table : kTables) {
    if (table.name != name) continue;
    RuleSet set{.name = std::string(name)};
    for (const std::span<const Row> rows : table.rows) {
      for (const Row& row : rows) {
        set.rules.push_back(HOLDFAST_TRY(parse_rule(row.pattern, row.words)));
      }
    }
    return set;
  }
  return not_found("rules \"{}\": not known; expected {}, as-cut or a JSON file",
                   name.substr(0, 80), fmt::join(rule_set_names(), ", "));
}

}  // namespace holdfast
