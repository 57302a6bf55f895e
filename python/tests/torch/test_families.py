"""What one verb knows of a family of models, all verbs know: plan, layout_of, reshard and export.

The names and shapes are those of transformers' classes and of the files of save_pretrained()
(adapters/planned_models.py). C++ tests compare the cuts, tensor by tensor.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import holdfast

FIXTURES = Path(__file__).resolve().parents[3] / "tests" / "fixtures" / "models"
MODELS = json.loads((FIXTURES / "transformers.json").read_text())["models"]


FAMILIES = {model["config"]["model_type"]: model for model in MODELS}  # the last of each
FAMILIES["phi3 grouped"] = next(model for model in MODELS if model["config"].get("num_key_value_heads")
                                == 2 and model["config"]["model_type"] == "phi3")


@pytest.fixture(params=FAMILIES)
def family(request, tmp_path):
    model = FAMILIES[request.param]
    (tmp_path / "config.json").write_text(json.dumps(model["config"]))
    return model


def write(path, shapes):
    torch.manual_seed(0)
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    save_file(tensors, path)
    return tensors


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def layout_of(model):
    """What holdfast.layout_of() says of the module."""
    config = model["config"]
    heads = config.get("num_attention_heads") or config["n_head"]
    keys = heads if "kv_lora_rank" in config else config.get("num_key_value_heads", heads)
    tensors = []
    for name, shape in model["tensors"].items():
        tensor = {"name": name, "dtype": "F32", "shape": shape, "role": "parameter",
                  "ties": [alias for alias, of in model["ties"].items() if of == name]}
        if name.endswith("e_score_correction_bias"):
            tensor["role"] = "buffer"
        if config["model_type"] == "gpt2" and "h." in name and len(shape) == 2:
            tensor["transposed"] = True
        tensors.append(tensor)
    return {"holdfast": "model", "version": 1, "name": "module", "heads": heads, "kv_heads": keys,
            "tensors": tensors}


def test_a_configuration_and_a_module_are_planned_alike(family, tmp_path):
    for source, target in [("tp=1", "tp=2"), ("tp=2,dp=2,zero=1", "tp=4,pp=2,qkv=blocked")]:
        figures = [json.loads(holdfast.plan(source, target, model=model).json)["figures"]
                   for model in (tmp_path / "config.json", layout_of(family))]
        for each in figures:  # it depends on the order of the tensors, too
            del each["extra_memory_by_tensor"]
        assert figures[0] == figures[1]


@pytest.mark.parametrize("names", ["tensors", "saved"])
def test_a_checkpoint_that_is_cut_and_merged_is_equal_bit_for_bit(family, tmp_path, names):
    if names not in family:
        pytest.skip("save_pretrained() writes the names of the module")
    tensors = write(tmp_path / "model.safetensors", family[names])
    report = holdfast.reshard(tmp_path / "model.safetensors", tmp_path / "cut", to="tp=2")
    assert report["rules"].startswith("hf-")
    holdfast.reshard(tmp_path / "cut", tmp_path / "whole", to="whole", format="safetensors")
    (file,) = (tmp_path / "whole").glob("*.safetensors")
    assert_same(load_file(file), tensors)


def test_an_export_has_the_names_of_save_pretrained(family, tmp_path):
    shapes = family.get("saved", family["tensors"])
    tensors = write(tmp_path / "model.safetensors", family["tensors"])
    holdfast.export(tmp_path / "model.safetensors", tmp_path / "hf", config=tmp_path / "config.json")
    exported = load_file(tmp_path / "hf" / "model.safetensors")
    assert {name: list(tensor.shape) for name, tensor in exported.items()} == shapes
    values = [torch.cat([tensor.flatten() for tensor in state.values()]).sort().values
              for state in (tensors, exported)]
    assert torch.equal(*values)
    # What has these names already keeps them.
    holdfast.export(tmp_path / "hf", tmp_path / "again", config=tmp_path / "config.json")
    assert_same(load_file(tmp_path / "again" / "model.safetensors"), exported)
