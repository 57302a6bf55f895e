"""Random generators that nobody gave are found, saved under their path, and restored."""

import functools
import gc
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from training import Toy

import holdfast
from holdfast.torch.values.found_generators import find_generators

script_rng = random.Random(8)


class Hostile:
    """Every access to it but the search's own ends the test."""

    def __init__(self, rng):
        object.__getattribute__(self, "__dict__")["rng"] = rng

    def __getattribute__(self, name):
        raise AssertionError(f"{name} was asked for")

    def __iter__(self):
        raise AssertionError("iterated")

    __len__ = __bool__ = __hash__ = __iter__
    __eq__ = __getattribute__
    __class__ = property(lambda self: pytest.fail("a property was called"))


class Hidden:
    """Its attributes cannot be read without its own code."""

    __dict__ = property(lambda self: pytest.fail("a property was called"))


class Sneaky(dict):
    def items(self):
        raise AssertionError("items() of a user's class was called")

    __iter__ = values = keys = items


class Slots:
    __slots__ = ("empty", "rng")

    def __init__(self, rng):
        self.rng = rng


class Numbers(Dataset):
    def __init__(self, rng=None, size=16):
        self.rng, self.size, self._fingerprint = rng, size, "the same for all of these"

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.tensor([float(index)])


def with_closure(rng):
    return lambda rows: rng.random() and torch.stack(rows)


def flip(rows):
    return rows if script_rng.random() < 0.5 else rows[::-1]


def named(owner, **options):
    return find_generators(owner, "x", **options)


@pytest.mark.parametrize("hold, path", [
    (Numbers, "x.rng"),
    (Slots, "x.rng"),
    (lambda rng: [0, {"a": (rng,)}], "x.1.a.0"),
    (lambda rng: Sneaky(a=rng), "x.a"),
    (with_closure, "x.rng"),
    (lambda rng: functools.partial(np.add, out=rng), "x.out"),
    (lambda rng: Slots(rng).__init__, "x.rng"),
    (lambda rng: rng.random, "x"),
    (lambda rng: Subset(ConcatDataset([Numbers(), Numbers(rng)]), [1]), "x.dataset.datasets.1.rng"),
    (lambda rng: type("Mine", (), {"rng": rng, "__module__": "mine"})(), "x.rng"),
], ids=["attribute", "slot", "containers", "dict of a user", "closure", "partial", "bound method",
        "method of the generator", "nested datasets", "class attribute"])
@pytest.mark.parametrize("make", [lambda: random.Random(1), lambda: np.random.default_rng(2)])
def test_a_generator_is_found_wherever_it_is_held(hold, path, make):
    rng = make()
    assert named(hold(rng)) == {path: rng}


def test_no_code_of_the_objects_runs():
    rng = random.Random(1)
    assert named([Hidden(), Hostile(rng), Slots(Hidden())]) == {"x.1.rng": rng}


def test_the_children_of_modules_have_the_names_that_users_write():
    model = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.Dropout()))
    model[1][0].generator = generator = torch.Generator()
    assert named(nn.DataParallel(model)) == {"x.1.0.generator": generator}


def test_a_global_that_a_function_names_is_found_under_the_name_of_its_module():
    assert named(flip) == {f"{__name__}.script_rng": script_rng}


def test_one_generator_has_one_path_and_those_of_the_process_have_none():
    rng = np.random.default_rng(1)
    assert list(named([rng, {"again": rng}, random._inst, torch.default_generator,
                       np.random.mtrand._rand, random.SystemRandom()])) == ["x.0"]
    assert named([rng], leave_out=[rng]) == {}


def test_the_search_ends_in_rings_and_in_large_holders():
    ring = [random.Random(1)]
    ring.append(ring)
    assert list(named(ring)) == ["x.0"]
    many = Numbers(random.Random(1))
    many.items = [[index] for index in range(100_000)]
    assert list(named(many)) == ["x.rng"]


def loader_of(dataset, **options):
    return DataLoader(dataset, batch_size=4, **options)


def trained(run, dataset, steps, toy=None, workers=0, **options):
    """Trains, and returns the Checkpointer, which is closed."""
    toy = toy or Toy(size=1)
    data = loader_of(dataset, num_workers=workers)
    with toy.checkpointer(run, data=data, **options) as ck:
        step = ck.resume()
        for _ in data:
            if step == steps:
                break
            toy.step()
            ck.step(step)
            step += 1
    return ck


class Drawing(Numbers):
    def __getitem__(self, index):
        return torch.tensor([self.rng.random()])


def test_what_was_given_is_not_saved_twice(tmp_path):
    rng = np.random.default_rng(1)
    ck = trained(tmp_path / "run", Drawing(rng), 2, objects={"rng": rng})
    assert ck._state.found == {} and set(ck._state.generators) == {"rng"}


def test_a_checkpoint_without_them_is_resumed_and_the_report_names_them(tmp_path):
    trained(tmp_path / "run", Numbers(), 2)
    with pytest.warns(RuntimeWarning, match="data.dataset.rng"):
        ck = trained(tmp_path / "run", Drawing(np.random.default_rng(1)), 3)
    assert ck.report.inexact == ["generator data.dataset.rng: not in the checkpoint"]


@pytest.mark.parametrize("other, said", [
    (lambda: None, "generator data.dataset.rng: not in this process"),
    (lambda: random.Random(1), "generator data.dataset.rng: not restored: "),
    (lambda: np.random.Generator(np.random.Philox(1)), "generator data.dataset.rng: not restored: ")])
def test_a_generator_that_has_become_another_is_told_and_not_refused(tmp_path, other, said):
    trained(tmp_path / "run", Drawing(np.random.default_rng(1)), 2)
    with pytest.warns(RuntimeWarning, match="data.dataset.rng"):
        ck = trained(tmp_path / "run", Numbers(other()), 3)
    assert len(ck.report.inexact) == 1 and ck.report.inexact[0].startswith(said)


def test_a_generator_in_the_place_of_another_is_the_one_that_is_saved(tmp_path):
    dataset, toy = Drawing(np.random.default_rng(1)), Toy(size=1)
    dataset.large = [[index] for index in range(200)]  # more than is searched at each save
    data = loader_of(dataset)
    with toy.checkpointer(tmp_path / "run", data=data) as ck:
        for step, _ in enumerate(data):
            dataset.rng = np.random.default_rng(step)
            toy.step()
            ck.step(step)
        assert ck._state.found == {"data.dataset.rng": dataset.rng}
    fresh = Drawing(np.random.default_rng(1))
    trained(tmp_path / "run", fresh, 9)
    assert fresh.rng.bit_generator.state == dataset.rng.bit_generator.state


class Late(Numbers):
    """Makes its generator in the worker, at the first sample."""

    def __getitem__(self, index):
        if self.rng is None:
            self.rng = np.random.default_rng(torch.initial_seed())
        return torch.tensor([self.rng.random()])


@pytest.mark.parametrize("dataset, unsaved", [
    (Drawing(np.random.default_rng(1)), ["data.dataset.rng"]),
    (Late(), ["data.dataset.rng"]),
    (Numbers(np.random.default_rng(1)), []),
], ids=["drawn from", "made in the worker", "never drawn from"])
def test_generators_that_workers_draw_from_are_warned_of_once(tmp_path, caplog, dataset, unsaved):
    ck = trained(tmp_path / "run", dataset, 3, workers=1)
    assert list(ck._state.unsaved) == unsaved
    said = [one.message for one in caplog.records if "workers draw" in one.message]
    assert len(said) == len(unsaved)
    assert not any(name in ck._state.found for name in unsaved)
    del ck
    gc.collect()
    ck = trained(tmp_path / "run", dataset, 4, workers=1)
    assert [one.partition(":")[0] for one in ck.report.inexact] == [
        f"generator {name}" for name in unsaved]


class Careful:
    """A loader with a state of its own, which draws the order of an epoch again when it resumes."""

    def __init__(self):
        self.rng, self.at = np.random.default_rng(1), 0
        self.start = self.rng.bit_generator.state

    def state_dict(self):
        return {"start": self.start, "at": self.at}

    def load_state_dict(self, state):
        self.rng.bit_generator.state, self.at = state["start"], state["at"]

    def __iter__(self):
        self.start = self.rng.bit_generator.state
        order = self.rng.permutation(8)
        while self.at < 8:
            self.at += 1
            yield float(order[self.at - 1])


def test_a_loader_that_saves_its_own_generator_is_left_alone(tmp_path):
    toy, seen = Toy(size=1), []
    for _ in range(2):
        data = Careful()
        with toy.checkpointer(tmp_path / "run", data=data, objects={}) as ck:
            start = ck.resume()
            for step, value in enumerate(data, start):
                seen.append(value)
                toy.step()
                ck.step(step)
                if step == 2:
                    break
    assert seen == [float(one) for one in np.random.default_rng(1).permutation(8)]


class Env:
    """Draws from a generator of its own, and nobody gives it to the Checkpointer."""

    def __init__(self, rng):
        self.rng = rng

    def draw(self):
        return float(self.rng.random())


class Replay(Env):
    """Is given, and its own state leaves its generator out."""

    def state_dict(self):
        return {"rows": [1, 2]}

    def load_state_dict(self, state):
        """Has nothing to restore."""


class Whole(Replay):
    """Saves its generator itself, as it was before its last draw."""

    def __init__(self, rng):
        super().__init__(rng)
        self.state = rng.bit_generator.state

    def state_dict(self):
        return {"rng": self.state}

    def load_state_dict(self, state):
        self.rng.bit_generator.state = state["rng"]
        self.draw()

    def draw(self):
        self.state = self.rng.bit_generator.state
        return super().draw()


class Loop:
    """A class around the loop, which is another function when it resumes than when it saves."""

    def __init__(self, run, make, is_given):
        self.drawer, self.toy = make(np.random.default_rng(3)), Toy(size=1)
        given = {"objects": {"drawer": self.drawer}} if is_given else {}
        self.ck = self.toy.checkpointer(run, **given)
        self.start = self.ck.resume()

    def train(self, stop):
        seen = []
        with self.ck:
            for step in range(self.start, stop):
                seen.append(self.drawer.draw())
                self.toy.step()
                self.ck.step(step)
        return seen


def train_in_function(run, make, is_given, stop):
    drawer, toy, seen = make(np.random.default_rng(3)), Toy(size=1), []
    given = {"objects": {"drawer": drawer}} if is_given else {}
    with toy.checkpointer(run, **given) as ck:
        for step in range(ck.resume(), stop):
            seen.append(drawer.draw())
            toy.step()
            ck.step(step)
    return seen, ck


def train_in_class(run, make, is_given, stop):
    loop = Loop(run, make, is_given)
    return loop.train(stop), loop.ck


@pytest.mark.parametrize("train", [train_in_function, train_in_class])
@pytest.mark.parametrize(("make", "is_given"), [(Env, False), (Replay, True), (Whole, True)])
def test_what_the_program_draws_from_goes_on(tmp_path, train, make, is_given):
    seen = [one for stop in (2, 4) for one in train(tmp_path / "run", make, is_given, stop)[0]]
    assert seen == list(np.random.default_rng(3).random(4))
    _, ck = train(tmp_path / "run", make, is_given, 4)
    assert ck.report.inexact == [] and len(ck._state.found) == (make is not Whole)
