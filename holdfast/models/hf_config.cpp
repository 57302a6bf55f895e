#include "holdfast/models/hf_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>
#include <sstream>
#include <tuple>

#include "holdfast/models/hf_fields.h"
#include "holdfast/models/tensor_tables.h"

namespace holdfast {
namespace {

// A family of decoders that decoder_rows() has.
struct Decoder {
  std::string_view type;
  bool tied;               // unless the configuration says otherwise, as the next two
  int64_t kv_heads;        // 0: as many as query heads
  int64_t head;            // the size of a head; 0: the hidden size over the heads
  std::string_view flags;  // of the table
  std::string_view bias;   // the key that turns on biases of attention; empty if none
  bool bias_of_output;     // the bias of the output projection, too
};

constexpr std::array kDecoders{
    Decoder{"llama", false, 0, 0, "q kv", "attention_bias", true},
    Decoder{"mistral", false, 8, 0, "q kv", "", false},
    Decoder{"mixtral", false, 8, 0, "q kv mixtral", "", false},
    Decoder{"qwen2", false, 32, 0, "q kv qkv_bias", "", false},
    Decoder{"qwen2_moe", false, 16, 0, "q kv shared_one", "qkv_bias", false},
    Decoder{"qwen3", false, 32, 128, "q kv qk_norm", "attention_bias", true},
    Decoder{"qwen3_moe", false, 4, 0, "q kv qk_norm", "attention_bias", true},
    Decoder{"phi3", false, 0, 0, "fused", "", false},
    Decoder{"gemma", true, 16, 256, "q kv", "attention_bias", true},
    Decoder{"gemma2", true, 4, 256, "q kv four_norms", "attention_bias", true},
    Decoder{"gemma3_text", true, 4, 256, "q kv four_norms qk_norm", "attention_bias",
            true},
    Decoder{"deepseek_v2", false, 0, 0, "latent shared", "attention_bias", true},
    Decoder{"deepseek_v3", false, 0, 0, "latent shared score_bias", "attention_bias",
            true},
};

// What a table needs to become a model.
struct TableModel {
  std::span<const TensorRow> rows;
  TableValues values{};
  HeadCounts heads{};
};

void set_flags(TableValues& values, std::string_view flags) {
  for (std::istringstream words{std::string(flags)}; words;) {
    std::string word;
    if (words >> word) values.flags.insert(word);
  }
}

// Reads the sizes that all families have. Biases and heads are read by each family.
Result<TableModel> read_table(const JsonPlace& config, std::span<const TensorRow> rows,
                              const std::string& inner) {
  TableModel model{.rows = rows};
  model.values.layers = HOLDFAST_TRY(size_of(config, "num_hidden_layers", kMaxLayers));
  model.values.sizes["H"] = HOLDFAST_TRY(size_of(config, "hidden_size"));
  model.values.sizes["F"] = HOLDFAST_TRY(size_of(config, inner));
  const int64_t heads = HOLDFAST_TRY(size_of(config, "num_attention_heads", kMaxHeads));
  model.heads = {heads, heads};
  return model;
}

Result<void> read_words(const JsonPlace& config, TableModel& model, bool tied,
                        const std::string& embedding, const std::string& head) {
  model.values.sizes["V"] = HOLDFAST_TRY(size_of(config, "vocab_size"));
  if (!HOLDFAST_TRY(flag_or(config, "tie_word_embeddings", tied))) return {};
  model.values.flags.insert("tied");
  model.values.ties[embedding] = head;
  return {};
}

// The class that the configuration is for must be one of those that the table describes.
Result<std::string> read_class(const JsonPlace& config,
                               std::initializer_list<std::string_view> known) {
  if (!is_given(config, "architectures")) return std::string(*known.begin());
  const JsonPlace list = HOLDFAST_TRY(config.at("architectures"));
  const bool named = HOLDFAST_TRY(list.length()) > 0;
  const std::string name = named ? list.item(0).as<std::string>().value_or("") : "";
  for (const std::string_view ending : known) {
    if (name.ends_with(ending)) return std::string(ending);
  }
  return unsupported(
      "{}.architectures: \"{}\"; expected a class that ends in {} (plan --module takes "
      "any model)",
      config.text(), name.substr(0, 80), fmt::join(known, ", "));
}

// Every query head has its own part of the latent keys and values, so that there are as
// many KV heads as query heads.
Result<void> read_latent_attention(const JsonPlace& config, TableModel& model) {
  auto& sizes = model.values.sizes;
  const int64_t heads = model.heads.heads;
  const int64_t plain = HOLDFAST_TRY(size_or(config, "qk_nope_head_dim", 128));
  const int64_t rotary = HOLDFAST_TRY(size_or(config, "qk_rope_head_dim", 64));
  const int64_t value = HOLDFAST_TRY(size_or(config, "v_head_dim", 128));
  sizes["RKV"] = HOLDFAST_TRY(size_or(config, "kv_lora_rank", 512));
  sizes["Q"] = heads * (plain + rotary);
  sizes["KVA"] = sizes["RKV"] + rotary;
  sizes["KVB"] = heads * (plain + value);
  sizes["O"] = heads * value;
  // null means that queries are not compressed. Without the key they are.
  const bool compressed = !config.find("q_lora_rank") || is_given(config, "q_lora_rank");
  if (compressed) sizes["RQ"] = HOLDFAST_TRY(size_or(config, "q_lora_rank", 1536));
  model.values.flags.insert(compressed ? "q_lora" : "q");
  return {};
}

Result<void> read_heads(const JsonPlace& config, const Decoder& family, TableModel& model) {
  auto& sizes = model.values.sizes;
  const int64_t heads = model.heads.heads;
  const bool null =
      config.find("num_key_value_heads") && !is_given(config, "num_key_value_heads");
  const int64_t otherwise = null || family.kv_heads == 0 ? heads : family.kv_heads;
  model.heads.kv_heads =
      HOLDFAST_TRY(size_or(config, "num_key_value_heads", otherwise, kMaxHeads));
  HOLDFAST_TRY(check_multiple(config, "num_attention_heads", heads,
                              "num_key_value_heads", model.heads.kv_heads));
  int64_t head = HOLDFAST_TRY(size_or(config, "head_dim", family.head));
  if (head == 0) {
    HOLDFAST_TRY(check_multiple(config, "hidden_size", sizes["H"],
                                "num_attention_heads", heads));
    head = sizes["H"] / heads;
  }
  sizes["D"] = head;
  sizes["Q"] = sizes["O"] = heads * head;
  sizes["K"] = model.heads.kv_heads * head;
  sizes["QKV"] = sizes["Q"] + 2 * sizes["K"];
  return {};
}

// All layers of a Mixtral have experts.
Result<void> read_mixtral_experts(const JsonPlace& config, TableModel& model) {
  auto& values = model.values;
  values.sizes["E"] = HOLDFAST_TRY(size_of(config, "num_local_experts", kMaxHeads));
  values.sizes["M"] = values.sizes["F"];
  values.sparse = [](int64_t) { return true; };
  return {};
}

// Tells which layers of a Qwen model have experts.
Result<void> read_qwen_experts(const JsonPlace& config, TableModel& model) {
  auto& values = model.values;
  values.sizes["E"] = HOLDFAST_TRY(size_of(config, "num_experts", kMaxHeads));
  values.sizes["M"] = HOLDFAST_TRY(size_of(config, "moe_intermediate_size"));
  if (values.flags.contains("shared_one")) {
    values.sizes["S"] =
        HOLDFAST_TRY(size_of(config, "shared_expert_intermediate_size"));
  }
  const int64_t step =
      HOLDFAST_TRY(size_or(config, "decoder_sparse_step", 1, kMaxLayers));
  std::set<int64_t> dense;
  if (is_given(config, "mlp_only_layers")) {
    const JsonPlace list = HOLDFAST_TRY(config.at("mlp_only_layers"));
    const size_t count = HOLDFAST_TRY(list.length());
    for (size_t i = 0; i < count; ++i) {
      int64_t layer = 0;
      HOLDFAST_TRY(list.item(i).read(layer));
      dense.insert(layer);
    }
  }
  values.sparse = [step, dense](int64_t layer) {
    return (layer + 1) % step == 0 && !dense.contains(layer);
  };
  return {};
}

Result<void> read_deepseek_experts(const JsonPlace& config, TableModel& model, bool v3) {
  auto& sizes = model.values.sizes;
  sizes["E"] = HOLDFAST_TRY(size_of(config, "n_routed_experts", kMaxHeads));
  sizes["M"] = HOLDFAST_TRY(size_of(config, "moe_intermediate_size"));
  sizes["S"] = sizes["M"] *
               HOLDFAST_TRY(size_or(config, "n_shared_experts", v3 ? 1 : 2, kMaxHeads));
  const int64_t dense = HOLDFAST_TRY(
      size_or(config, "first_k_dense_replace", v3 ? 3 : 0, kMostInteger, 0));
  model.values.sparse = [dense](int64_t layer) { return layer >= dense; };
  return {};
}

Result<TableModel> read_decoder(const JsonPlace& config, const Decoder& family) {
  HOLDFAST_TRY(read_class(config, {"ForCausalLM"}));
  TableModel model =
      HOLDFAST_TRY(read_table(config, decoder_rows(), "intermediate_size"));
  model.values.prefix = "model.";
  HOLDFAST_TRY(read_words(config, model, family.tied, "model.embed_tokens.weight",
                          "lm_head.weight"));
  set_flags(model.values, family.flags);
  const bool latent = model.values.flags.contains("latent");
  HOLDFAST_TRY(latent ? read_latent_attention(config, model)
                      : read_heads(config, family, model));
  if (!family.bias.empty() &&
      HOLDFAST_TRY(flag_or(config, std::string(family.bias), !family.bias_of_output))) {
    model.values.flags.insert(latent ? "latent_bias" : "qkv_bias");
    if (family.bias_of_output) model.values.flags.insert("o_bias");
  }
  const bool mlp_bias = family.type == "llama" || family.type == "deepseek_v2";
  if (mlp_bias && HOLDFAST_TRY(flag_or(config, "mlp_bias", false))) {
    model.values.flags.insert("mlp_bias");
  }
  if (family.type == "mixtral") {
    HOLDFAST_TRY(read_mixtral_experts(config, model));
  } else if (latent) {
    HOLDFAST_TRY(read_deepseek_experts(config, model, family.type == "deepseek_v3"));
  } else if (family.type.ends_with("_moe")) {
    HOLDFAST_TRY(read_qwen_experts(config, model));
  }
  return model;
}

Result<TableModel> read_neox(const JsonPlace& config) {
  HOLDFAST_TRY(read_class(config, {"ForCausalLM"}));
  TableModel model = HOLDFAST_TRY(read_table(config, neox_rows(), "intermediate_size"));
  model.values.prefix = "gpt_neox.";
  HOLDFAST_TRY(
      read_words(config, model, false, "gpt_neox.embed_in.weight", "lm_head.weight"));
  model.values.sizes["QKV"] = 3 * model.values.sizes["H"];
  if (HOLDFAST_TRY(flag_or(config, "attention_bias", true))) {
    model.values.flags.insert("qkv_bias");
  }
  return model;
}

Result<TableModel> read_gpt2(const JsonPlace& config) {
  const std::string kind =
      HOLDFAST_TRY(read_class(config, {"LMHeadModel", "GPT2Model"}));
  TableModel model{.rows = gpt2_rows()};
  auto& [layers, prefix, sizes, flags, sparse, ties] = model.values;
  layers = HOLDFAST_TRY(size_of(config, "n_layer", kMaxLayers));
  sizes["H"] = HOLDFAST_TRY(size_of(config, "n_embd"));
  sizes["F"] = HOLDFAST_TRY(size_or(config, "n_inner", 4 * sizes["H"]));
  sizes["P"] = HOLDFAST_TRY(size_of(config, "n_positions"));
  const int64_t heads = HOLDFAST_TRY(size_of(config, "n_head", kMaxHeads));
  model.heads = {heads, heads};
  HOLDFAST_TRY(check_multiple(config, "n_embd", sizes["H"], "n_head", heads));
  if (HOLDFAST_TRY(flag_or(config, "add_cross_attention", false))) {
    return unsupported("{}.add_cross_attention: true; expected false", config.text());
  }
  HOLDFAST_TRY(
      read_words(config, model, true, "transformer.wte.weight", "lm_head.weight"));
  if (kind != "GPT2Model") prefix = "transformer.";
  if (kind == "GPT2Model") flags.insert("tied");  // it has no head
  return model;
}

Result<TableModel> read_opt(const JsonPlace& config) {
  HOLDFAST_TRY(read_class(config, {"ForCausalLM"}));
  TableModel model = HOLDFAST_TRY(read_table(config, opt_rows(), "ffn_dim"));
  model.values.prefix = "model.decoder.";
  HOLDFAST_TRY(read_words(config, model, true, "model.decoder.embed_tokens.weight",
                          "lm_head.weight"));
  auto [sizes, flags] = std::tie(model.values.sizes, model.values.flags);
  sizes["W"] = HOLDFAST_TRY(size_or(config, "word_embed_proj_dim", sizes["H"]));
  if (sizes["W"] != sizes["H"]) flags.insert("project");
  sizes["P"] = HOLDFAST_TRY(size_or(config, "max_position_embeddings", 2048)) + 2;
  if (HOLDFAST_TRY(flag_or(config, "enable_bias", true))) flags.insert("bias");
  if (HOLDFAST_TRY(flag_or(config, "layer_norm_elementwise_affine", true))) {
    flags.insert("affine");
  }
  if (HOLDFAST_TRY(flag_or(config, "do_layer_norm_before", true)) &&
      !HOLDFAST_TRY(flag_or(config, "_remove_final_layer_norm", false))) {
    flags.insert("final_norm");
  }
  return model;
}

// The number of labels: num_labels, or the size of id2label, or 2.
Result<int64_t> read_labels(const JsonPlace& config) {
  if (const auto names = config.find("id2label"); names && names->is_object()) {
    int64_t count = 0;
    HOLDFAST_TRY(names->for_each([&](const std::string&, const JsonPlace&) {
      ++count;
      return Result<void>();
    }));
    return count;
  }
  return size_or(config, "num_labels", 2);
}

Result<TableModel> read_bert(const JsonPlace& config) {
  const std::string kind =
      HOLDFAST_TRY(read_class(config, {"ForMaskedLM", "ForPreTraining",
                                       "ForSequenceClassification", "BertModel"}));
  TableModel model = HOLDFAST_TRY(read_table(config, bert_rows(), "intermediate_size"));
  auto [sizes, flags] = std::tie(model.values.sizes, model.values.flags);
  const bool words = kind == "ForMaskedLM" || kind == "ForPreTraining";
  if (kind != "BertModel") model.values.prefix = "bert.";
  HOLDFAST_TRY(read_words(config, model, true, "bert.embeddings.word_embeddings.weight",
                          "cls.predictions.decoder.weight"));
  if (!words) model.values.ties.clear();
  if (words && flags.contains("tied")) {
    model.values.ties["cls.predictions.bias"] = "cls.predictions.decoder.bias";
  }
  sizes["P"] = HOLDFAST_TRY(size_or(config, "max_position_embeddings", 512));
  sizes["T"] = HOLDFAST_TRY(size_or(config, "type_vocab_size", 2));
  if (words) flags.insert("words");
  if (kind != "ForMaskedLM") flags.insert("pooler");
  if (kind == "ForPreTraining") flags.insert("sentences");
  if (kind == "ForSequenceClassification") {
    flags.insert("labels");
    sizes["L"] = HOLDFAST_TRY(read_labels(config));
  }
  return model;
}

Result<TableModel> read_vit(const JsonPlace& config) {
  const std::string kind =
      HOLDFAST_TRY(read_class(config, {"ForImageClassification", "ViTModel"}));
  TableModel model = HOLDFAST_TRY(read_table(config, vit_rows(), "intermediate_size"));
  auto [sizes, flags] = std::tie(model.values.sizes, model.values.flags);
  const int64_t image = HOLDFAST_TRY(size_or(config, "image_size", 224));
  const int64_t patch = HOLDFAST_TRY(size_or(config, "patch_size", 16));
  sizes["A"] = sizes["B"] = patch;
  sizes["P"] = (image / patch) * (image / patch) + 1;
  sizes["N"] = HOLDFAST_TRY(size_or(config, "num_channels", 3));
  if (HOLDFAST_TRY(flag_or(config, "qkv_bias", true))) flags.insert("qkv_bias");
  if (kind == "ViTModel") {
    flags.insert("pooler");
    sizes["O"] = HOLDFAST_TRY(size_or(config, "pooler_output_size", sizes["H"]));
  } else {
    model.values.prefix = "vit.";
    flags.insert("labels");
    sizes["L"] = HOLDFAST_TRY(read_labels(config));
  }
  return model;
}

Result<TableModel> read_by_type(const JsonPlace& config, std::string_view type) {
  if (type == "gpt2") return read_gpt2(config);
  if (type == "gpt_neox") return read_neox(config);
  if (type == "opt") return read_opt(config);
  if (type == "bert") return read_bert(config);
  if (type == "vit") return read_vit(config);
  const auto family = std::ranges::find(kDecoders, type, &Decoder::type);
  HOLDFAST_CHECK(family != kDecoders.end(), "no table for {}", type);
  return read_decoder(config, *family);
}

}  // namespace

std::vector<std::string> config_types() {
  std::vector<std::string> types{"bert", "gpt2", "gpt_neox", "opt", "vit"};
  for (const Decoder& family : kDecoders) types.emplace_back(family.type);
  std::ranges::sort(types);
  return types;
}

std::string rules_of_type(std::string_view type) {
  if (type == "gpt_neox") return "hf-gpt-neox";
  const auto family = std::ranges::find(kDecoders, type, &Decoder::type);
  if (family == kDecoders.end()) {
    const bool known = std::ranges::count(config_types(), type) > 0;
    return known ? fmt::format("hf-{}", type) : "";
  }
  if (type == "mixtral" || type == "phi3") return fmt::format("hf-{}", type);
  if (type.starts_with("deepseek")) return "hf-deepseek";
  return type.ends_with("_moe") ? "hf-qwen-moe" : "hf-llama";
}

Result<Model> model_from_config(const JsonPlace& config) {
  std::string type;
  HOLDFAST_TRY(HOLDFAST_TRY(config.at("model_type")).read(type));
  if (std::ranges::count(config_types(), type) == 0) {
    return unsupported(
        "{}.model_type: \"{}\"; expected one of {} (plan --module takes any model)",
        config.text(), type.substr(0, 40), fmt::join(config_types(), ", "));
  }
  const TableModel table = HOLDFAST_TRY(read_by_type(config, type));
  std::vector<NamedTensor> tensors =
      HOLDFAST_TRY(expand_table(table.rows, table.values).within(config.text()));
  return model_of_tensors(type, std::move(tensors), table.heads).within(config.text());
}

}  // namespace holdfast
