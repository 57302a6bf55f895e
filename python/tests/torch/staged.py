"""A training in two pipeline stages, by torch's own schedule:

    holdfast launch -n 2 staged.py RUN HOW

HOW is `warms up` (a pass of the schedule before the first ck.run()) or `plain` (a plain loop with
recover=False). RUN.end.R has what train() returns on rank R, as JSON.
"""

import hashlib
import json
import sys
from collections import OrderedDict
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import holdfast

STEPS, WIDTH, ROWS, PARTS = 4, 16, 16, 8


def train(rank, world, run=None, how="warms up"):
    """Trains; without a run, as without Holdfast. Returns a digest of the stage after each step."""
    torch.manual_seed(rank)
    net = nn.Sequential(OrderedDict({f"layer{rank}": nn.Linear(WIDTH, WIDTH), "tanh": nn.Tanh()}))
    stage = PipelineStage(net, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, PARTS, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)

    def make_step(step):
        x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))
        schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank else {}))
        optimizer.step()
        optimizer.zero_grad()

    def digest():
        found = b"".join(one.detach().numpy().tobytes() for one in net.parameters())
        return hashlib.sha256(found).hexdigest()

    made = []
    if run is None:
        for step in range(STEPS + (how == "warms up")):
            make_step(step)
            made.append(digest())
        return made
    if how == "warms up":
        make_step(0)
        made.append(digest())
    ck = holdfast.Checkpointer(run, model=net, optimizer=optimizer, every="never",
                               recover=False if how == "plain" else None)
    for step in range(ck.resume(), STEPS):
        if how == "plain":
            make_step(step)
        else:
            ck.run(make_step, step + 1)
        made.append(digest())
        ck.step(step)
    ck.close(save=False)
    return made


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    me = dist.get_rank()
    found = train(me, dist.get_world_size(), *sys.argv[1:])
    Path(f"{sys.argv[1]}.end.{me}").write_text(json.dumps(found))
