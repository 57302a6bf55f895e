"""What holdfast.Elastic adds to ck.step() while nothing changes. Run by bench/resize_bench.py:

    holdfast launch -n 2 bench/resize_idle.py FOLDER FILE [BLOCKS [STEPS]]

The same training makes steps with and without its part in changes of the configuration, in blocks that take
turns in a random order. FILE gets the microseconds of ck.step() in each block, its median, as rank 0 sees them,
and those of a look at RUN/control, which another thread takes.
"""

import json
import random
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from resize_training import SIZES, build, optimizer_for
from train_gpt import TEXT, Windows, backward

import holdfast
from holdfast.resize.control import Control
from holdfast.torch.elastic.member import NotElastic

LOOKS = 200


def main(folder: Path, said: Path, blocks: int = 11, length: int = 100) -> None:
    job = holdfast.Elastic(build, "dp=2", device="cpu", backend="gloo")
    optimizer = optimizer_for(job.model)
    loader = holdfast.data.loader(Windows(TEXT.read_bytes(), SIZES.context), SIZES.batch, last="join", elastic=job,
                                  epochs=None)
    ck = holdfast.Checkpointer(folder / "run", model=job, optimizer=optimizer, data=loader, every="never")

    def train(x, y):
        loss = backward(job.model, None, x[:1], y[:1])  # a short step: only the call behind it counts
        optimizer.step()
        optimizer.zero_grad()
        return loss

    steps = enumerate(loader, ck.resume())
    parts = {"elastic": ck._elastic, "plain": NotElastic()}
    seen = {name: [] for name in parts}
    dice = random.Random(1)  # the same order on all ranks
    for _ in range(blocks):
        for name in dice.sample(sorted(parts), len(parts)):
            ck._elastic = parts[name]
            took = []
            for _ in range(length):
                step, batch = next(steps)
                loss = ck.run(train, *batch)
                begun = time.perf_counter()
                ck.step(step, loss=loss)
                took.append(time.perf_counter() - begun)
            seen[name].append(1e6 * statistics.median(took))
    ck._elastic = parts["elastic"]
    if dist.get_rank() == 0:
        said.write_text(json.dumps(seen | {"look": look(Control(folder / "run"))}))
    ck.close()


def look(control: Control) -> float:
    """Microseconds of a look for requests."""
    begun = time.perf_counter()
    for _ in range(LOOKS):
        control.requests()
    return 1e6 * (time.perf_counter() - begun) / LOOKS


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
