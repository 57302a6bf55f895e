"""Loops that read a batch ahead of its step are told, because a resume leaves that batch out."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import holdfast

ROWS = torch.arange(40.0)[:, None]


def prefetched(loader, depth):
    """As NVIDIA's examples do it: the next batches are read before this one is used."""
    batches, ready = iter(loader), []
    while True:
        ready += [one for _, one in zip(range(depth + 1 - len(ready)), batches)]
        if not ready:
            return
        yield ready.pop(0)


def train(run, loader, batches, accumulate=1, steps=9, before=lambda loader: None):
    model = nn.Linear(1, 1)
    opt = torch.optim.SGD(model.parameters(), lr=1e-4)
    with holdfast.Checkpointer(run, model=model, optimizer=opt, data=loader, every="1h") as ck:
        step, micro = ck.resume(), 0
        before(loader)
        while step < steps:
            for batch in batches(loader):
                model(batch).sum().backward()
                micro += 1
                if micro % accumulate == 0:
                    opt.step()
                    opt.zero_grad()
                    ck.step(step)
                    step += 1
                    if step == steps:
                        return


def plain():
    return DataLoader(ROWS, 8, shuffle=True)


def own():
    return holdfast.data.loader(ROWS, 2, seed=0)


@pytest.mark.parametrize(("make", "depth", "accumulate", "said"), [
    (plain, 1, 1, "the loop reads a batch ahead of its steps (the first step of a pass came after 2 batches"),
    (own, 3, 1, "the loop reads 3 batches ahead of its steps"),
    (own, 1, 2, "the first step of a pass came after 3 batches, each other one after 2"),
], ids=["DataLoader", "holdfast.data.loader", "accumulation"])
def test_a_loop_that_reads_ahead_is_told(tmp_path, caplog, make, depth, accumulate, said):
    train(tmp_path, make(), lambda loader: prefetched(loader, depth), accumulate)
    assert [said in record.message for record in caplog.records] == [True]


def look(loader):
    """A validation before the training, and a look at the first batch."""
    with torch.no_grad():
        assert len([batch for batch, _ in zip(loader, range(3))]) == 3
        next(iter(loader))


def varying(loader):
    """Steps of different numbers of micro-batches, because some batches are left out."""
    for number, batch in enumerate(loader):
        if number % 7 not in (0, 4):
            yield batch


@pytest.mark.parametrize(("make", "batches", "accumulate", "before"), [
    (plain, iter, 1, look),
    (own, iter, 2, lambda loader: None),
    (own, varying, 1, lambda loader: None),
], ids=["validation first", "accumulation", "varying numbers"])
def test_others_are_not(tmp_path, caplog, make, batches, accumulate, before):
    train(tmp_path, make(), batches, accumulate, before=before)
    assert not caplog.records
