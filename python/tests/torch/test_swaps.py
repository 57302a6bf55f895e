"""Weights that are swapped for a validation between two updates, without torch's version counters.

Averaged weights are swapped in through `.data` right after the step that saves, and out again
before the next update. The save may still be in any phase of its copying.
"""

import time

from grouped import grouped
import pytest
import torch
from torch import nn

import holdfast

WIDTH = 1536
SMALL_RING = 8 << 20  # a fraction of the state in bytes, so that the copying waits for the disk


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))


class Average:
    """An exponential average of the parameters, as some training loops keep it."""

    def __init__(self, model):
        self.model = model
        self.values = [p.detach().clone() for p in model.parameters()]

    def update(self):
        for value, p in zip(self.values, self.model.parameters(), strict=True):
            value.lerp_(p.detach(), 0.1)


def copy_in(average):
    kept = [p.data.clone() for p in average.model.parameters()]
    for p, value in zip(average.model.parameters(), average.values, strict=True):
        p.data.copy_(value)
    return kept


def copy_back(average, kept):
    for p, value in zip(average.model.parameters(), kept, strict=True):
        p.data.copy_(value)


def replace(average):
    kept = [p.data for p in average.model.parameters()]
    for p, value in zip(average.model.parameters(), average.values, strict=True):
        p.data = value.clone()
    return kept


def replace_back(average, kept):
    for p, value in zip(average.model.parameters(), kept, strict=True):
        p.data = value


def train(run, swap, *, steps, **options):
    """Trains, with a validation with averaged weights after each step.
    Returns each step's parameters."""
    swap_in, swap_out = swap
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    average = Average(model)
    states = {}
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1 steps",
                               keep=None, **grouped(space_reserve=0, **options)) as ck:
        assert ck.resume() == 0
        for step in range(steps):
            model(torch.randn(4, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update()
            states[step] = {name: p.detach().clone() for name, p in model.named_parameters()}
            ck.step(step)
            kept = swap_in(average)
            with torch.no_grad():
                model(torch.randn(16, WIDTH))
            swap_out(average, kept)
    return states


def committed(run, states):
    """Checks that each committed checkpoint has the state of its step. Returns the steps."""
    steps = []
    for folder in sorted(run.glob("step-*")):
        step = int(folder.name.removeprefix("step-"))
        steps.append(step)
        contents = holdfast.open(folder)
        for name, value in states[step].items():
            saved = torch.from_numpy(contents.read(f"model.{name}"))
            assert torch.equal(saved, value), f"{name} of step {step}"
    return steps


@pytest.mark.parametrize("ring", [0, SMALL_RING])
@pytest.mark.parametrize("swap", [(copy_in, copy_back), (replace, replace_back)])
def test_a_checkpoint_has_the_weights_of_its_step_whatever_is_swapped_in(tmp_path, swap, ring):
    states = train(tmp_path, swap, steps=8, ring=ring)
    steps = committed(tmp_path, states)
    assert len(steps) >= 7  # at most one was torn: after that all is copied inside step()
    assert 7 in steps


def test_a_write_to_the_end_of_a_large_tensor_is_caught_at_once(tmp_path):
    model = nn.Linear(1, 1 << 20, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ck = holdfast.Checkpointer(tmp_path, model=model, optimizer=optimizer, every="1 steps",
                               keep=None, writing=holdfast.Writing(space_reserve=0))
    assert ck.resume() == 0
    for step in range(4):
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        expected = model.weight.detach().clone()
        ck.step(step)
        model.weight.data[-1] += 1
        deadline = time.monotonic() + 5
        while not ck._saves.handle.is_captured and time.monotonic() < deadline:
            time.sleep(0.001)
    ck.close()
    folders = sorted(tmp_path.glob("step-*"))
    steps = [int(folder.name.removeprefix("step-")) for folder in folders]
    assert steps == [1, 2, 3]  # the first is dropped; after that all is copied inside step()
    saved = torch.from_numpy(holdfast.open(folders[-1]).read("model.weight"))
    assert torch.equal(saved, expected)
