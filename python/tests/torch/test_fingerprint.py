"""A loader's state is refused by a loader of another dataset, and accepted by one of the same."""

import random
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

import holdfast
from holdfast.data import loader, resumable
from holdfast.torch.data.fingerprint import fingerprint_of


class Holding(Dataset):
    """Holds whatever it is given, and reads nothing."""

    def __init__(self, samples=6, **attributes):
        self.samples = samples
        vars(self).update(attributes)

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        raise AssertionError("a sample was read")

    @property
    def hostile(self):
        raise AssertionError("a property was called")


class Slotted:
    __slots__ = ()

    def __len__(self):
        return 6


def paths(root, names="abcdef"):
    return [(f"{root}/{name}.png", number) for number, name in enumerate(names)]


X = torch.arange(24.0).view(6, 4)

DIFFERENT = {
    "a tensor": (lambda: TensorDataset(X), lambda: TensorDataset(X + 1)),
    "its dtype": (lambda: TensorDataset(X), lambda: TensorDataset(X.double())),
    "the second tensor": (lambda: TensorDataset(X, X), lambda: TensorDataset(X, X + 1)),
    "an array": (lambda: Holding(data=X.numpy()), lambda: Holding(data=X.numpy() + 1)),
    "a list of arrays": (lambda: Holding(data=[X.numpy()] * 6),
                         lambda: Holding(data=[X.numpy() + 1] * 6)),
    "paths": (lambda: Holding(samples_=paths("data")),
              lambda: Holding(samples_=paths("data", "abcdeg"))),
    "labels": (lambda: Holding(targets=[0, 1, 2, 0, 1, 2]),
               lambda: Holding(targets=[0, 1, 2, 0, 1, 1])),
    "a subset": (lambda: Subset(TensorDataset(X), [0, 1]), lambda: Subset(TensorDataset(X), [0, 2])),
    "inside a subset": (lambda: Subset(TensorDataset(X), [0, 1]),
                        lambda: Subset(TensorDataset(X + 1), [0, 1])),
    "joined": (lambda: ConcatDataset([TensorDataset(X), TensorDataset(X)]),
               lambda: ConcatDataset([TensorDataset(X), TensorDataset(X + 1)])),
    "the class": (lambda: Holding(), lambda: Slotted()),
    "a list": (lambda: list(range(6)), lambda: list(range(1, 7))),
    "a tensor itself": (lambda: X, lambda: X + 1),
    "Hugging Face's": (lambda: Holding(_fingerprint="one"), lambda: Holding(_fingerprint="two")),
}

ALIKE = {
    "moved": (lambda: Holding(samples_=paths("/data")), lambda: Holding(samples_=paths("/tmp/job 7"))),
    "paths of pathlib": (lambda: Holding(files=[Path(path) for path, _ in paths("a")]),
                         lambda: Holding(files=[Path(path) for path, _ in paths("b")])),
    "counters": (lambda: Holding(reads=0), lambda: Holding(reads=7)),
    "a cache": (lambda: Holding(cache=[None] * 6), lambda: Holding(cache=[X, None] * 3)),
    "a log": (lambda: Holding(seen=[]), lambda: Holding(seen=[3, 4])),
    "dicts": (lambda: Holding(cache={}), lambda: Holding(cache={1: X})),
}


@pytest.mark.parametrize("make", [
    lambda dataset: resumable(DataLoader(dataset, 2)),
    lambda dataset: loader(dataset, 2)], ids=["plain", "sequence"])
@pytest.mark.parametrize("what", DIFFERENT)
def test_another_dataset_of_the_same_length_is_refused(what, make):
    one, other = DIFFERENT[what]
    state = make(one()).state_dict()
    make(one()).load_state_dict(state)
    with pytest.raises(ValueError, match="not the one of the checkpoint .* expected the same"):
        make(other()).load_state_dict(state)
    state.pop("fingerprint")  # of an earlier version
    make(other()).load_state_dict(state)


@pytest.mark.parametrize("what", ALIKE)
def test_a_dataset_that_moves_or_remembers_is_the_same(what):
    one, other = ALIKE[what]
    assert fingerprint_of(one()) == fingerprint_of(other())


def test_a_dataset_that_changes_itself_stays_the_same_object():
    dataset = Holding(last=torch.zeros(3))
    before = fingerprint_of(dataset)
    dataset.last = torch.ones(3)
    assert fingerprint_of(dataset) == before


@pytest.mark.parametrize("make", [
    lambda dataset, **options: resumable(DataLoader(dataset, 2), **options),
    lambda dataset, **options: loader(dataset, 2, **options)], ids=["plain", "sequence"])
def test_a_fingerprint_may_be_given(make):
    state = make(TensorDataset(X), fingerprint="v1").state_dict()
    make(TensorDataset(X + 1), fingerprint="v1").load_state_dict(state)
    with pytest.raises(ValueError, match="fingerprint v2, and v1 was saved"):
        make(TensorDataset(X), fingerprint="v2").load_state_dict(state)


def test_a_fingerprint_is_the_same_in_another_process_and_draws_nothing():
    code = (f"import sys; sys.path[:0] = {[*sys.path]!r}\n"
            "from test_fingerprint import *\n"
            "print(*(fingerprint_of(one()) for pair in DIFFERENT.values() for one in pair))")
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    states = torch.get_rng_state(), random.getstate()
    ours = [fingerprint_of(one()) for pair in DIFFERENT.values() for one in pair]
    assert found.stdout.split() == ours, found.stderr
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()


def test_large_and_strange_arrays_are_looked_at_in_part():
    whole = torch.zeros(1 << 22)
    other = whole.clone()
    other[-1] = 1
    assert fingerprint_of(TensorDataset(whole)) != fingerprint_of(TensorDataset(other))
    for strange in (X.t(), X.to_sparse(), X.to("meta"), X.bool(), X.bfloat16(), X[:0],
                    torch.tensor(3.0), numpy.array([object()]), numpy.array("text"),
                    numpy.zeros((0, 3)), numpy.zeros(3, "M8[D]")):
        assert len(fingerprint_of(Holding(strange=strange))) == 16


def test_a_dataset_that_holds_itself_has_a_fingerprint():
    dataset = Holding()
    dataset.inner, dataset.many = dataset, [dataset] * 100
    assert len(fingerprint_of(dataset)) == 16


def test_resume_refuses_the_state_of_another_dataset(tmp_path):
    def train(data):
        model = torch.nn.Linear(4, 1)
        with holdfast.Checkpointer(tmp_path, model=model, data=data) as ck:
            for step, (batch,) in enumerate(data, ck.resume()):
                model(batch)
                ck.save(step)
                break

    train(DataLoader(TensorDataset(X), 2))
    with pytest.raises(ValueError, match="the dataset is not the one of the checkpoint"):
        train(DataLoader(TensorDataset(X + 1), 2))
    train(DataLoader(TensorDataset(X), 2))
