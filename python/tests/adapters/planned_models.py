"""The configurations whose tensors `holdfast plan` is checked against, and how to make the table.

    python python/tests/adapters/planned_models.py > tests/fixtures/models/transformers.json

writes the tensors that the classes of transformers have, found on the meta device, and those that
save_pretrained() writes, if they are others. C++ tests read this file, and test_planned_models.py
checks that it is what the installed version says.
"""

import json
import re
import tempfile

import torch
import transformers
from safetensors import safe_open

transformers.utils.logging.disable_progress_bar()

# Every size is another one, so that no two can be confused.
SMALL = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
         "num_attention_heads": 8, "vocab_size": 300, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2}
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 24}
LATENT = SMALL | {"num_hidden_layers": 3, "num_key_value_heads": 8, "kv_lora_rank": 20,
                  "qk_nope_head_dim": 16, "qk_rope_head_dim": 6, "v_head_dim": 12,
                  "moe_intermediate_size": 48, "n_routed_experts": 4, "n_shared_experts": 3,
                  "first_k_dense_replace": 1, "num_experts_per_tok": 2, "n_group": 2,
                  "topk_group": 1}
QWEN_EXPERTS = GROUPED | {"num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2,
                          "moe_intermediate_size": 48, "decoder_sparse_step": 2,
                          "mlp_only_layers": [3]}
OPT = {key: SMALL[key] for key in SMALL if key != "intermediate_size"} | {
    "ffn_dim": 160, "max_position_embeddings": 128}

GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 128, "vocab_size": 300,
        "bos_token_id": 1, "eos_token_id": 2}

CONFIGS = [
    ("GPT2LMHeadModel", "gpt2", GPT2),
    ("GPT2LMHeadModel", "gpt2", GPT2 | {"n_inner": 160, "tie_word_embeddings": False}),
    ("GPT2Model", "gpt2", GPT2),
    ("LlamaForCausalLM", "llama", GROUPED),
    ("LlamaForCausalLM", "llama", SMALL | {"num_key_value_heads": 8, "attention_bias": True,
                                           "mlp_bias": True, "tie_word_embeddings": True}),
    ("MixtralForCausalLM", "mixtral", SMALL | {"num_key_value_heads": 2, "num_local_experts": 4}),
    ("MistralForCausalLM", "mistral", GROUPED),
    ("MistralForCausalLM", "mistral", SMALL | {"num_key_value_heads": 4,
                                               "tie_word_embeddings": True}),
    ("Qwen2ForCausalLM", "qwen2", SMALL | {"num_key_value_heads": 2}),
    ("Qwen2ForCausalLM", "qwen2", SMALL | {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    ("Qwen2MoeForCausalLM", "qwen2_moe",
     QWEN_EXPERTS | {"shared_expert_intermediate_size": 40}),
    ("Qwen3ForCausalLM", "qwen3", GROUPED),
    ("Qwen3ForCausalLM", "qwen3", GROUPED | {"attention_bias": True}),
    ("Qwen3MoeForCausalLM", "qwen3_moe", QWEN_EXPERTS),
    ("Phi3ForCausalLM", "phi3", SMALL | {"num_key_value_heads": 2}),
    ("Phi3ForCausalLM", "phi3", SMALL),
    ("GemmaForCausalLM", "gemma", GROUPED),
    ("GemmaForCausalLM", "gemma", GROUPED | {"attention_bias": True}),
    ("Gemma2ForCausalLM", "gemma2", GROUPED),
    ("Gemma3ForCausalLM", "gemma3_text", GROUPED),
    ("DeepseekV2ForCausalLM", "deepseek_v2", LATENT | {"q_lora_rank": None}),
    ("DeepseekV2ForCausalLM", "deepseek_v2", LATENT | {"q_lora_rank": 40, "mlp_bias": True}),
    ("DeepseekV3ForCausalLM", "deepseek_v3", LATENT | {"q_lora_rank": 40}),
    ("DeepseekV3ForCausalLM", "deepseek_v3",
     LATENT | {"q_lora_rank": 40, "attention_bias": True}),
    ("GPTNeoXForCausalLM", "gpt_neox", SMALL),
    ("GPTNeoXForCausalLM", "gpt_neox", SMALL | {"attention_bias": False,
                                                "tie_word_embeddings": True}),
    ("OPTForCausalLM", "opt", OPT),
    ("OPTForCausalLM", "opt", OPT | {"word_embed_proj_dim": 32, "do_layer_norm_before": False,
                                     "enable_bias": False, "tie_word_embeddings": False}),
    ("BertForMaskedLM", "bert", SMALL),
    ("BertForPreTraining", "bert", SMALL),
    ("BertForSequenceClassification", "bert", SMALL | {"num_labels": 5}),
    ("BertModel", "bert", SMALL | {"type_vocab_size": 3}),
    ("ViTForImageClassification", "vit",
     SMALL | {"image_size": 32, "patch_size": 8, "num_labels": 10}),
    ("ViTModel", "vit", SMALL | {"image_size": 32, "patch_size": 8, "num_channels": 1,
                                 "qkv_bias": False}),
]


def model_of(class_name, model_type, sizes):
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    with torch.device("meta"):
        return getattr(transformers, class_name)(config)


def tensors_of(model):
    """Shapes by name, as the model's state_dict has them, and other names of the same tensors."""
    first, shapes, ties = {}, {}, {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) in first:
            ties[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
            shapes[name] = list(tensor.shape)
    return shapes, ties


def cuts_of(model, names):
    """Whether transformers' own plan for tensor parallelism cuts the outputs or the inputs.

    The words of an embedding count as outputs: they are the first dimension, too.
    """
    cuts = {}
    for name in names:
        for pattern, way in (model.tp_plan or {}).items():
            expression = re.escape(pattern).replace(r"\*", r"\d+") + r"(\.weight|\.bias)?"
            if re.fullmatch(expression, name):
                cuts[name] = ("outputs" if "colwise" in way or "embedding" in way else
                              "inputs" if "rowwise" in way else "none")
    return cuts


def saved_by(class_name, model_type, sizes):
    """Shapes by name in the files of save_pretrained()."""
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    with tempfile.TemporaryDirectory() as folder:
        getattr(transformers, class_name)(config).save_pretrained(folder)
        with safe_open(f"{folder}/model.safetensors", "pt") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}


def table():
    for class_name, model_type, sizes in CONFIGS:
        model = model_of(class_name, model_type, sizes)
        shapes, ties = tensors_of(model)
        config = {"model_type": model_type, "architectures": [class_name]} | sizes
        if "num_labels" in config:  # as save_pretrained writes it
            count = config.pop("num_labels")
            config["id2label"] = {str(i): f"LABEL_{i}" for i in range(count)}
        row = {"config": config, "tensors": shapes, "ties": ties, "cuts": cuts_of(model, shapes)}
        saved = saved_by(class_name, model_type, sizes)
        yield row if saved == shapes else row | {"saved": saved}


if __name__ == "__main__":
    rows = ",\n".join(json.dumps(row) for row in table())
    print(f'{{"transformers": "{transformers.__version__}", "models": [\n{rows}\n]}}')
