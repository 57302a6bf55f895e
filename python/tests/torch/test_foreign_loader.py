"""Loaders of other libraries, which draw from torch's generators when they are iterated."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import holdfast


class Drawing:
    """A loader like torchdata's, with 4 batches in an epoch. iter() draws their order. If it is
    resumed at the end of an epoch, the first `for` has no batch."""

    def __init__(self):
        self.order, self.at, self.resumed = [], 0, False

    def __iter__(self):
        order = torch.randperm(4).tolist()
        if not self.resumed:
            self.order, self.at = order, 0
        self.resumed = False
        return Batches(self)

    def state_dict(self):
        return {"order": self.order, "at": self.at}

    def load_state_dict(self, state):
        self.order, self.at, self.resumed = state["order"], state["at"], True


class Batches:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return self

    def __next__(self):
        if self.loader.at == 4:
            raise StopIteration
        self.loader.at += 1
        return torch.full((3, 2), float(self.loader.order[self.loader.at - 1])) + torch.rand(3, 2)


class Position:
    """4 batches in an epoch. The position is their order, and how many batches were returned."""

    def __init__(self):
        self.order, self.at, self.resumed = [], 0, False

    def state_dict(self):
        return {"order": self.order, "at": self.at}

    def load_state_dict(self, state):
        self.order, self.at, self.resumed = state["order"], state["at"], True

    def next_batch(self):
        if self.at % 4 == 0:
            self.order, self.at = torch.randperm(4).tolist(), 0
        self.at += 1
        return torch.full((3, 2), float(self.order[self.at - 1])) + torch.rand(3, 2)


class Lazy(Position):
    """A loader whose iterator is a Python generator: it draws nothing before the first next()."""

    def __iter__(self):
        if not self.order:
            self.order = torch.randperm(4).tolist()
        while self.at < 4:
            self.at += 1
            yield torch.full((3, 2), float(self.order[self.at - 1])) + torch.rand(3, 2)
        self.order, self.at = [], 0


class Itself(Position):
    """A loader that is its own iterator."""

    def __iter__(self):
        return self

    def __next__(self):
        return self.next_batch()


class Quiet(Position):
    """A Python generator that draws an order whenever it begins, and nothing to read a batch."""

    def __iter__(self):
        order = torch.randperm(4).tolist()
        if not self.resumed:
            self.order, self.at = order, 0
        self.resumed = False
        while self.at < 4:
            self.at += 1
            yield torch.full((3, 2), float(self.order[self.at - 1]))


class Slotted:
    """Like Quiet, but with __slots__, so that no attribute can be added."""

    __slots__ = ("inner",)

    def __init__(self):
        self.inner = Quiet()

    def __iter__(self):
        yield from self.inner

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state):
        self.inner.load_state_dict(state)


class Around(Position):
    """A Python generator around torch's DataLoader.
    Making the DataLoader draws, and so do samples."""

    def __iter__(self):
        if self.at == 0:
            self.order = torch.randperm(4).tolist()
        for batch in DataLoader(Noisy(), sampler=self.order[self.at:], batch_size=1):
            self.at += 1
            yield batch[0]
        self.at = 0


class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((3, 2), float(index)) + torch.rand(3, 2)


class Orders(Position):
    """A batch sampler. Only its position is saved; a plain DataLoader reads its batches."""

    def __iter__(self):
        if not self.order:
            self.order = torch.randperm(4).tolist()
        while self.at < 4:
            self.at += 1
            yield [self.order[self.at - 1]]
        self.order, self.at = [], 0


class Listed(Position):
    """A batch sampler whose iterator is a map object of Python."""

    def __iter__(self):
        if self.at % 4 == 0 and not self.resumed:
            self.order, self.at = torch.randperm(4).tolist(), 0
        self.resumed = False
        return map(self.count, self.order[self.at:])

    def count(self, index):
        self.at += 1
        return [index]


def by_method(loader):
    while True:
        yield loader.next_batch()


def by_torch(sampler):
    for batch in DataLoader(Noisy(), batch_sampler=sampler):
        yield batch[0]


KINDS = {
    "its iterator": (Drawing, iter),
    "a generator": (Lazy, iter),
    "a method": (Position, by_method),
    "itself": (Itself, iter),
    "next()": (Itself, lambda loader: iter(loader.__next__, None)),
    "a generator that draws to begin": (Quiet, iter),
    "a class with slots": (Slotted, iter),
    "a generator around a DataLoader": (Around, iter),
    "a sampler": (Orders, by_torch),
    "a sampler of Python's iterators": (Listed, by_torch),
}


def train(folder, seed, steps, kind="its iterator"):
    """Trains up to that step and returns the losses.
    Afterwards the loader has its own class again."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    made, read = KINDS[kind]
    loader, losses = made(), []
    with holdfast.Checkpointer(folder, model=model, optimizer=optimizer, data=loader,
                               every="1 steps",
                               writing=holdfast.Writing(space_reserve=0)) as checkpointer:
        step = checkpointer.resume()
        while step < steps:
            for batch in itertools.islice(read(loader), steps - step):
                loss = model(batch).pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
                checkpointer.step(step)
                step += 1
        assert not checkpointer.report.inexact
    assert type(loader) is made or read is not iter
    return losses


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [2, 3, 4, 5])
def test_it_goes_on_with_the_same_bits_in_an_epoch_and_at_its_end(tmp_path, kind, stop):
    whole = train(tmp_path / "whole", 0, 10, kind)
    spells = [train(tmp_path / "run", seed, end, kind) for seed, end in enumerate([stop, 7, 10])]
    assert sum(spells, []) == whole


def test_a_loader_that_is_read_by_a_method_may_be_iterated_later(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(2):
        loader = Itself()
        with holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer, data=loader,
                                   every="1000 steps",
                                   writing=holdfast.Writing(space_reserve=0)) as checkpointer:
            assert checkpointer.resume() == step
            model(loader.next_batch()).pow(2).mean().backward()
            optimizer.step()
            state = torch.get_rng_state()
            iter(loader)
            assert torch.equal(torch.get_rng_state(), state)
            checkpointer.save(step)


def test_a_later_checkpointer_of_the_same_loader_takes_the_place_of_an_earlier(tmp_path):
    whole = train(tmp_path / "whole", 0, 7, "a generator")
    assert train(tmp_path / "run", 0, 3, "a generator") == whole[:3]
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = Lazy()
    for folder in ("whole", "run"):
        with holdfast.Checkpointer(tmp_path / folder, model=model, optimizer=optimizer, data=loader,
                                   every="1 steps",
                                   writing=holdfast.Writing(space_reserve=0)) as checkpointer:
            assert checkpointer.resume() > 0
    loss = model(next(iter(loader))).pow(2).mean().item()
    assert loss == whole[3] and type(loader) is Lazy


def test_a_loader_whose_class_has_no_subclasses_is_named_in_the_report(tmp_path):
    class Final(Quiet):
        def __init_subclass__(cls):
            raise TypeError("final")

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(2):
        with holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer, data=Final(),
                                   every="1 steps",
                                   writing=holdfast.Writing(space_reserve=0)) as checkpointer:
            assert checkpointer.resume() == step
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            checkpointer.step(step)
    assert any("before a Final is iterated" in line for line in checkpointer.report.inexact)


def test_nothing_is_saved_before_the_first_update(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer, every="1 steps",
                               writing=holdfast.Writing(space_reserve=0)) as checkpointer:
        for step in range(4):
            model(torch.ones(1, 2)).sum().backward()
            if step % 2:
                optimizer.step()
            checkpointer.step(step)
    assert sorted(folder.name for folder in (tmp_path / "run").glob("step-*")) == [
        "step-00000001", "step-00000003"]


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_that_seed_themselves_anew_are_in_the_report(tmp_path, workers):
    for _ in range(2):
        data, model = Drawing(), nn.Linear(2, 1)
        data.num_workers = workers
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer, data=data,
                                   every="1 steps") as ck:
            start = ck.resume()
            for step, batch in zip(range(start, start + 2), data):
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                ck.step(step)
    assert [line.partition(":")[0] for line in ck.report.inexact] == ["data"] * (workers > 0)
