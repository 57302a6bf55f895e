"""A training for the tests of recovery, run by `holdfast launch`:

    recovered.py KIND RUN STEPS KILLS

KIND is ddp, hsdp (2 x 2 ranks) or pipeline (2 stages x 2 replicas). KILLS is a list, with commas, of
rank:step:point: that rank ends itself with SIGKILL, once, when it is there; a step of * stands for
any. RUN.losses.R has a line for each step of rank R, RUN.end.R digests of all that it ends with,
and RUN.killed a file for each kill.
"""

import hashlib
import json
import os
import random
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

import holdfast
from holdfast.torch.recover import crash_points
from holdfast.torch.recover.step_start import StepStart

WIDTH, BATCH = 16, 12

kind, run, steps, kills = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].split(",")
how = set(sys.argv[5:])
rank = int(os.environ["RANK"])
step = -1


def here(point):
    """Dies, if this is a place to die at."""
    for kill in (f"{rank}:{step}:{point}", f"{rank}:*:{point}"):
        mark = Path(f"{run}.killed") / kill
        if kill in kills and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Samples(torch.utils.data.Dataset):
    """Samples with noise that is drawn when they are read."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        return torch.full((WIDTH,), float(index % 7)) + torch.randn(WIDTH), index


def block():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.1), nn.Tanh())


class Blocks(nn.Module):
    """Blocks in a row. A stage of a pipeline has some of them, under the names of the whole."""

    def __init__(self, stage=None):
        super().__init__()
        made = {str(i): block() for i in range(4)}
        self.blocks = nn.ModuleDict({name: one for name, one in made.items()
                                     if stage is None or int(name) // 2 == stage})

    def forward(self, x):
        for one in self.blocks.values():
            x = one(x)
        return x


class Training:
    """The objects of one rank."""

    def __init__(self):
        torch.manual_seed(0)
        random.seed(rank)
        self.schedule = None
        self.data_rank, self.data_world = rank, dist.get_world_size()
        getattr(self, f"_make_{kind}")()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=12)
        self.loader = holdfast.data.loader(
            Samples(), BATCH, seed=3, epochs=None, num_workers=2 if kind == "ddp" else 0,
            rank=self.data_rank, world=self.data_world)
        torch.manual_seed(100 + self.data_rank)

    def _make_ddp(self):
        width = int(os.environ.get("HOLDFAST_GENERATION", "0")) if "other model" in how else 0
        self.net = Blocks() if width == 0 else nn.Sequential(Blocks(), nn.Linear(WIDTH, WIDTH))
        self.model = DistributedDataParallel(self.net, bucket_cap_mb=0.003)
        first = next(self.net.parameters())
        first.register_hook(lambda _: here("backward"))

    def _make_hsdp(self):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        self.net = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.Tanh())
                                   for _ in range(3)))
        for one in self.net:
            fully_shard(one, mesh=mesh)
        self.model = fully_shard(self.net, mesh=mesh)

    def _make_pipeline(self):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        self.stage, self.data_rank = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
        self.data_world = 2
        self.net = Blocks(self.stage)
        self.model = DistributedDataParallel(self.net, process_group=mesh.get_group("dp"))
        stage = PipelineStage(
            self.model, self.stage, 2, torch.device("cpu"),
            input_args=torch.empty(3, WIDTH, requires_grad=self.stage > 0),
            output_args=torch.empty(3, WIDTH, requires_grad=True), group=mesh.get_group("pp"))
        self.schedule = Schedule1F1B(stage, 2, loss_fn=lambda a, b: (a - b).pow(2).mean())

    def step(self, batch):
        here("forward")
        loss = self._backward(batch[0])
        here("after backward")
        if "accumulates" in how and step == 3:
            return loss.detach()
        self.optimizer.step()
        here("after update")
        self.scheduler.step()
        self.optimizer.zero_grad()
        here("end")
        return loss.detach()

    def _backward(self, x):
        if self.schedule is None:
            made = self.model(x)
            here("after forward")
            loss = (made - x).pow(2).mean()
            loss.backward()
            return loss
        losses = []
        self.schedule.step(*([x] if self.stage == 0 else []),
                           **({"target": x, "losses": losses} if self.stage == 1 else {}))
        return torch.stack(losses).mean() if losses else torch.zeros(())

    def digest(self):
        tensors = [*self.net.parameters(), *self.net.buffers()]
        tensors += [v for p in self.net.parameters() for v in self.optimizer.state[p].values()]
        made = hashlib.sha256()
        for one in tensors:
            local = one.to_local() if isinstance(one, DTensor) else one
            made.update(local.detach().contiguous().numpy().tobytes())
        made.update(torch.get_rng_state().numpy().tobytes())
        made.update(repr((random.getstate(), self.scheduler.state_dict())).encode())
        return made.hexdigest()


def validate():
    value = torch.ones(1)
    here("validation")
    dist.all_reduce(value)


def main():
    global step
    Path(f"{run}.killed").mkdir(exist_ok=True)
    crash_points.on_reach = here
    if "restores nothing" in how:
        StepStart.restore = lambda self: None
    dist.init_process_group("gloo")
    training = Training()
    ck = holdfast.Checkpointer(run, model=training.model, optimizer=training.optimizer,
                               scheduler=training.scheduler, data=training.loader,
                               every="5 steps", writing=holdfast.Writing(space_reserve=0))
    start = ck.resume()
    register_optimizer_step_pre_hook(lambda *_: here("in update"))
    with open(f"{run}.losses.{rank}", "a") as losses:
        for step, batch in zip(range(start, steps), training.loader):
            here("before")
            loss = ck.run(training.step, batch)
            here("after run")
            losses.write(json.dumps([step, loss.item().hex(), batch[1].tolist(), os.getpid()]) + "\n")
            losses.flush()
            ck.step(step, loss=loss)
            here("after step")
            if "validates" in how and step % 3 == 2:
                validate()
            if "validates in run" in how and step % 3 == 2:
                ck.run(validate)
    ck.close()
    Path(f"{run}.end.{rank}").write_text(training.digest())
    dist.destroy_process_group()


main()
