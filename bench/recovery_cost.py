"""What recovery costs a training in which nobody dies. Run by bench/recovery_bench.py:

    holdfast launch -n 2 bench/recovery_cost.py FOLDER PAIRS STEPS [short]

Each rank has two copies of the GPT. One trains as a user of Holdfast does: its process group can be
replaced, its steps are made by ck.run(), and ck.step() follows. The other trains as without
Holdfast, over a plain Gloo group and without any call of Holdfast. Steps of both take turns, in a
random order each time, so that a machine which becomes slower or faster for a second disturbs both
alike. STEPS steps of each are one pair. Rank 0 writes FOLDER/cost.json: the seconds of each half of
a pair, as rank 0 sees them.

With `short`, the GPT is so small that a step takes about 10 ms, to see what a step costs whatever the
model is. Other work on the machine makes such steps several times as long. So the seconds of a half are
those of its fastest step.
"""

import argparse
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import holdfast

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
from train_gpt import GPT, TEXT, Windows, loss_of  # noqa: E402

WARM_UP = 3  # steps of each kind before the first pair
SHAPE = argparse.Namespace(width=256, head=32, layers=6, context=128, dropout=0.1)
SHORT = argparse.Namespace(width=64, head=32, layers=2, context=32, dropout=0.1)
BATCH = 4  # samples of a rank in a step


def plain_group() -> dist.ProcessGroup:
    """A group of Gloo that holdfast launch has not wrapped."""
    from holdfast.torch.recover.inner_group import connect_to_store, make_inner

    timeout = timedelta(seconds=60)
    store = dist.PrefixStore("plain", connect_to_store(timeout))
    return make_inner("gloo", store, dist.get_rank(), dist.get_world_size(), timeout)


class Copy:
    """One copy of the training."""

    def __init__(self, shape: argparse.Namespace, group: dist.ProcessGroup | None) -> None:
        torch.manual_seed(0)
        self.net = GPT(shape)
        self.model = DistributedDataParallel(self.net, process_group=group)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)

    def train(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_of(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


def state_bytes(copy: Copy) -> int:
    moments = [v for one in copy.optimizer.state.values() for v in one.values()]
    return sum(one.nbytes for one in [*copy.net.parameters(), *moments])


def main(folder: Path, pairs: int, steps: int, shape: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    recovers, plain = Copy(shape, None), Copy(shape, plain_group())
    loader, other = (holdfast.data.loader(Windows(TEXT.read_bytes(), shape.context),
                                          BATCH * dist.get_world_size(), seed=0, epochs=None)
                     for _ in range(2))  # fmt: skip
    ck = holdfast.Checkpointer(folder / "run", model=recovers.model, optimizer=recovers.optimizer,
                               data=loader, every="never")
    batches, plain_batches = enumerate(loader, ck.resume()), iter(other)

    def with_recovery() -> None:
        step, batch = next(batches)
        ck.step(step, loss=ck.run(recovers.train, *batch))

    def without() -> None:
        plain.train(*next(plain_batches))

    ways = {"recovers": with_recovery, "plain": without}
    seen = {name: [] for name in ways}
    for name in list(ways) * WARM_UP:
        timed(ways, name)
    dice = random.Random(1)  # the same order on all ranks
    for _ in range(pairs):
        took = {name: [] for name in ways}
        for name in itertools.chain.from_iterable(dice.sample(sorted(ways), 2) for _ in range(steps)):
            took[name].append(timed(ways, name))
        for name, seconds in took.items():
            seen[name].append(min(seconds) if shape is SHORT else sum(seconds))
    if rank == 0:
        (folder / "cost.json").write_text(json.dumps(seen | {"state": state_bytes(recovers),
                                                             "steps": steps}))  # fmt: skip
    ck.close(save=False)
    dist.destroy_process_group()
    os._exit(0)  # the plain group is not known to torch


def timed(ways: dict[str, Callable[[], None]], name: str) -> float:
    """The seconds of a step. What the plain one draws is not drawn by the loop of the other."""
    before = torch.get_rng_state()
    begun = time.perf_counter()
    ways[name]()
    took = time.perf_counter() - begun
    if name == "plain":
        torch.set_rng_state(before)
    return took


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]),
         SHORT if sys.argv[4:] == ["short"] else SHAPE)  # fmt: skip
