"""A DDP training for tests that compare a plain loop with one of ck.run():

    holdfast launch -n 2 hooked.py RUN HOOK [RANK:STEP]

HOOK is `power` (PowerSGD, in several buckets), `static` (static_graph) or `none`. RANK dies in STEP, once.
RUN.end.R has what train() returns on rank R, as JSON.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import holdfast

STEPS, WIDTH = 6, 32


def train(rank, world, run=None, hook="none", dies=""):
    """Trains, by ck.run() if there is a run. Returns a digest after each step, and the hook's count."""
    torch.manual_seed(0)
    net = nn.Sequential(*(one for _ in range(4) for one in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
    model = DistributedDataParallel(net, bucket_cap_mb=0.003, static_graph=hook == "static")
    state = PowerSGDState(None, 1, start_powerSGD_iter=2)
    if hook == "power":
        model.register_comm_hook(state, powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def make_step(step):
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))
        model(x).square().sum().backward()
        if dies == f"{rank}:{step}" and not Path(f"{run}.died").exists():
            Path(f"{run}.died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()

    def digest():
        found = b"".join(one.detach().numpy().tobytes() for one in net.parameters())
        return hashlib.sha256(found).hexdigest()

    made = {}
    if run is None:
        for step in range(STEPS):
            make_step(step)
            made[step] = digest()
    else:
        with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="never",
                                   writing=holdfast.Writing(space_reserve=0)) as ck:
            for step in range(ck.resume(), STEPS):
                ck.run(make_step, step)
                made[step] = digest()
                ck.step(step)
    return {"digests": [made.get(step) for step in range(STEPS)], "count": state.iter}


def train_in_turn(rank, world, hook):
    """Trains in a plain loop. What a hook does with a result, it does where it asks for it.

    Otherwise both threads of Gloo may come to wait for each other's next call, and ranks may make
    the calls of two buckets in different orders. That is so without Holdfast, too.
    """
    then = torch._C.Future.then

    def wait_and_then(self, callback):
        self.wait()
        return then(self, callback)

    torch._C.Future.then = wait_and_then
    return train(rank, world, hook=hook)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    me = dist.get_rank()
    found = train(me, dist.get_world_size(), *sys.argv[1:])
    Path(f"{sys.argv[1]}.end.{me}").write_text(json.dumps(found))
