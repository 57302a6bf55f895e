"""HDF5 files of h5py, and what h5py finds in those that Holdfast wrote from them."""

import json
from pathlib import Path

from command import run
import h5py
import numpy as np
import pytest

import holdfast

ODD = Path(__file__).parents[2] / "tests" / "fixtures" / "hdf5" / "odd.h5"


def write_everything(path):
    colours = h5py.enum_dtype({"RED": 0, "GREEN": 1, "BLUE": 42}, basetype="i2")
    with h5py.File(path, "w") as file:
        file["group/weights"] = np.arange(6, dtype="f4").reshape(2, 3)
        file["tied"] = file["group/weights"]
        file["soft"] = h5py.SoftLink("/group/weights")
        file["soft group"] = h5py.SoftLink("group")
        file["dangling"] = h5py.SoftLink("/nowhere")
        file["colours"] = np.array([0, 42, 1], "i2").astype(colours)
        file.create_group("empty")
        file["text"] = "héllo"
        file["words"] = ["one", "", "three"]
        file["none"] = h5py.Empty("f4")
        file.attrs["config"] = json.dumps({"layers": ["x"] * 20000})
        file.attrs["names"] = np.array([b"one", b"two"])
        file["group"].attrs["weight_names"] = []
        file["group/weights"].attrs.update({"lr": 0.5, "steps": [1, 2, 3], "on": np.True_})


def test_links_attributes_and_enumerations_are_written_as_hdf5_has_them(tmp_path):
    write_everything(tmp_path / "a.h5")
    holdfast.convert(tmp_path / "a.h5", tmp_path / "b.h5")
    with h5py.File(tmp_path / "a.h5") as a, h5py.File(tmp_path / "b.h5") as b:
        assert sorted(b) == sorted(a)
        assert sorted(b.attrs) == sorted(a.attrs)
        assert b["tied"] == b["group/weights"] == b["soft"] == b["soft group/weights"]
        for name in ("soft", "soft group", "dangling"):
            assert b.get(name, getlink=True).path == a.get(name, getlink=True).path
        assert h5py.check_enum_dtype(b["colours"].dtype) == h5py.check_enum_dtype(
            a["colours"].dtype)  # fmt: skip
        assert b["colours"][()].tobytes() == a["colours"][()].tobytes()
        assert list(b["empty"]) == []
        assert b["text"].asstr()[()] == "héllo"
        assert list(b["words"].asstr()[()]) == ["one", "", "three"]
        assert b["none"].shape is None
        assert b.attrs["config"] == a.attrs["config"]
        assert list(b.attrs["names"]) == [b"one", b"two"]
        assert b["group"].attrs["weight_names"].shape == (0,)
        of = b["group/weights"].attrs
        assert of["lr"] == 0.5 and list(of["steps"]) == [1, 2, 3] and of["on"] == np.True_


ATTRIBUTES = {
    "int32": np.int32(3), "float32": np.float32(0.5), "bytes": np.arange(3, dtype="u1"),
    "fixed": np.bytes_("abc"), "fixed list": np.array([b"a", b"bcd"]), "text": "x",
    "none": h5py.Empty("i4"), "no texts": np.zeros(0, "S1"), "no rows": np.zeros((0, 3), "f4"),
    "complex": 1 + 2j, "flags": np.array([True, False]), "turned": np.array([1, 2], ">i2"),
    "named": np.array(1, h5py.enum_dtype({"A": 0, "B": 1}, "i1")),
}  # fmt: skip


def test_attributes_and_texts_keep_their_types(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["w"] = np.arange(3)
        for of in (file, file["w"], file.create_group("g")):
            of.attrs.update(ATTRIBUTES)
        file["fixed"] = np.array([b"ab", b"c"], "S4")
    holdfast.convert(tmp_path / "a.h5", tmp_path / "b.h5")
    with h5py.File(tmp_path / "a.h5") as a, h5py.File(tmp_path / "b.h5") as b:
        for name in ("/", "w", "g"):
            assert sorted(b[name].attrs) == sorted(ATTRIBUTES)
            for key in ATTRIBUTES:
                one, two = (file[name].attrs.get_id(key) for file in (a, b))
                assert two.get_type().equal(one.get_type()) and two.shape == one.shape, key
                np.testing.assert_equal(b[name].attrs[key], a[name].attrs[key])
        assert b["fixed"].dtype == a["fixed"].dtype and list(b["fixed"]) == list(a["fixed"])


def test_a_file_that_was_written_can_be_changed_by_h5py(tmp_path):
    write_everything(tmp_path / "a.h5")
    holdfast.convert(tmp_path / "a.h5", tmp_path / "b.h5")
    with h5py.File(tmp_path / "b.h5", "r+") as file:
        file.attrs["config"] = "other"
        del file["tied"], file["text"], file["dangling"]
        file["group/weights"].attrs["lr"] = 0.25
        file["group/more"] = np.ones(3)
        for i in range(40):
            file[f"group/new {i}"] = file["group/weights"]
    again = holdfast.open(tmp_path / "b.h5")
    assert again.objects["attributes"]["/"]["config"] == "other"
    name = again["group/weights"].name  # the first of its paths
    assert again.objects["attributes"][name]["lr"] == 0.25
    # Those in "group", in "soft group", and "soft".
    assert len(again[name].aliases) == 41 + 41 + 1 - 1
    assert again.read("group/new 7").tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("options", [
    {"chunks": (20, 30)}, {"chunks": (4, 7)}, {"chunks": (4, 7), "compression": "lzf"},
    {"chunks": (4, 7), "maxshape": (None, 30)}, {"chunks": (4, 7), "maxshape": (None, None)},
])  # fmt: skip
def test_chunks_of_the_newest_files_are_read_and_changed(tmp_path, options):
    values = np.random.default_rng(1).integers(0, 9, (20, 30))
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.create_dataset("w", data=values, **options)
        file.create_dataset("z", data=values, **({"compression": "gzip"} | options))
    opened = holdfast.open(tmp_path / "a.h5")
    assert opened.read("w").tobytes() == opened.read("z").tobytes() == values.tobytes()
    words = ["--in-place", "--seed", "1", "--flips", "40", "--checksums", "consistent"]
    done = run("inject", tmp_path / "a.h5", *words)
    assert done.returncode == 0, done.stderr
    changed = holdfast.open(tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        for name in ("w", "z"):
            assert file[name][()].tobytes() == changed.read(name).tobytes()
        assert (file["w"][()] != values).sum() + (file["z"][()] != values).sum() > 20


# What cannot be read.


def test_what_cannot_be_read_is_named_and_the_rest_is_used(tmp_path):
    opened = holdfast.open(ODD)
    assert opened.read("weights").tolist() == list(range(12))
    assert "scaled: has the filter 6 (scaleoffset)" in "\n".join(opened.left_out)
    assert "table" not in opened
    with pytest.raises(NotImplementedError, match="compound"):
        opened.read("table")
    holdfast.convert(ODD, tmp_path / "b.npz")
    assert sorted(n for n in np.load(tmp_path / "b.npz").files if "." not in n) == ["weights", "z"]


def test_each_command_names_what_is_left_out(tmp_path):
    line = "table: holds elements of a compound type"
    shown = run("show", ODD)
    assert shown.returncode == 0 and f"left out: {line}" in shown.stdout
    assert line in "\n".join(json.loads(run("show", ODD, "--json").stdout)["left_out"])
    converted = run("convert", ODD, tmp_path / "b.h5")
    assert converted.returncode == 0 and f"left out: {line}" in converted.stdout
    assert "left out: named type: a named datatype" in converted.stdout
    compared = run("diff", ODD, tmp_path / "b.h5")
    assert compared.returncode == 1 and "not compared: " in compared.stdout
