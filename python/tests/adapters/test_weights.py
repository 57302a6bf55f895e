"""Weights go out to from_pretrained() and PEFT without a missing or unexpected key, and in again."""

import json

import peft
import planned_models
import pytest
import torch
import transformers
from ranks import run_ranks
from safetensors.torch import load_file
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import holdfast

transformers.utils.logging.disable_progress_bar()
WRITING = holdfast.Writing(space_reserve=0)

CONFIGS = {
    "gpt2": transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2),
    "llama": transformers.LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=32,
                                      num_hidden_layers=2, num_attention_heads=2,
                                      num_key_value_heads=1, max_position_embeddings=32),
    "tied llama": transformers.LlamaConfig(vocab_size=50, hidden_size=16, intermediate_size=32,
                                           num_hidden_layers=1, num_attention_heads=2,
                                           tie_word_embeddings=True),
}


def build(name, seed=0):
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(CONFIGS[name])


def save(run, model, **more):
    with holdfast.Checkpointer(run, model=model, every="never", writing=WRITING, **more) as ck:
        ck.save(0)


def loaded_from(folder, kind=transformers.AutoModelForCausalLM, **options):
    model, info = kind.from_pretrained(folder, output_loading_info=True, **options)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    assert not info["mismatched_keys"], info
    return model


def assert_same(found, expected):
    found, expected = found.state_dict(), expected.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("compiled", [False, True])
def test_from_pretrained_takes_an_exported_folder(tmp_path, name, compiled):
    model = build(name)
    save(tmp_path / "run", torch.compile(model, backend="eager") if compiled else model)
    CONFIGS[name].save_pretrained(tmp_path)
    holdfast.export(tmp_path / "run", tmp_path / "hf", config=tmp_path / "config.json")
    assert_same(loaded_from(tmp_path / "hf"), model)
    model.save_pretrained(tmp_path / "theirs")
    theirs = load_file(tmp_path / "theirs" / "model.safetensors")
    ours = load_file(tmp_path / "hf" / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_shards_and_dtype(tmp_path):
    model = build("gpt2")
    save(tmp_path / "run", model)
    (tmp_path / "from").mkdir()
    CONFIGS["gpt2"].save_pretrained(tmp_path / "from")
    (tmp_path / "from" / "tokenizer.json").write_text("{}")
    holdfast.export(tmp_path / "run", f"{tmp_path}/hf/", config=tmp_path / "from",
                    dtype=torch.bfloat16, shard_size="10KB")
    names = {path.name for path in (tmp_path / "hf").iterdir()}
    assert {"config.json", "tokenizer.json", "model.safetensors.index.json"} < names
    assert sum(name.endswith(".safetensors") for name in names) > 1
    assert_same(loaded_from(tmp_path / "hf", dtype="auto"), model.bfloat16())


def test_other_architectures(tmp_path):
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 32, "vocab_size": 40}
    for kind, config in [(transformers.BertForMaskedLM, transformers.BertConfig(**small)),
                         (transformers.T5ForConditionalGeneration, transformers.T5Config(
                             d_model=16, d_ff=32, d_kv=8, num_layers=1, num_heads=2,
                             vocab_size=40))]:
        model, folder = kind(config), tmp_path / kind.__name__
        folder.mkdir()
        save(folder / "run", model)
        config.save_pretrained(folder)
        holdfast.export(folder / "run", folder / "hf", config=folder)
        assert_same(loaded_from(folder / "hf", kind), model)


@pytest.mark.parametrize("row", range(len(planned_models.CONFIGS)),
                         ids=[f"{row[0]}-{i}" for i, row in enumerate(planned_models.CONFIGS)])
def test_every_family_is_exported_as_save_pretrained_writes_it(tmp_path, row):
    class_name, model_type, sizes = planned_models.CONFIGS[row]
    kind = getattr(transformers, class_name)
    config = transformers.AutoConfig.for_model(model_type, **sizes)
    torch.manual_seed(row)
    model = kind(config)
    with torch.no_grad():  # some are zeros, or equal to others
        for tensor in model.state_dict().values():
            tensor.copy_(torch.randn_like(tensor))
    save(tmp_path / "run", model)
    config.save_pretrained(tmp_path)
    holdfast.export(tmp_path / "run", tmp_path / "hf", config=tmp_path)
    assert_same(loaded_from(tmp_path / "hf", kind), model)
    model.save_pretrained(tmp_path / "theirs")
    theirs = load_file(tmp_path / "theirs" / "model.safetensors")
    ours = load_file(tmp_path / "hf" / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def of_ranks(rank, world, folder, kind):
    model = build("gpt2")
    wrapped = DistributedDataParallel(model) if kind == "ddp" else fully_shard(model)
    save(folder / "run", wrapped)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_models_of_several_ranks(tmp_path, kind):
    run_ranks(2, of_ranks, tmp_path, kind)
    CONFIGS["gpt2"].save_pretrained(tmp_path)
    holdfast.export(tmp_path / "run", tmp_path / "hf", config=tmp_path)
    assert_same(loaded_from(tmp_path / "hf"), build("gpt2"))


def test_a_folder_of_hugging_face_is_loaded_into_a_model(tmp_path):
    model = build("gpt2", 3)
    model.save_pretrained(tmp_path / "theirs")
    fresh = build("gpt2", 4)
    assert holdfast.load_into(fresh, tmp_path / "theirs") == ([], [])
    assert_same(fresh, model)
    sharded = build("llama", 5)
    sharded.save_pretrained(tmp_path / "shards", max_shard_size="10KB")
    fresh = build("llama", 6)
    with holdfast.Checkpointer(tmp_path / "run", model=fresh, every="never",
                               writing=WRITING) as ck:
        assert ck.resume(initial=tmp_path / "shards") == 0
    assert_same(fresh, sharded)


ADAPTERS = {
    "lora": peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"]),
    "dora": peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], use_dora=True),
    "biases": peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], bias="all"),
    "own biases": peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"],
                                  bias="lora_only"),
    "embedding": peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["wte", "c_proj"]),
    "whole modules": peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"],
                                     modules_to_save=["ln_f"]),
}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_an_adapter_is_exported_as_peft_saves_it(tmp_path, kind):
    model = peft.get_peft_model(build("gpt2"), ADAPTERS[kind])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))
    save(tmp_path / "run", model)
    model.save_pretrained(tmp_path / "theirs")
    holdfast.export(tmp_path / "run", tmp_path / "ours", format="peft",
                    config=tmp_path / "theirs" / "adapter_config.json")
    theirs = load_file(tmp_path / "theirs" / "adapter_model.safetensors")
    ours = load_file(tmp_path / "ours" / "adapter_model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    again = peft.PeftModel.from_pretrained(build("gpt2"), tmp_path / "ours")
    ids = torch.arange(12)[None]
    assert torch.equal(again.eval()(ids).logits, model.eval()(ids).logits)


def two_adapters(active="second"):
    model = peft.get_peft_model(build("gpt2"), ADAPTERS["lora"])
    model.add_adapter("second", ADAPTERS["lora"])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter))
    if isinstance(active, str):
        model.set_adapter(active)
    else:
        model.base_model.set_adapter(active)
    return model


def exported(tmp_path, model, **options):
    save(tmp_path / "run", model)
    ADAPTERS["lora"].save_pretrained(tmp_path)
    holdfast.export(tmp_path / "run", tmp_path / "ours", format="peft", config=tmp_path, **options)
    return load_file(tmp_path / "ours" / "adapter_model.safetensors")


@pytest.mark.parametrize("active, wanted", [("second", ""), ("default", ""), ("second", "default")])
def test_of_two_adapters_the_active_one_or_the_named_one_is_exported(tmp_path, active, wanted):
    model = two_adapters(active)
    ours = exported(tmp_path, model, adapter=wanted)
    model.save_pretrained(tmp_path / "theirs", selected_adapters=[wanted or active])
    folder = tmp_path / "theirs"
    path = folder / (wanted or active) if (wanted or active) != "default" else folder
    theirs = load_file(path / "adapter_model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def test_several_adapters_of_which_none_alone_is_active_are_refused_by_name(tmp_path):
    with pytest.raises(ValueError, match="several adapters: default, second; expected --adapter"):
        exported(tmp_path, two_adapters(["default", "second"]))
    with pytest.raises(holdfast.NotFoundError, match="expected one of: default, second"):
        holdfast.export(tmp_path / "run", tmp_path / "ours", format="peft", config=tmp_path,
                        adapter="third")


def test_a_peft_checkpoint_without_its_base(tmp_path):
    def frozen(name, tensor):
        return not tensor.requires_grad

    model = peft.get_peft_model(build("gpt2"), ADAPTERS["lora"])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer, every="never",
                               writing=WRITING, exclude=frozen) as ck:
        model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
        optimizer.step()
        ck.save(0)
    names = [name for name in holdfast.open(tmp_path / "run") if name.startswith("model.")]
    assert names and all("lora_" in name for name in names)
    again = peft.get_peft_model(build("gpt2"), ADAPTERS["lora"])
    optimizer = torch.optim.AdamW([p for p in again.parameters() if p.requires_grad], lr=0.1)
    with holdfast.Checkpointer(tmp_path / "run", model=again, optimizer=optimizer, every="never",
                               writing=WRITING, exclude=frozen) as ck:
        assert ck.resume() == 1
    assert_same(again, model)
    ADAPTERS["lora"].save_pretrained(tmp_path)
    holdfast.export(tmp_path / "run", tmp_path / "adapter", format="peft", config=tmp_path)
    assert json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["r"] == 2
    loaded = peft.PeftModel.from_pretrained(build("gpt2"), tmp_path / "adapter")
    ids = torch.arange(8)[None]
    assert torch.equal(loaded.eval()(ids).logits, model.eval()(ids).logits)
