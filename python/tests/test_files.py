"""Files of tensors are opened and converted from Python, and compared with the real libraries."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import holdfast


@pytest.fixture
def model(tmp_path):
    """A nested state dict with a tied weight, as torch writes it."""
    torch.manual_seed(1)
    tied = torch.rand(4, 3)
    state = {"model": {"in": tied, "out": tied, "scale": torch.rand(5).bfloat16()},
             "step": 7, "names": ["a", ("b", None)]}
    torch.save(state, tmp_path / "model.pt")
    return state, tmp_path / "model.pt"


def test_a_torch_file_shows_names_shapes_and_objects(model):
    state, path = model
    contents = holdfast.open(path)
    assert set(contents) == {"model.in", "model.out", "model.scale"}
    assert len(contents) == 3 and "model.in" in contents and "nothing" not in contents
    info = contents["model.scale"]
    assert (info.dtype, info.shape, info.nbytes) == (holdfast.Dtype.BF16, [5], 10)
    assert contents["model.out"].name == "model.in"
    assert contents.objects["step"] == 7
    assert contents.objects["names"] == ["a", ("b", None)]
    assert contents.objects["model"]["scale"] == holdfast.TensorName("model.scale")


def test_tensors_are_read_as_numpy(model):
    state, path = model
    contents = holdfast.open(path)
    assert np.array_equal(contents.read("model.in"), state["model"]["in"].numpy())
    scale = contents.read("model.scale")
    assert scale.dtype == np.uint16
    assert np.array_equal(scale, state["model"]["scale"].view(torch.uint16).numpy())


def test_a_box_is_read_alone(model):
    state, path = model
    part = holdfast.open(path).read("model.in", holdfast.Box([(1, 3), (0, 2)]))
    assert np.array_equal(part, state["model"]["in"][1:3, 0:2].numpy())
    with pytest.raises(ValueError):
        holdfast.open(path).read("model.in", holdfast.Box([(1, 9), (0, 2)]))


def test_an_unknown_name_is_a_key_error(model):
    with pytest.raises(KeyError):
        holdfast.open(model[1]).read("nothing")


def test_a_torch_file_becomes_safetensors_and_back(model, tmp_path):
    state, path = model
    holdfast.convert(path, tmp_path / "model.safetensors")
    loaded = load_file(tmp_path / "model.safetensors")
    assert torch.equal(loaded["model.scale"], state["model"]["scale"])
    holdfast.convert(tmp_path / "model.safetensors", tmp_path / "again.pt")
    again = torch.load(tmp_path / "again.pt", weights_only=True)
    assert torch.equal(again["model"]["in"], state["model"]["in"])
    assert again["step"] == 7 and again["names"] == state["names"]


def test_a_run_becomes_a_torch_file(tmp_path):
    tied = torch.rand(3, 2)
    tensors = {"a": tied, "b": tied, "h": torch.rand(3).half(), "n": torch.tensor(5)}
    with holdfast.Saver(tmp_path / "run", writing=holdfast.Writing(space_reserve=0)) as saver:
        saver.save(1, {"a": torch.zeros(1)})
        folder = saver.save(2, tensors).durable().folder
    holdfast.convert(tmp_path / "run", tmp_path / "of_run.pt")
    holdfast.convert(folder, tmp_path / "of_step.pt")
    holdfast.convert(f"{tmp_path / 'run'}@2", tmp_path / "of_number.pt")
    assert list(holdfast.open(f"{tmp_path / 'run'}@1")) == ["a"]
    for name in ("of_run.pt", "of_step.pt", "of_number.pt"):
        loaded = torch.load(tmp_path / name, weights_only=True)
        assert loaded.keys() == tensors.keys()
        assert all(torch.equal(loaded[key], tensors[key]) for key in tensors)
        assert loaded["a"].data_ptr() == loaded["b"].data_ptr()


def test_metadata_of_safetensors_is_shown(tmp_path):
    save_file({"w": torch.zeros(2)}, tmp_path / "x.safetensors", {"made": "here"})
    assert holdfast.open(tmp_path / "x.safetensors").metadata == {"made": "here"}


def test_nothing_is_overwritten(model, tmp_path):
    (tmp_path / "there.safetensors").write_bytes(b"mine")
    with pytest.raises(holdfast.ConflictError):
        holdfast.convert(model[1], tmp_path / "there.safetensors")
    assert (tmp_path / "there.safetensors").read_bytes() == b"mine"


def test_what_is_no_such_file_is_refused(tmp_path):
    with pytest.raises(holdfast.NotFoundError):
        holdfast.open(tmp_path / "missing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(NotImplementedError):
        holdfast.open(tmp_path / "text")
    with pytest.raises(NotImplementedError):
        holdfast.convert(tmp_path / "text", tmp_path / "x.npz")
    with pytest.raises(ValueError, match="x.unknown"):
        holdfast.convert(tmp_path / "text", tmp_path / "x.unknown")
