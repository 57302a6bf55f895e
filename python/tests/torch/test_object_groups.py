"""Lists, dicts, namedtuples and dataclasses in objects=, in state_dicts and in ck.values."""

import dataclasses
import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from training import Toy, clear

from holdfast.torch.values.trees import pack, unpack


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Tracker:
    best: float
    history: list
    rng: Any = None
    inner: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    value: Any


class Counter:
    def __init__(self):
        self.state = {}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def resumed(run, _then, _now, values=None):
    """Saves the one objects, resumes into the others, and returns the Checkpointer.

    Two lives share the variables of a test. Holdfast would find generators in those of the other life, but for the
    names with an underscore.
    """
    toy = Toy()
    with toy.checkpointer(run, objects=_then) as ck:
        ck.values.update(values or {})
        toy.train(ck, [0])
    with Toy().checkpointer(run, objects=_now) as ck:
        assert ck.resume() == 1
    return ck


def test_values_of_such_classes_come_back_as_what_they_were(tmp_path):
    values = {"p": Point(1, [Point(2, None)]), "t": [Tracker(0.5, [Frozen(3)])]}
    then, now = Counter(), Counter()
    then.state = dict(values, w=Point(torch.arange(3), Frozen(torch.ones(1))))
    ck = resumed(tmp_path / "run", {"mine": then}, {"mine": now}, values)
    assert ck.values == values and not ck.report.inexact
    assert type(ck.values["p"]) is Point and type(ck.values["t"][0].history[0]) is Frozen
    assert torch.equal(now.state["w"].x, torch.arange(3)) and now.state["w"].y.value == 1


def test_generators_in_a_state_dict_come_back_with_their_state(tmp_path):
    then, now = Counter(), Counter()
    then.state = {"rngs": [random.Random(1), np.random.default_rng(2), np.random.RandomState(3),
                           np.random.Generator(np.random.SFC64(4)), torch.Generator()]}
    resumed(tmp_path / "run", {"mine": then}, {"mine": now})
    python, numpy, legacy, small, own = now.state["rngs"]
    a, b, c, d, e = then.state["rngs"]
    assert (python.random(), numpy.random(), legacy.rand(), small.random()) == \
        (a.random(), b.random(), c.rand(), d.random())
    assert torch.equal(own.get_state(), e.get_state())


def generators(seed):
    return {"list": [random.Random(seed), np.random.default_rng(seed)],
            "dict": {"a": torch.Generator().manual_seed(seed), "b": [np.random.RandomState(seed)]}}


def draws(given):
    one, two = given["list"]
    return (one.random(), two.random(), torch.rand(1, generator=given["dict"]["a"]).item(),
            given["dict"]["b"][0].rand())


def test_lists_and_dicts_of_generators_go_on_where_they_were(tmp_path):
    _then, _now = generators(1), generators(2)
    draws(_then)
    ck = resumed(tmp_path / "run", _then, _now)
    assert draws(_now) == draws(_then) and not ck.report.inexact
    assert {"list.0", "list.1", "dict.a", "dict.b.0"} == set(ck._state.generators)


def test_a_dataclass_is_filled_in_place(tmp_path):
    _then = Tracker(0.5, [Point(1, 2)], random.Random(1), Tracker(1.5, [], inner=Counter()))
    _then.inner.inner.state = {"n": 3}
    _now = Tracker(0.0, [], random.Random(2), Tracker(0.0, [], inner=Counter()))
    inside, deep, _rng = _now.inner, _now.inner.inner, _now.rng
    ck = resumed(tmp_path / "run", {"tracker": _then}, {"tracker": _now})
    assert (_now.best, _now.history, _now.inner.best) == (0.5, [Point(1, 2)], 1.5)
    assert _now.inner is inside and inside.inner is deep and deep.state == {"n": 3}
    assert _now.rng is _rng and _rng.random() == _then.rng.random() and not ck.report.inexact


def test_a_namedtuple_of_objects_and_numbers_is_saved_and_a_changed_number_is_told(tmp_path):
    then, now = Point(Counter(), 3), Point(Counter(), 3)
    then.x.state = {"n": 1}
    ck = resumed(tmp_path / "a", {"pair": then}, {"pair": now})
    assert now.x.state == {"n": 1} and not ck.report.inexact
    ck = resumed(tmp_path / "b", {"pair": then}, {"pair": Point(Counter(), 4)})
    assert len(ck.report.inexact) == 1 and ck.report.inexact[0].startswith("pair.y: 3 was saved")


def test_a_class_that_is_gone_is_replaced_by_a_stand_in_with_its_fields(monkeypatch):
    packed = pack({"p": Point(1, 2), "f": Frozen(3)}, "x")
    monkeypatch.delitem(globals(), "Point")
    monkeypatch.setitem(globals(), "Frozen", Counter)
    told = []
    back = unpack(packed.tree, {}, stand_ins=told)
    assert (back["p"].x, tuple(back["p"]), back["f"].value) == (1, (1, 2), 3)
    assert told == [f"{__name__}.Point", f"{__name__}.Frozen"]


@pytest.mark.parametrize("module, name", [
    ("os", "terminal_size"), ("subprocess", "Popen"), ("antigravity", "x"), ("builtins", "dict")])
def test_a_file_cannot_have_any_class_made_or_imported(module, name):
    tree = {"holdfast:type": "dataclass", "module": module, "class": name, "items": [("a", 1)]}
    assert unpack(tree, {}).a == 1
    tree = {"holdfast:type": "namedtuple", "module": module, "class": name, "fields": ["a"],
            "items": [1]}
    assert type(unpack(tree, {})).__module__ != module
    with pytest.raises(ValueError):
        unpack({**tree, "fields": ["a(): pass"]}, {})


def test_rings_and_what_cannot_be_stored_are_refused_by_name(tmp_path):
    ring = Tracker(0, [])
    ring.inner = ring
    for bad in (ring, Tracker(object(), [])):
        with pytest.raises((TypeError, ValueError)) as error:
            Toy().checkpointer(tmp_path / "run", objects={"mine": bad})
        assert clear(error, "mine")
