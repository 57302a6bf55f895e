"""A state dict in a single file, read by Holdfast, by torch and by safetensors."""

from collections import OrderedDict

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel
from training import Toy

import holdfast


def example():
    torch.manual_seed(0)
    model = nn.ModuleDict({"embed": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    model["head"].weight = model["embed"].weight
    return {"model": model.state_dict(), "half": torch.rand(3).bfloat16(), "step": 7,
            "more": [(1, None), {"x": 2.5}], "count": torch.tensor(3), "eight":
            torch.arange(4.0).to(torch.float8_e4m3fn), "turned": torch.rand(2, 3).T}


def check(loaded, wanted):
    assert loaded.keys() == wanted.keys()
    for key in ("step", "more"):
        assert loaded[key] == wanted[key]
    for key in ("half", "count", "turned"):
        assert loaded[key].dtype == wanted[key].dtype and torch.equal(loaded[key], wanted[key])
    assert torch.equal(loaded["eight"].view(torch.uint8), wanted["eight"].view(torch.uint8))
    for key, tensor in wanted["model"].items():
        assert torch.equal(loaded["model"][key], tensor)


@pytest.mark.parametrize("name", ["state.pt", "state.safetensors"])
def test_what_was_saved_is_loaded(tmp_path, name):
    holdfast.save(example(), tmp_path / name)
    loaded = holdfast.load(tmp_path / name)
    check(loaded, example())
    assert loaded["model"]["embed.weight"].data_ptr() == loaded["model"]["head.weight"].data_ptr()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_torch_reads_the_file_without_running_code(tmp_path):
    holdfast.save(example(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    check(loaded, example())
    assert type(loaded["model"]) in (dict, OrderedDict)


def test_a_flat_state_dict_is_a_plain_safetensors_file(tmp_path):
    state = nn.Linear(3, 2).state_dict()
    holdfast.save(state, tmp_path / "m.safetensors")
    loaded = load_file(tmp_path / "m.safetensors")
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[key], state[key]) for key in state)


def test_files_of_torch_and_safetensors_are_loaded(tmp_path):
    torch.save(example(), tmp_path / "torch.pt")
    check(holdfast.load(tmp_path / "torch.pt"), example())
    save_file({"w": torch.ones(2)}, tmp_path / "plain.safetensors")
    assert torch.equal(holdfast.load(tmp_path / "plain.safetensors")["w"], torch.ones(2))


def test_a_parameter_and_a_bare_tensor_and_bare_values_are_saved(tmp_path):
    holdfast.save(nn.Parameter(torch.ones(2)), tmp_path / "a.pt")
    assert torch.equal(holdfast.load(tmp_path / "a.pt"), torch.ones(2))
    holdfast.save({"epoch": 3, "name": ("x",)}, tmp_path / "b.pt")
    assert holdfast.load(tmp_path / "b.pt") == {"epoch": 3, "name": ("x",)}


def test_an_old_file_is_replaced_only_by_a_whole_one(tmp_path):
    holdfast.save({"a": torch.zeros(1)}, tmp_path / "x.pt")
    with pytest.raises(TypeError, match="b.0: a builtins.object"):
        holdfast.save({"b": [object()]}, tmp_path / "x.pt")
    assert list(holdfast.load(tmp_path / "x.pt")) == ["a"]
    holdfast.save({"b": torch.ones(1)}, tmp_path / "x.pt")
    assert list(holdfast.load(tmp_path / "x.pt")) == ["b"]


@pytest.mark.parametrize("with_ema", [False, True])
def test_the_run_of_a_checkpointer_is_a_flat_dict_of_all_its_tensors(tmp_path, with_ema):
    toy = Toy()
    ema = AveragedModel(toy.model) if with_ema else None
    with toy.checkpointer(tmp_path / "run", ema=ema) as checkpointer:
        toy.train(checkpointer, [0])
    wanted = {f"model.{name}": t for name, t in toy.model.state_dict().items()}
    for name, parameter in toy.model.named_parameters():
        for slot, value in toy.optimizer.state[parameter].items():
            wanted[f"optimizer.{name}.{slot}"] = value
    if ema is not None:
        wanted |= {f"ema.{name}": t for name, t in ema.state_dict().items()}
    holdfast.convert(tmp_path / "run", tmp_path / "run.safetensors")
    for path in (tmp_path / "run", tmp_path / "run.safetensors"):
        loaded = holdfast.load(path)
        assert loaded.keys() == wanted.keys()
        assert all(torch.equal(loaded[name], wanted[name]) for name in wanted)


def test_an_object_of_a_class_is_read_as_data_with_a_warning(tmp_path, caplog):
    layer = nn.Linear(1, 1)
    torch.save({"w": torch.ones(1), "model": layer}, tmp_path / "code.pt")
    loaded = holdfast.load(tmp_path / "code.pt")
    assert loaded["model"]["__class__"] == "torch.nn.modules.linear.Linear"
    assert torch.equal(loaded["model"]["_parameters"]["weight"], layer.weight)
    assert "model: torch.nn.modules.linear.Linear is read as plain data" in caplog.text


def test_a_name_that_tells_no_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match="does not tell the format"):
        holdfast.save({"w": torch.ones(1)}, tmp_path / "x.unknown")
