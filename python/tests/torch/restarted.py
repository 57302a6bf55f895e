"""A training whose ranks are not replaced, for the tests of `holdfast launch`:

    restarted.py HOW RUN KILLS

HOW is `off` (recover=False), `cache` (the same, and the forward pass makes a buffer), `plain` (steps that are not made by ck.run()), `second` (a second
Checkpointer after the first was closed) or `both` (two Checkpointers at once). KILLS is a list, with
commas, of rank:phase:step: that rank ends itself there once. Phase 1 is that of the second
Checkpointer. RUN.end.R has a digest of what rank R ends with.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast

how, run, kills = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
rank = int(os.environ["RANK"])
STEPS = 8


def here(phase, step):
    mark = Path(f"{run}.killed-{rank}-{phase}-{step}")
    if f"{rank}:{phase}:{step}" in kills and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Cached(nn.Linear):
    def forward(self, x):
        if not hasattr(self, "seen"):
            self.register_buffer("seen", torch.zeros(1), persistent=False)
        self.seen = self.seen + 1
        return super().forward(x) * self.seen


class Half:
    """A model with its optimizer and its Checkpointer."""

    def __init__(self, phase):
        self.phase = phase
        self.model = DistributedDataParallel(nn.Sequential(
            (Cached if how == "cache" else nn.Linear)(4, 4), nn.Dropout(0.2)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def open(self):
        self.ck = holdfast.Checkpointer(
            f"{run}-{self.phase}", model=self.model, optimizer=self.optimizer, every="2 steps",
            recover=False if how in ("off", "cache") else None, writing=holdfast.Writing(space_reserve=0))
        self.begin = self.ck.resume()
        return self.begin

    def train(self, step):
        torch.manual_seed(10 * step + rank)  # the other model may have drawn numbers, or not
        loss = self.model(torch.full((2, 4), float(step + rank))).pow(2).mean()
        loss.backward()
        here(self.phase, step)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, step):
        self.train(step) if how in ("plain", "off", "cache") else self.ck.run(self.train, step)
        self.ck.step(step)


dist.init_process_group("gloo")
torch.manual_seed(0)
halves = [Half(0), Half(1)]
if how == "both":
    for step in range(min(half.open() for half in halves), STEPS):
        for half in halves:
            if step >= half.begin:  # the newest checkpoints of two runs may be of different steps
                half.step(step)
    for half in halves:
        half.ck.close()
else:
    for half in halves if how == "second" else halves[:1]:
        for step in range(half.open(), STEPS):
            half.step(step)
        half.ck.close()
made = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for half in halves
                               for one in half.model.parameters()))
Path(f"{run}.end.{rank}").write_text(made.hexdigest())
dist.destroy_process_group()
