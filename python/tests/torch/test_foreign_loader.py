"""Loaders of others, which draw from torch's generators when they are iterated."""

import itertools

import pytest
import torch
from torch import nn

import holdfast


class Drawing:
    """As torchdata's: 4 batches an epoch, in an order that is drawn with its iterator, and
    at the end of an epoch it goes on with no batch."""

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


def train(folder, seed, steps):
    """The losses up to that step; the loader is back to its own class."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader, losses = Drawing(), []
    with holdfast.Checkpointer(folder, model=model, optimizer=optimizer, data=loader,
                               every="1 steps", space_reserve=0) as checkpointer:
        step = checkpointer.resume()
        while step < steps:
            for batch in itertools.islice(loader, steps - step):
                loss = model(batch).pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
                checkpointer.step(step)
                step += 1
    assert type(loader) is Drawing
    return losses


@pytest.mark.parametrize("stop", [2, 4, 5])
def test_it_goes_on_with_the_same_bits_in_an_epoch_and_at_its_end(tmp_path, stop):
    whole = train(tmp_path / "whole", 0, 7)
    assert train(tmp_path / "run", 0, stop) + train(tmp_path / "run", 1, 7) == whole


def test_nothing_is_saved_before_the_first_update(tmp_path):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer,
                               every="1 steps", space_reserve=0) as checkpointer:
        for step in range(4):
            model(torch.ones(1, 2)).sum().backward()
            if step % 2:
                optimizer.step()
            checkpointer.step(step)
    assert sorted(folder.name for folder in (tmp_path / "run").glob("step-*")) == [
        "step-00000001", "step-00000003"]
