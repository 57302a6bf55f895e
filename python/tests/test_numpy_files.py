"""NumPy's files, as NumPy itself reads and writes them."""

import re
import zipfile

import numpy as np
import pytest

import holdfast

DTYPES = "bool u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8 c8 c16".split()


def arrays():
    random = np.random.default_rng(1)
    made = {}
    for dtype in DTYPES:
        for order in "<>":
            kind = np.dtype(dtype).newbyteorder(order)
            raw = random.integers(0, 2 if dtype == "bool" else 256, 24 * kind.itemsize, np.uint8)
            made[f"{order}{dtype}"] = raw.view(kind).reshape(2, 3, 4)
    made["fortran"] = np.asfortranarray(made["<f4"])
    made["transposed"] = made[">f8"].T
    made["scalar"] = np.float32(2.5)
    made["empty"] = np.zeros((0, 3), np.int16)
    made["W"], made["w"] = np.ones(2), np.zeros(3)
    return made


def bits(array):
    array = np.asarray(array)
    little = array.astype(array.dtype.newbyteorder("<"), order="C")
    return little.shape, little.tobytes()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_saves_is_read(tmp_path, save):
    save(tmp_path / "a.npz", **arrays())
    opened = holdfast.open(tmp_path / "a.npz")
    assert sorted(opened.keys()) == sorted(arrays())
    for name, array in arrays().items():
        assert bits(opened.read(name)) == bits(array), name


def test_npy_is_one_tensor(tmp_path):
    np.save(tmp_path / "a.npy", arrays()[">c16"])
    assert bits(holdfast.open(tmp_path / "a.npy").read("tensor")) == bits(arrays()[">c16"])
    holdfast.convert(tmp_path / "a.npy", tmp_path / "b.safetensors")
    holdfast.convert(tmp_path / "b.safetensors", tmp_path / "c.npy")
    assert bits(np.load(tmp_path / "c.npy", allow_pickle=False)) == bits(arrays()[">c16"])
    np.savez(tmp_path / "two.npz", v=np.ones(2), w=np.ones(3))
    with pytest.raises(NotImplementedError, match="there are 2 tensors; expected one, or a .npz"):
        holdfast.convert(tmp_path / "two.npz", tmp_path / "two.npy")


def test_what_is_written_numpy_reads(tmp_path):
    np.savez(tmp_path / "a.npz", **arrays())
    for target in ("b.safetensors", "c.pt", "d.npz"):
        holdfast.convert(tmp_path / "a.npz", tmp_path / target)
        holdfast.convert(tmp_path / target, tmp_path / f"{target}.npz")
        with np.load(tmp_path / f"{target}.npz", allow_pickle=False) as read:
            for name, array in arrays().items():
                assert bits(read[name]) == bits(array), name
        assert zipfile.ZipFile(tmp_path / f"{target}.npz").testzip() is None


LEFT_OUT = {
    "dates": "has the NumPy dtype <M8[D]",
    "many": "9 dimensions",
    "objects": "is an array of Python objects",
    "records": "is an array of records with fields",
    "texts": "has the NumPy dtype <U5",
}


@pytest.fixture(params=[np.savez, np.savez_compressed])
def odd(request, tmp_path):
    """One array of numbers, and one of each kind that is left out."""
    request.param(tmp_path / "odd.npz", w=np.arange(200.0), texts=np.array(["some", "texts"]),
                  objects=np.array([{"a": 1}], dtype=object), many=np.ones((1,) * 9),
                  records=np.zeros(3, [("x", "f4"), ("y", "i8")]),
                  dates=np.array(["2026-01-01"], "M8[D]"))
    return tmp_path / "odd.npz"


def test_arrays_without_numbers_are_left_out_by_name_and_the_rest_is_read(odd):
    opened = holdfast.open(odd)
    assert list(opened.keys()) == ["w"] and opened.read("w").tolist() == list(range(200))
    assert sorted(line.partition(":")[0] for line in opened.left_out) == sorted(LEFT_OUT)
    for name, why in LEFT_OUT.items():
        with pytest.raises(NotImplementedError, match=re.escape(why)):
            opened.read(name)


def test_a_file_that_is_one_array_of_objects_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{}], dtype=object))
    with pytest.raises(NotImplementedError, match="is an array of Python objects"):
        holdfast.open(tmp_path / "a.npy")


def test_a_message_may_quote_bytes_that_are_no_utf8(tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, w=np.ones(3))
    path.write_bytes(path.read_bytes().replace(b"'descr': '<f8'", b"'descr': '<\xff8'"))
    opened = holdfast.open(path)
    assert r"<\xff8" in opened.left_out[0]
    with pytest.raises(NotImplementedError, match=r"<\\xff8"):
        opened.read("w")
    np.save(tmp_path / "a.npy", np.ones(3))
    damaged = (tmp_path / "a.npy").read_bytes().replace(b"'descr': '<f8'", b"'descr': '<\xff8'")
    (tmp_path / "a.npy").write_bytes(damaged)
    with pytest.raises(NotImplementedError, match=r"<\\xff8"):  # of the native library
        holdfast.open(tmp_path / "a.npy")


def test_an_archive_without_arrays_is_loaded_by_numpy(tmp_path):
    with zipfile.ZipFile(tmp_path / "none.npz", "w"):
        pass
    holdfast.convert(tmp_path / "none.npz", tmp_path / "again.npz")
    assert list(np.load(tmp_path / "again.npz")) == []
    assert not holdfast.load(tmp_path / "again.npz")
