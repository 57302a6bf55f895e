"""Folders of torch.distributed.checkpoint: read, written, verified and converted as files."""

import datetime
import pickle

from command import output_of
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks import run_ranks
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import holdfast

DTYPES = [torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16,
          torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
          torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
          torch.float8_e8m0fnu, torch.complex64, torch.complex128]

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def bits(tensor):
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bits(a) == bits(b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def zeroed(value):
    """The same state dict with other values."""
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {key: zeroed(inner) for key, inner in value.items()}
    return [zeroed(inner) for inner in value] if isinstance(value, list) else None


def random_tensor(dtype, *shape):
    size = int(np.prod(shape)) * torch.empty(0, dtype=dtype).element_size()
    most = 2 if dtype == torch.bool else 256
    return torch.randint(most, (size,), dtype=torch.uint8).view(dtype).reshape(shape)


def state_of_all_kinds():
    torch.manual_seed(1)
    tensors = {str(dtype): random_tensor(dtype, 3, 2) for dtype in DTYPES}
    return {"model": {**tensors, "scalar": torch.tensor(2.5), "empty": torch.empty(0, 4),
                      "transposed": torch.rand(3, 5).t(),
                      "image": torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)},
            "list": [torch.rand(2), {"lr": 0.1, "betas": (0.9, 0.99)}], "epoch": 3, "big": 1 << 80,
            "name": "été", "flag": True, "bytes": b"\0\xff", "deep": {"a": {"b": [1, 2, 3]}}}


def test_all_kinds_of_values_go_both_ways(tmp_path):
    state = state_of_all_kinds()
    dcp.save(state, checkpoint_id=tmp_path / "theirs", no_dist=True)
    output_of("verify", tmp_path / "theirs")
    opened = holdfast.open(tmp_path / "theirs")
    assert opened["model.transposed"].shape == [5, 3] and opened.objects["epoch"] == 3
    output_of("convert", tmp_path / "theirs", tmp_path / "x.pt")
    assert same(torch.load(tmp_path / "x.pt"), state)

    output_of("convert", tmp_path / "x.pt", tmp_path / "ours", "--format", "dcp")
    assert "are equal, and so are the objects" in output_of("diff", tmp_path / "theirs", tmp_path / "ours")
    loaded = zeroed(state)
    dcp.load(loaded, checkpoint_id=tmp_path / "ours", no_dist=True)
    assert same(loaded, state)
    dcp_to_torch_save(tmp_path / "ours", tmp_path / "back.pt")
    assert same(torch.load(tmp_path / "back.pt"), state)


@pytest.mark.parametrize("through", ["x.safetensors", "x.npz", "x.pt"])
def test_other_formats_keep_all_that_a_folder_has(tmp_path, through):
    dcp.save(state_of_all_kinds(), checkpoint_id=tmp_path / "a", no_dist=True)
    output_of("convert", tmp_path / "a", tmp_path / through)
    output_of("convert", tmp_path / through, tmp_path / "b", "--format", "dcp")
    assert "are equal, and so are the objects" in output_of("diff", tmp_path / "a", tmp_path / "b")


def test_keys_that_are_not_texts_are_texts_for_torch_and_come_back(tmp_path):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    tied = torch.rand(4)
    state = {"optim": optimizer.state_dict(), "a": tied, "b": tied, "pair": (torch.ones(2), 1)}
    torch.save(state, tmp_path / "x.pt")
    output_of("convert", tmp_path / "x.pt", tmp_path / "folder", "--format", "dcp")
    output_of("convert", tmp_path / "folder", tmp_path / "y.pt")
    back = torch.load(tmp_path / "y.pt")
    assert same(back, state) and back["a"].data_ptr() == back["b"].data_ptr()
    loaded = {"optim": zeroed(state["optim"]), "a": torch.zeros(4), "b": torch.zeros(4)}
    dcp.load(loaded, checkpoint_id=tmp_path / "folder", no_dist=True)
    assert same(loaded["optim"]["state"], state["optim"]["state"])
    assert same(loaded["b"], tied) and same(loaded["a"], tied)
    dcp_to_torch_save(tmp_path / "folder", tmp_path / "z.pt")
    assert torch.load(tmp_path / "z.pt")["pair"][1] == 1


def test_the_metadata_that_we_write_is_that_of_torch(tmp_path):
    state = {"model": {"w": torch.rand(3, 2)}, "epoch": 3}
    dcp.save(state, checkpoint_id=tmp_path / "theirs", no_dist=True)
    output_of("convert", tmp_path / "theirs", tmp_path / "ours", "--format", "dcp")
    theirs, ours = (pickle.loads((tmp_path / name / ".metadata").read_bytes())
                    for name in ("theirs", "ours"))
    assert ours.state_dict_metadata == theirs.state_dict_metadata
    assert ours.planner_data == theirs.planner_data and ours.version == theirs.version
    assert ours.storage_data.keys() == theirs.storage_data.keys()


def test_damage_is_named_by_file_bytes_and_tensor(tmp_path):
    dcp.save({"a": torch.zeros(50), "b": torch.ones(50)}, checkpoint_id=tmp_path / "f", no_dist=True)
    file = tmp_path / "f" / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    at = data.index(np.ones(50, np.float32).tobytes())
    data[at + 9] ^= 1
    file.write_bytes(data)
    report = output_of("verify", tmp_path / "f", code=3)
    assert f"__0_0.distcp, bytes {at} to {at + 200}, in b: entry archive/data/0 has crc" in report
    with pytest.raises(holdfast.CorruptError, match=r"entry archive/data/0 has crc"):
        holdfast.open(tmp_path / "f").read("b")


def test_odd_items_are_left_out_by_name_and_the_rest_is_read(tmp_path):
    conjugated = torch.rand(2, dtype=torch.complex64).conj()
    state = {"w": torch.rand(3, 2), "wide": torch.rand(1, 4).expand(5, 4), "negative": conjugated.imag,
             "conjugated": conjugated, "epoch": 3, "when": datetime.date(2026, 1, 1)}
    dcp.save(state, checkpoint_id=tmp_path / "f", no_dist=True)
    line = "conjugated: has an expanded or conjugated tensor; expected a clone"
    opened = holdfast.open(tmp_path / "f")
    assert opened.left_out == [line] and opened.objects["epoch"] == 3
    assert list(opened.keys()) == ["w", "wide", "negative"]
    output_of("verify", tmp_path / "f")
    assert f"left out: {line}" in output_of("convert", tmp_path / "f", tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", weights_only=False)
    assert all(torch.equal(loaded[name], state[name]) for name in opened.keys())
    with pytest.raises(NotImplementedError, match=line):
        opened.read("conjugated")


# Several ranks


def trained(world, seed):
    """A model of FSDP2 after a step, with a layer whose rows are fewer than the ranks."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 1).bfloat16())
    if world > 1:
        mesh = init_device_mesh("cpu", (world,))
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 + seed)
    for parameter in model.parameters():
        parameter.grad = parameter.detach() * 0.5
    optimizer.step()
    return model, optimizer


def full(state):
    if isinstance(state, dict):
        return {key: full(value) for key, value in state.items()}
    return state.full_tensor().clone() if hasattr(state, "full_tensor") else state


def state_of(model, optimizer, epoch):
    tensors, slots = get_state_dict(model, optimizer)
    return {"model": tensors, "optim": slots, "epoch": epoch}


def save_rank(rank, world, folder):
    state = state_of(*trained(world, 0), 4)
    dcp.save(state, checkpoint_id=folder)
    return full(state)


def load_rank(rank, world, folder):
    model, optimizer = trained(world, 1)
    state = state_of(model, optimizer, 0)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"],
                   optim_state_dict=state["optim"])
    return full(state_of(model, optimizer, state["epoch"]))


@pytest.mark.parametrize(("world", "other"), [(2, 3), (3, 2)])
def test_fsdp_on_several_ranks_is_read_and_what_we_write_is_loaded(tmp_path, world, other):
    saved = run_ranks(world, save_rank, str(tmp_path / "theirs"))[0]
    output_of("verify", tmp_path / "theirs")
    output_of("convert", tmp_path / "theirs", tmp_path / "x.pt")
    assert same(torch.load(tmp_path / "x.pt"), saved)
    output_of("convert", tmp_path / "x.pt", tmp_path / "ours", "--format", "dcp")
    for loaded in run_ranks(other, load_rank, str(tmp_path / "ours")):
        assert same(loaded, saved)
