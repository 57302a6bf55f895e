"""A small training under holdfast.Watch, for the tests of this folder.

The tests flip bits by holdfast.inject, which torch's version counter does not see.
"""

import json
import logging
import os

import torch
from torch import nn

import holdfast

LONG = bool(os.environ.get("HOLDFAST_LONG"))
STEPS = 10_000 if LONG else 60


class Lines(logging.Handler):
    """The warnings of Holdfast."""

    def __init__(self):
        super().__init__()
        self.lines = []
        logging.getLogger("holdfast").addHandler(self)

    def emit(self, record):
        line = record.getMessage()
        if not line.startswith("the last step was"):  # a test need not save its end
            self.lines.append(line)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(16, 8)

    def forward(self, x):
        return self.fc(self.norm(self.conv(x)).relu().flatten(1))


def make(run, model, optimizer, every="never", **options):
    watch = holdfast.Watch(**{"share": 1.0, "compare_every": 1e-3, **options.pop("watch", {})})
    return holdfast.Checkpointer(run, model=model, optimizer=optimizer, every=every,
                                 watch=watch, failures=holdfast.Failures(signals=False), **options)


def backward(model, step):
    torch.manual_seed(step)
    loss = model(torch.randn(4, 2, 4, 4)).square().mean()
    loss.backward()
    return loss


def train(ck, model, optimizer, first, last, between=None):
    """Trains; `between` is called with each step before the update that follows it.

    It is called after the backward pass, so that damage that is mended leaves no trace.
    """
    for step in range(first, last):
        backward(model, step)
        if between is not None and step > first:
            between(step - 1)
        optimizer.step()
        optimizer.zero_grad()
        ck.step(step)


def values(model, optimizer):
    """The parameters and slots. Buffers are each rank's own until the next forward pass."""
    named = {f"model.{name}": t.detach().clone().numpy() for name, t in model.named_parameters()}
    for number, state in enumerate(optimizer.state.values()):
        named |= {f"{number}.{slot}": t.clone().numpy() for slot, t in state.items()}
    return named


def same(a, b):
    return all(a[name].tobytes() == b[name].tobytes() for name in a)


def events(run, rank=0):
    lines = (run / "events" / f"rank-{rank:04}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if '"memory_alarm"' in line]
