"""Files and folders of torch that hold more than plain tensors, or are of older versions."""

import json
import logging
import shutil
from pathlib import Path

from command import output_of
import pytest
import torch

import holdfast

FIXTURES = Path(__file__).parents[2] / "tests" / "fixtures"
LEGACY = {"_use_new_zipfile_serialization": False}


def same_bits(seen, want):
    """Whether a numpy array has the bits of a tensor."""
    return seen.tobytes() == want.resolve_conj().resolve_neg().contiguous().numpy().tobytes()


class Picture(torch.Tensor):
    pass


class Node:
    """An object that contains itself."""

    def __init__(self):
        self.weight = torch.arange(3.0)
        self.me = self


# Tensors that are more than a view of their bytes.

COMPLEX = torch.tensor([1 + 2j, -3.5 + 0j, 0 - 1j])
VIEWS = {
    "expanded": torch.arange(3.0)[:, None].expand(3, 4),
    "scalar": torch.tensor(7, dtype=torch.int16).expand(2, 5),
    "windows": torch.arange(8.0).unfold(0, 3, 1),
    "conjugated": COMPLEX.conj(),
    "turned": COMPLEX.reshape(3, 1).mH,
    "negated": COMPLEX.clone().conj().imag,
}


@pytest.mark.parametrize("how", [{}, LEGACY, {"pickle_protocol": 5}])
def test_views_that_repeat_or_change_elements_are_read_as_torch_uses_them(tmp_path, how):
    path = tmp_path / "a.pt"
    torch.save(VIEWS, path, **how)
    contents = holdfast.open(path)
    assert contents.left_out == []
    for name, want in torch.load(path, weights_only=False).items():
        assert tuple(contents[name].shape) == tuple(want.shape)
        assert same_bits(contents.read(name), want), name
    assert contents.read("expanded", holdfast.Box([(1, 3), (2, 4)])).tolist() == [[1, 1], [2, 2]]
    output_of("convert", path, tmp_path / "a.safetensors")
    assert "6 of 6 tensors are equal" in output_of("diff", path, tmp_path / "a.safetensors")


def test_a_damaged_storage_of_an_expanded_view_is_seen(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"w": torch.full((1, 9), 0.125).expand(7, 9)}, path)
    data = bytearray(path.read_bytes())
    data[data.index(torch.full((9,), 0.125).numpy().tobytes()) + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(holdfast.CorruptError):
        holdfast.open(path).read("w")


def test_a_view_that_expands_beyond_all_measure_is_left_out(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"huge": torch.ones(1).expand(1 << 40), "w": torch.ones(2)}, path)
    contents = holdfast.open(path)
    assert list(contents) == ["w"]
    assert contents.left_out[0].startswith("huge: is expanded to 4398046511104 bytes")


@pytest.mark.parametrize("how", [{}, LEGACY, {"pickle_protocol": 5}])
def test_tensors_of_several_parts_are_read_part_by_part(tmp_path, how):
    dense = torch.tensor([[0.0, 2, 0], [3, 0, 4]])
    state = {"coo": dense.to_sparse(), "csr": dense.to_sparse_csr(), "raw": bytearray(b"\xffab"),
             "buffer": torch.nn.Buffer(torch.arange(2.0)),
             "picture": torch.arange(4).as_subclass(Picture),
             "quantized": torch.quantize_per_tensor(dense, 0.5, 3, torch.qint8)}
    parameter = torch.nn.Parameter(torch.arange(5.0))
    parameter.tag = "mine"
    state["parameter"] = parameter
    path = tmp_path / "a.pt"
    torch.save(state, path, **how)
    contents = holdfast.open(path)
    assert contents.left_out == []
    assert contents.objects["raw"] == b"\xffab"
    coo, csr = state["coo"].coalesce(), state["csr"]
    for name, want in {
        "coo.indices": coo.indices(), "coo.values": coo.values(),
        "csr.compressed_indices": csr.crow_indices(), "csr.plain_indices": csr.col_indices(),
        "csr.values": csr.values(), "buffer": state["buffer"], "picture": torch.arange(4),
        "quantized.int_repr": state["quantized"].int_repr(), "parameter": parameter.detach(),
    }.items():
        assert same_bits(contents.read(name), want), name
    assert contents.objects["coo"]["size"] == (2, 3)
    simplified = dict(line.split(": ", 1) for line in contents.simplified)
    assert simplified["coo"] == "torch.sparse_coo"
    assert simplified["picture"].endswith(".Picture")
    assert "buffer" not in simplified


# One odd object.


@pytest.mark.parametrize("how", [{}, LEGACY])
def test_one_odd_object_is_left_out_by_name_and_the_rest_is_read(tmp_path, caplog, how):
    path = tmp_path / "a.pt"
    torch.save({"model": {"w": torch.arange(4.0), "empty": torch.empty(3, device="meta")},
                "node": Node(), "list": [1, torch.empty(2, device="meta"), 3],
                "by_set": {frozenset([1]): 2}, "lr": 0.5}, path, **how)
    contents = holdfast.open(path)
    assert set(contents) == {"model.w", "node.weight"}
    assert contents.read("model.w").tolist() == [0, 1, 2, 3]
    assert contents.objects["lr"] == 0.5 and contents.objects["list"] == [1, None, 3]
    names = [line.partition(": ")[0] for line in contents.left_out]
    assert names == ["model.empty", "node.me", "list.1", "by_set"]
    with pytest.raises(NotImplementedError, match=r"model\.empty: is a tensor of the device meta"):
        contents.read("model.empty")
    with pytest.raises(KeyError):
        contents.read("model.other")
    with caplog.at_level(logging.WARNING, "holdfast"):
        assert "empty" not in holdfast.load(path)["model"]
    assert "node.me: contains itself; it is left out" in caplog.text
    assert "left out: list.1: is a tensor of the device meta" in output_of("show", path)
    assert "node.me: contains itself" in json.loads(output_of("show", path, "--json"))["left_out"]
    output_of("verify", path)
    done = output_of("convert", path, tmp_path / "a.safetensors")
    assert "left out: model.empty: is a tensor" in done
    assert "not compared: model.empty: is a tensor" in output_of("diff", path, path, code=1)


def test_a_whole_module_of_the_old_format_gives_its_tensors(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    torch.save(model, tmp_path / "a.pt", **LEGACY)
    contents = holdfast.open(tmp_path / "a.pt")
    seen = sorted(contents.read(name).tobytes() for name in contents)
    assert seen == sorted(value.numpy().tobytes() for value in model.state_dict().values())


# The format before torch 1.6.


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_file_of_the_old_format_is_read_patched_and_converted(tmp_path, protocol):
    path = tmp_path / "old.pt"
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "half":
             torch.arange(5, dtype=torch.bfloat16), "none": torch.empty(0)}
    torch.save(state, path, pickle_protocol=protocol, **LEGACY)
    loaded = holdfast.load(path)
    assert torch.equal(loaded["half"], state["half"])
    assert all(torch.equal(loaded["model"][k], v) for k, v in state["model"].items())
    assert loaded["optimizer"]["state"][0]["step"] == 1
    assert "contents not checked" in output_of("verify", path)
    output_of("convert", path, tmp_path / "new.pt")
    assert "tensors are equal, and so are the objects" in output_of("diff", path, tmp_path / "new.pt")
    output_of("inject", path, tmp_path / "hurt.pt", "--seed", "1", "--checksums", "consistent")
    assert "1 differs" in output_of("diff", path, tmp_path / "hurt.pt", code=1)
    torch.load(tmp_path / "hurt.pt", weights_only=False)


def test_no_cut_and_no_flipped_byte_of_the_old_format_is_worse_than_an_error(tmp_path):
    path = tmp_path / "old.pt"
    torch.save({"w": torch.arange(6.0), "n": [1, {"a": None}]}, path, **LEGACY)
    good = path.read_bytes()
    for at in range(len(good)):
        for bad in good[:at], good[:at] + bytes([good[at] ^ 4]) + good[at + 1:]:
            path.write_bytes(bad)
            try:
                contents = holdfast.open(path)
                for name in contents:
                    contents.read(name)
            except (holdfast.CorruptError, NotImplementedError):
                pass


# Folders.


@pytest.fixture
def shards(tmp_path):
    """A folder as save_pretrained(safe_serialization=False) writes it."""
    folder = tmp_path / "model"
    folder.mkdir()
    tied = torch.arange(6.0).reshape(2, 3)
    parts = [{"embed.weight": tied, "head.weight": tied}, {"mask": torch.ones(1).expand(4)}]
    index = {"metadata": {"total_size": 28}, "weight_map": {}}
    for number, part in enumerate(parts, 1):
        file = f"pytorch_model-{number:05}-of-00002.bin"
        torch.save(part, folder / file)
        index["weight_map"].update(dict.fromkeys(part, file))
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    torch.save({"lr": 1}, folder / "training_args.bin")
    return folder


def test_a_folder_of_bin_files_is_read_verified_converted_and_patched(shards, tmp_path):
    for path in shards, shards / "pytorch_model.bin.index.json":
        contents = holdfast.open(path)
        assert set(contents) == {"embed.weight", "head.weight", "mask"}
        assert contents.read("head.weight").tolist() == [[0, 1, 2], [3, 4, 5]]
        assert contents.read("mask").tolist() == [1, 1, 1, 1]
    loaded = holdfast.load(shards)
    assert loaded["embed.weight"] is loaded["head.weight"]
    output_of("verify", shards)
    output_of("convert", shards, tmp_path / "a.safetensors")
    output_of("diff", shards, tmp_path / "a.safetensors")
    output_of("inject", shards, "--in-place", "--seed", "3", "--checksums",
        "consistent", "--tensors", "embed.weight")
    output_of("verify", shards)
    output_of("diff", shards, tmp_path / "a.safetensors", code=1)


def test_a_folder_of_bin_files_that_contradicts_its_index_is_damaged(shards):
    first = shards / "pytorch_model-00001-of-00002.bin"
    whole = first.read_bytes()
    torch.save({"embed.weight": torch.ones(1)}, first)
    assert 'has no tensor "head.weight"' in output_of("show", shards, code=3)
    torch.save({"embed.weight": torch.ones(1), "mask": torch.ones(1)}, first)
    assert 'has the tensor "mask", which the index does not map' in output_of("show", shards, code=3)
    first.write_bytes(whole[:-9])
    assert "DAMAGED" in output_of("verify", shards, code=3)
    first.unlink()
    assert "is missing, but the index names it" in output_of("verify", shards, code=3)


def test_a_folder_of_one_bin_file_needs_no_index(tmp_path):
    torch.save({"w": torch.arange(3)}, tmp_path / "pytorch_model.bin")
    torch.save({"lr": 1}, tmp_path / "training_args.bin")
    assert holdfast.open(tmp_path).read("w").tolist() == [0, 1, 2]


def test_a_saved_model_is_read_verified_and_patched(tmp_path):
    folder = tmp_path / "saved"
    (folder / "variables").mkdir(parents=True)
    (folder / "assets").mkdir()
    (folder / "saved_model.pb").write_bytes(b"\x08\x01")
    for file in (FIXTURES / "tensorflow").glob("two_shards.*"):
        shutil.copy(file, folder / "variables" / file.name.replace("two_shards", "variables"))
    prefix = FIXTURES / "tensorflow" / "two_shards"
    assert "TensorFlow checkpoint" in output_of("show", folder)
    output_of("verify", folder)
    output_of("diff", folder, prefix)
    output_of("inject", folder, "--in-place", "--seed", "1", "--checksums", "consistent")
    output_of("verify", folder)
    output_of("diff", folder, prefix, code=1)
