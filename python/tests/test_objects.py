"""Objects, which are what a checkpoint holds besides tensors, come back as they were."""

import math
import struct

import numpy as np
import pytest
import torch

import holdfast


def save(path, objects, **more):
    with holdfast.Saver(path, writing=holdfast.Writing(space_reserve=0)) as saver:
        saver.save(1, {}, objects, **more).durable()


OBJECTS = [
    None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**63, -(2**200), 0.1, -0.0, math.inf, 5e-324,
    "", "text \u00e9 \U0001f600 \0", b"", b"\x00\xff", [], (), {}, [1, [2, (3,)]], (1, 2.0, "3"),
    {"a": 1, 2: "b", (1, "x"): None, None: 0, True: b"", 2.5: []}, {"$tuple": [1]},
]


@pytest.mark.parametrize("value", OBJECTS, ids=repr)
def test_objects_come_back_as_they_were(tmp_path, value):
    save(tmp_path, value, rank_objects=[value])
    restored = holdfast.restore(tmp_path, {})
    assert repr(restored.objects) == repr(value)  # repr() tells 1, True and 1.0 apart
    assert restored.objects == value
    assert repr(restored.rank_objects) == repr([value])
    assert holdfast.open(tmp_path).objects == value


@pytest.mark.parametrize("pattern", ["7ff8000000000001", "fff8000000000000", "7ff800000000beef"])
def test_a_nan_keeps_its_bits(tmp_path, pattern):
    save(tmp_path, struct.unpack(">d", bytes.fromhex(pattern))[0])
    assert struct.pack(">d", holdfast.restore(tmp_path, {}).objects).hex() == pattern


def test_names_of_tensors_come_back(tmp_path):
    save(tmp_path, [holdfast.TensorName("w")])
    assert holdfast.restore(tmp_path, {}).objects == [holdfast.TensorName("w")]


def test_order_of_dicts_is_kept(tmp_path):
    save(tmp_path, {"z": 1, "a": 2, "m": 3})
    assert list(holdfast.restore(tmp_path, {}).objects) == ["z", "a", "m"]


class Text(str):
    pass


def cycle():
    loop = {}
    loop["self"] = loop
    return loop


def deep(levels):
    value = 0
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(("value", "message"), [
    ({"a": [1, {2: {3}}]}, r"objects\['a'\]\[1\]\[2\]: a builtins.set"),
    ([object()], r"objects\[0\]: a builtins.object"),
    ({"lr": np.float64(1)}, r"objects\['lr'\]: a numpy.float64"),
    ({"w": torch.zeros(2)}, r"objects\['w'\]: a torch.Tensor"),
    (Text("x"), "objects: a .*Text"),
    (bytearray(b""), "objects: a builtins.bytearray"),
    ("\ud800", "objects: text that is not UTF-8"),
    ({"\ud800": 1}, "text that is not UTF-8"),
    ({frozenset(): 1}, "a builtins.frozenset"),
    (cycle(), "more than 100 deep"),
    (deep(101), "more than 100 deep"),
    (10**5000, "more digits"),
], ids=lambda value: "")
def test_other_objects_are_refused_by_their_place(tmp_path, value, message):
    with holdfast.Saver(tmp_path, writing=holdfast.Writing(space_reserve=0)) as saver:
        with pytest.raises(ValueError, match=message):
            saver.save(1, {}, value)


def test_a_hundred_levels_come_back(tmp_path):
    save(tmp_path, deep(100))
    assert holdfast.restore(tmp_path, {}).objects == deep(100)
