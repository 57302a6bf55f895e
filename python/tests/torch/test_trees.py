"""State dicts become plain trees and back:
same types, same bits, and errors that name the value."""

import struct
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import TensorName
from holdfast.torch.values.dtypes import bytes_of
from holdfast.torch.values.trees import TYPE, pack, tensor_names_in, unpack


def through_a_checkpoint(folder, value, **how):
    """Saves the value to a checkpoint on disk. Returns what is restored."""
    packed = pack(value, "thing", **how)
    with holdfast.Saver(folder, writing=holdfast.Writing(space_reserve=0)) as saver:
        saver.save(1, packed.tensors or {"none": torch.zeros(1)}, {"tree": packed.tree})
    into = {name: torch.empty_like(tensor) for name, tensor in packed.tensors.items()}
    restored = holdfast.restore(folder, into)
    return unpack(restored.objects["tree"], into)


def same(a, b):
    """True if two trees are equal in all types and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        alike = (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad)
        return alike and bytes_of(a) == bytes_of(b)
    if isinstance(a, (np.ndarray, np.generic)):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, dict):
        return getattr(a, "default_factory", 0) == getattr(b, "default_factory", 0) and \
            same(list(a.items()), list(b.items()))
    if isinstance(a, deque):
        return a.maxlen == b.maxlen and same(list(a), list(b))
    if isinstance(a, (list, tuple)) and not isinstance(a, torch.Size):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


EVERYTHING = {
    "plain": [None, True, 1, -(2**200), 2**40_000, 1.5, -0.0, float("inf"), "é", "\udc80", b"\0"],
    "keys": {1: "a", 2.5: "b", None: "c", b"x": "d", ("t", 1): "e", "1": "f"},
    "looks like ours": {TYPE: "list", "items": []},
    "tuple": (1, (2, [3]), ()),
    "ordered": OrderedDict(b=1, a=OrderedDict()),
    "default": defaultdict(list, {"a": [1]}),
    "no default": defaultdict(None, {"a": 1}),
    "counter": Counter("abca"),
    "deque": deque([1, [2]], maxlen=4),
    "sets": [{3, 1, 2}, frozenset(["x"]), set()],
    "others": [bytearray(b"ab"), 1 + 2j, range(1, 9, 3), slice(1, None, 2), torch.Size([2, 3]),
               torch.bfloat16, torch.device("cpu")],
    "tensors": [torch.tensor(3), torch.rand(2, 3).bfloat16(), torch.zeros(0, 2),
                torch.tensor([True, False]), torch.nn.Parameter(torch.rand(3))],
    "numpy": [np.float32(0.1), np.int64(-7), np.bool_(True), np.str_("text"),
              np.datetime64("2020-01-02"), np.arange(6).reshape(2, 3),
              np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(["a", "bc"]),
              np.zeros(2, dtype=[("a", "<i4"), ("b", ">f8")]), np.zeros((0, 3), np.uint8),
              np.arange(2000).astype(">i8"), np.dtype("f4")],
    "empty numpy": [np.str_(""), np.bytes_(b"")],
    "nan": struct.unpack("d", b"\x01\0\0\0\0\0\xf8\x7f")[0],
}


@pytest.mark.parametrize("inline", [0, 1 << 20])
def test_everything_comes_back_with_its_type_and_bits(tmp_path, inline):
    back = through_a_checkpoint(tmp_path / "run", EVERYTHING, inline=inline)
    for key, value in EVERYTHING.items():
        assert same(back[key], value), key
    assert back["numpy"][6].flags.f_contiguous and back["numpy"][5].flags.writeable


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple)
    | st.dictionaries(st.text() | st.integers() | st.tuples(st.integers(), st.text()), inner)
    | st.lists(inner).map(deque) | st.dictionaries(st.text(), inner).map(OrderedDict),
    max_leaves=12)


@settings(max_examples=60, deadline=None)
@given(trees)
def test_any_tree_comes_back(value):
    assert same(unpack(pack(value, "x").tree, {}), value)


def test_tensors_are_named_by_their_path_and_not_copied():
    weight = torch.rand(3)
    shadow = {"fc.weight": weight, "again": weight.detach()}
    packed = pack({"shadow": shadow, 7: [weight.clone()]}, "ema")
    assert list(packed.tensors) == ["ema.shadow.fc.weight", "ema.7.0"]
    assert packed.tensors["ema.shadow.fc.weight"] is weight
    assert packed.tree["shadow"]["again"] == TensorName("ema.shadow.fc.weight")
    assert tensor_names_in(packed.tree) == list(packed.tensors)
    back = unpack(packed.tree, packed.tensors)
    assert back["shadow"]["again"] is back["shadow"]["fc.weight"]


def test_paths_that_read_the_same_have_different_names():
    packed = pack({"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}, "x")
    assert list(packed.tensors) == ["x.a.b", "x.a.b~2"]
    assert unpack(packed.tree, packed.tensors)["a"]["b"] == 1


@pytest.mark.parametrize(("value", "message"), [
    (object(), "x.a.0.b: a builtins.object"),
    (lambda: 0, "x.a.0.b: a builtins.function"),
    (np.array([object()]), "x.a.0.b: a numpy.ndarray"),
    (defaultdict(lambda: 0), "x.a.0.b: a defaultdict of"),
    (torch.eye(2).to_sparse(), "x.a.0.b: has the layout torch.sparse_coo"),
    (torch.zeros(1, device="meta"), "x.a.0.b: on the meta device"),
])
def test_what_cannot_be_stored_is_refused_by_its_path(value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        pack({"a": [{"b": value}]}, "x")


def test_a_tree_inside_itself_and_a_very_deep_one_are_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(ValueError, match="x.k.0: it contains itself"):
        pack({"k": loop}, "x")
    deep = []
    for _ in range(60):
        deep = [deep]
    with pytest.raises(ValueError, match="deep"):
        pack(deep, "x")


def test_a_tree_of_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match='kind "nonsense"'):
        unpack({TYPE: "nonsense"}, {})
    with pytest.raises(ValueError, match='kind "deque"'):
        unpack({TYPE: "deque", "items": 3}, {})
    with pytest.raises(ValueError, match="bytes with 1; expected as many"):
        unpack({TYPE: "tensor", "dtype": "int8", "shape": [1 << 50], "data": b"1"}, {})
    with pytest.raises(ValueError, match='"x": not in the file'):
        unpack([TensorName("x")], {})
    with pytest.raises(ValueError, match="holds Python objects"):
        unpack({TYPE: "numpy", "dtype": "|O", "shape": [1], "order": "C", "data": b"8 bytes_"},
               {})


def test_schedulers_and_scalers_survive():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    kinds = [
        lambda: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=10),
        lambda: torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 3]),
        lambda: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
        lambda: torch.optim.lr_scheduler.SequentialLR(optimizer, [
            torch.optim.lr_scheduler.LinearLR(optimizer),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)], [4]),
        lambda: torch.amp.GradScaler("cpu", init_scale=8.0),
    ]
    for make in kinds:
        state = make().state_dict()
        packed = pack(state, "s")
        assert same(unpack(packed.tree, packed.tensors), state)
