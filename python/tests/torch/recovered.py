"""A training for the tests of recovery, run by `holdfast launch`:

    recovered.py KIND RUN STEPS KILLS HOW...

KIND is ddp, hsdp (2 x 2 ranks), fsdp (FSDP2 without replicas), tensor (tensor parallelism), pipeline (2
stages, each with half of the ranks), sharded (the same, each stage cut over its ranks by FSDP2) or stages
(each rank is a stage, without a replica). KILLS is a list, with commas, of
rank:step:point: that rank ends itself with SIGKILL, once, when it is there; a step of * stands for
any. RUN.losses.R has a line for each step of rank R, RUN.end.R digests of all that it ends with,
and RUN.killed a file for each kill. HOW are words for what the training does else (HOW below).
"""

import contextlib
import functools
import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.optim.optimizer import register_optimizer_step_pre_hook

import holdfast
from holdfast.torch.loop.saves import Saves
from holdfast.torch.recover import crash_points
from holdfast.torch.recover.buddies import BuddyGate
from holdfast.torch.recover.call_log import CallLog
from holdfast.torch.recover.group import SwapGroup
from holdfast.torch.recover.messages import Messages
from holdfast.torch.recover.step_start import StepStart
from holdfast.torch.recover.updates import key_of

WIDTH, BATCH = 16, 12
INFINITE = 1  # modulo 4
LATE = 6

HOW = {
    "critic": "a second model with an update of its own, in a ck.run() before that of the first",
    "validates": "a collective call behind ck.step(), outside of ck.run()",
    "validates in run": "the same in ck.run()",
    "validates first": "the same before the step, at the top of the loop",
    "validates before": "the same in ck.run() before the loop",
    "returns a model": "the critic's ck.run() returns what no other rank can be told",
    "average": "an average of the model, with its statistics, behind the update",
    "average first": "the same at the top of the loop",
    "draws": "random numbers drawn between ck.run() and ck.step()",
    "tracks": "an object that differs between ranks, changed between ck.run() and ck.step()",
    "counts": "an object that the loop changes before ck.run()",
    "schedules first": "the step of the scheduler and a decay of an option in front of the update",
    "schedules at the top": "the same at the top of the loop, before ck.run()",
    "counts in the step": "an object that the step changes before its update",
    "sets a rate": "a learning rate that the program sets behind ck.resume()",
    "spoils a weight": "the first replacement writes to a parameter behind ck.resume()",
    "spoils in the step": "the same in its first step",
    "spoils a slot": "the same with a slot of the optimizer, and with nothing else",
    "averages at the top": "the update of an average at the top of the loop, before ck.run()",
    "averages by rank": "an average that differs between ranks from step 2 on",
    "averages by rank at once": "the same from step 0 on",
    "rate by calls": "a learning rate that the step computes from the number of this process's steps",
    "counts calls": "an object that the step gives the number of this process's steps",
    "by hand": "an update without an optimizer", "encoder": "a momentum encoder, written by .data",
    "late encoder": "one that begins to change in step 6 (LATE)",
    "codebook": "codes that the forward pass of the model writes to",
    "power": "PowerSGD, a communication hook with a state",
    "own average": "an object with a small and a large tensor, written by .data in front of the update",
    "draws behind": "random numbers drawn behind ck.step()",
    "draws first": "random numbers drawn before a batch is asked for",
    "other loader": "a DataLoader that the Checkpointer is not given",
    "other once": "one that is read behind one step only", "other anew": "one with a new iterator in "
    "each step", "other in the step": "one that steps read", "looks at data": "one that is read to its "
    "end behind each step, and one of which the first sample is read",
    "keeps gradients": "gradients that are added to in the next step, three of four times",
    "keeps gradients late": "the same from step 5 on",
    "drops first": "a step drops gradients at its beginning, not at its end, as \"zeroes first\" does in place",
    "zeroes first": "",
    "in place": "the step writes to its batch, and takes things out of it",
    "reads": "the step reads a second batch itself",
    "accumulates": "gradients of one update in two ck.run(), which is refused",
    "micro": "two micro-batches in one step, with no_sync()",
    "scaler": "a GradScaler, with a gradient that is infinite in one step of four (INFINITE)",
    "views": "gradient_as_bucket_view", "static": "static_graph", "unused": "a parameter unused",
    "lbfgs": "an optimizer with a closure, which it calls once", "searches": "it calls it 3 times",
    "barrier": "a barrier behind ck.resume()",
    "reads a table": "rank 0 sends 1.2 MB at start-up, of which each step uses the sum",
    "warms up": "more results of collective calls at start-up than are kept",
    "sends the model": "rank 0 sends the model itself at start-up",
    "late group": "a process group that is made in the first ck.run()",
    "assigns a buffer": "the step assigns a buffer, which it reads in the next step",
    "table": "a large buffer that the forward pass writes to",
    "own table": "a buffer of 20 MiB of which each rank has its own values, to which the step writes",
    "masks": "large buffers that nothing changes, one of which is not saved",
    "spoils a mask": "survivors write to that one when a rank was lost",
    "saves": "ck.save() before the loop and behind ck.step()",
    "waits for saves": "it waits until they are durable",
    "waits": "behind every fifth step, of which all ranks have a save, it waits until that is durable",
    "hears late": "the last ck.step() comes so late that ranks know of a death in the last update",
    "unsettled": "rank 1 does not settle its save of the last step, which so never becomes durable",
    "other model": "the replacement has another model",
    "stops first": "the launcher gets SIGTERM right before a rank dies",
    "gpipe": "stages in another schedule", "interleaved": "the same, with two stages on each rank",
    "zero bubble": "the same", "2 helpers": "Recover(helpers=2)", "4 helpers": "Recover(helpers=4)",
    "a helper dies": "once, in its start", "a helper dies later": "once, in its second step",
    "no statistics": "LayerNorm in place of BatchNorm", "returns outputs": "the last stage looks at its outputs",
    "adds up": "two calls of the schedule in a step",
    "keeps nothing": "Recover(log=None)",
    "keeps little": "room for less than one step of messages",
    "spills": "4 kB of messages, or no update, and more in a folder",
    "sgd": "SGD with momentum", "adamax": "Adamax", "amsgrad": "AMSGrad", "fused": "fused AdamW",
    "auto": "Recover(log='auto')", "flips a bit": "a survivor flips a bit of an entry of its peer when a rank dies",
    "sums much": "each step sums 2 MiB over all ranks",
    "keeps half": "room for the messages of 5 steps over one border of a stage, but not over two",
    "keeps slowly": "rank 1 takes 20 ms to keep a message",
    "loses a message": "ranks do not keep their last message of update 7 to rank 1",
    "other messages": "survivors send the first message of the update before in place of that of the newest one",
    "unsettled early": "rank 1 does not settle its save of step 4, which so never becomes durable",
    "other entry": "the same with the entry of the update before", "two updates": "two updates in one run",
    "clamps": "the step writes to parameters behind its update",
    "asks in the update": "an optimizer that calls other ranks in its update",
    "other threads": "a replacement has another number of threads",
    "restores only gradients": "a control: the step is made again from where it was, without gradients",
}

kind, run, steps, kills = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].split(",")
how = set(sys.argv[5:])
assert how <= set(HOW), how
rank = int(os.environ["RANK"])
helper = int(os.environ.get("HOLDFAST_HELPER", "0"))  # of a replacement; 0 for a rank
step = -1


def here(point):
    """Dies, if this is a place to die at."""
    if helper:
        return
    for kill in (f"{rank}:{step}:{point}", f"{rank}:*:{point}"):
        mark = Path(f"{run}.killed") / kill
        if kill in kills and not mark.exists():
            mark.touch()
            if "stops first" in how:
                os.kill(os.getppid(), signal.SIGTERM)
                time.sleep(0.3)
            time.sleep(0.05)  # what it has sent leaves the process
            os.kill(os.getpid(), signal.SIGKILL)


class Samples(torch.utils.data.Dataset):
    """Samples with noise that is drawn when they are read."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        return torch.full((WIDTH,), float(index % 7)) + torch.randn(WIDTH), index


def block():
    norm = nn.LayerNorm if "no statistics" in how else nn.BatchNorm1d
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), norm(WIDTH), nn.Dropout(0.1), nn.Tanh())


class Blocks(nn.Module):
    """Blocks in a row. A stage of a pipeline has some of them, under the names of the whole."""

    def __init__(self, stage=None, blocks=4):
        super().__init__()
        made = {str(i): block() for i in range(blocks)}
        self.blocks = nn.ModuleDict({name: one for name, one in made.items()
                                     if stage is None or int(name) // 2 == stage})

    def forward(self, x):
        for one in self.blocks.values():
            x = one(x)
        return x


class Codebook(nn.Module):
    """Codes that follow what passes, the same on all ranks; no gradient trains them."""

    def __init__(self):
        super().__init__()
        self.codes = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)

    def forward(self, x):
        seen = x.detach().mean(0)
        dist.all_reduce(seen)
        self.codes.data.mul_(0.9).add_(seen, alpha=0.05)
        return x + self.codes


class AskingSGD(torch.optim.SGD):
    """An optimizer that asks other ranks in its update."""

    def step(self, closure=None):
        dist.all_reduce(torch.ones(1))
        return super().step(closure)


class Training:
    """The objects of one rank."""

    def __init__(self):
        torch.manual_seed(0)
        random.seed(rank)
        numpy.random.seed(rank)
        self.schedule = None
        self.data_rank, self.data_world = rank, dist.get_world_size()
        getattr(self, f"_make_{kind}")()
        self.optimizer = self._make_optimizer()
        if "lbfgs" in how:
            self.optimizer = torch.optim.LBFGS(self.model.parameters(), lr=1e-2,
                                               max_iter=3 if "searches" in how else 1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2) \
            if "scaler" in how else None
        self.average = AveragedModel(self.net, use_buffers=True) \
            if how & {"average", "average first"} else None
        self.critic = self.critic_optimizer = None
        if "critic" in how:
            self.critic = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, 4), nn.Dropout(0.5)))
            self.critic_optimizer = torch.optim.SGD(self.critic.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=12)
        self.loader = holdfast.data.loader(
            Samples(), BATCH, seed=3, epochs=None,
            num_workers=2 if kind == "ddp" and "validates in run" not in how else 0,
            rank=self.data_rank, world=self.data_world)
        torch.manual_seed(100 + self.data_rank)

    def _make_ddp(self):
        width = int(os.environ.get("HOLDFAST_GENERATION", "0")) if "other model" in how else 0
        self.net = Blocks() if width == 0 else nn.Sequential(Blocks(), nn.Linear(WIDTH, WIDTH))
        if "unused" in how:
            self.net.unused = nn.Linear(2, 2)
        if how & {"encoder", "late encoder"}:
            self.net.encoder = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        if "codebook" in how:
            self.net.blocks["codes"] = Codebook()
        if "assigns a buffer" in how:
            self.net.register_buffer("last", torch.zeros(WIDTH))
        if "table" in how:
            self.net.register_buffer("table", torch.zeros(1 << 19))
        if "own table" in how:
            self.net.register_buffer("own_table", torch.full((5 << 20,), 1.0 + rank))
        for name in ("mask", "unsaved mask") if "masks" in how else ():
            self.net.register_buffer(name.replace(" ", "_"), torch.randn(1 << 19), persistent=name == "mask")
        self.model = DistributedDataParallel(
            self.net, bucket_cap_mb=0.003, gradient_as_bucket_view="views" in how, broadcast_buffers="own table" not in how,
            static_graph="static" in how, find_unused_parameters="unused" in how)
        if "power" in how:
            self.model.register_comm_hook(PowerSGDState(None, 1, start_powerSGD_iter=2), powerSGD_hook)
        first = next(self.net.parameters())
        first.register_hook(lambda _: here("backward"))

    def _make_hsdp(self):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        self.net = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.Tanh())
                                   for _ in range(3)))
        for one in self.net:
            fully_shard(one, mesh=mesh)
        self.model = fully_shard(self.net, mesh=mesh)

    def _make_fsdp(self):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.net = Blocks(blocks=2)  # on 3 ranks, the parts are of unequal sizes
        for one in self.net.blocks.values():
            fully_shard(one, mesh=mesh)
        self.model = fully_shard(self.net, mesh=mesh)

    def _make_tensor(self):
        self.data_rank, self.data_world = 0, 1
        self.net = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, WIDTH),
                                 nn.BatchNorm1d(WIDTH), nn.Dropout(0.1))
        self.model = parallelize_module(self.net, init_device_mesh("cpu", (dist.get_world_size(),)),
                                        {"0": ColwiseParallel(), "2": RowwiseParallel()})

    def _make_optimizer(self):
        given, parameters = {"lr": 1e-2}, list(self.model.parameters())
        if kind == "tensor":
            given["foreach"] = False  # torch does not take DTensors and plain tensors together
        if "sgd" in how:
            return torch.optim.SGD(parameters, momentum=0.9, nesterov=True, weight_decay=1e-2, **given)
        if "adamax" in how:
            return torch.optim.Adamax(parameters, **given)
        if "asks in the update" in how:
            return AskingSGD(parameters, **given)
        if "fused" in how:
            return torch.optim.AdamW(parameters, lr=1e-2, fused=True)
        return torch.optim.AdamW(parameters, amsgrad="amsgrad" in how, **given)

    def _make_pipeline(self):
        self.data_world = dist.get_world_size() // 2
        mesh = init_device_mesh("cpu", (2, self.data_world), mesh_dim_names=("pp", "dp"))
        self.stage, self.data_rank = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
        self.net = Blocks(self.stage)
        self.model = (fully_shard(self.net, mesh=mesh["dp"]) if kind == "sharded" else
                      DistributedDataParallel(self.net, process_group=mesh.get_group("dp")))
        self.is_first, self.is_last = self.stage == 0, self.stage == 1
        half = BATCH // self.data_world // 2  # of a batch: a micro-batch
        stage = PipelineStage(
            self.model, self.stage, 2, torch.device("cpu"),
            input_args=torch.empty(half, WIDTH, requires_grad=self.stage > 0),
            output_args=torch.empty(half, WIDTH, requires_grad=True), group=mesh.get_group("pp"))
        self.schedule = Schedule1F1B(stage, 2, loss_fn=lambda a, b: (a - b).pow(2).mean())

    _make_sharded = _make_pipeline

    def _make_stages(self):
        self.data_rank, self.data_world, world = 0, 1, dist.get_world_size()
        many = 2 if how & {"interleaved", "zero bubble"} else 1
        at = [rank + world * k for k in range(many)]
        if "zero bubble" in how:
            at = [rank, 2 * world - 1 - rank]
        chunks = [Blocks(k, 2 * world * many) for k in at]
        self.model = self.net = nn.ModuleList(chunks)
        self.is_first, self.is_last = 0 in at, world * many - 1 in at
        parts = {2: 4, 3: 6, 4: 4}[world]  # micro-batches; without shapes, stages try themselves out on garbage
        rows = BATCH // parts
        stages = [PipelineStage(one, k, world * many, torch.device("cpu"),
                                input_args=torch.empty(rows, WIDTH, requires_grad=k > 0),
                                output_args=torch.empty(rows, WIDTH, requires_grad=True))
                  for one, k in zip(chunks, at)]
        make = (ScheduleZBVZeroBubble if "zero bubble" in how else
                ScheduleInterleaved1F1B if "interleaved" in how else
                ScheduleGPipe if "gpipe" in how else Schedule1F1B)
        self.schedule = make(stages if many > 1 else stages[0], parts,
                             loss_fn=lambda a, b: (a - b).pow(2).mean())

    def step(self, batch):
        if how & {"drops first", "zeroes first"} and not self.keeps_gradients():
            self.optimizer.zero_grad(set_to_none="drops first" in how)
        here("forward")
        if "a helper dies later" in how and len(calls) == 1:
            end_helper_once()
        if "schedules first" in how:
            self.schedule_rates()
        if "counts in the step" in how:
            counter.total += 1
        if "other in the step" in how:
            next(others)
        if "other anew" in how:
            next(iter(shuffled))
        if how & {"spoils in the step", "spoils a slot"}:
            spoil_once(self)
        calls.append(step)
        if "counts calls" in how:
            counter.total = len(calls)
        if "rate by calls" in how:
            self.optimizer.param_groups[0]["lr"] = 1e-2 / len(calls)
        if "averages by rank at once" in how or ("averages by rank" in how and step >= 2):
            own_average.tensors["small"].add_(rank)
        if "late group" in how:
            dist.all_reduce(torch.ones(1), group=late_group())
        if "in place" in how:
            batch.pop()
        if "own table" in how:
            self.net.own_table.mul_(1.25)
        if "sums much" in how:
            dist.all_reduce(torch.ones(1 << 19))
        loss = self._make_gradients(batch)
        here("after backward")
        if "accumulates" in how and step == 3:
            return loss.detach()
        self._update(batch)
        here("after update")
        if "average" in how:
            self.average.update_parameters(self.net)
        if not how & {"schedules first", "schedules at the top"}:
            self.scheduler.step()
        if self.keeps_gradients():
            for one in self.net.parameters():
                one.grad.mul_(0.5)
        elif not how & {"drops first", "zeroes first"}:
            self.optimizer.zero_grad()
        here("end")
        return loss.detach()

    def keeps_gradients(self):
        return ("keeps gradients" in how or ("keeps gradients late" in how and step >= 5)) and step % 4 != 3

    def schedule_rates(self):
        self.scheduler.step()
        for group in self.optimizer.param_groups:
            group["weight_decay"] *= 1.01

    def _make_gradients(self, batch):
        x = batch[0]
        if "own average" in how:
            for one in own_average.tensors.values():
                one.data.mul_(0.9).add_(step)
        if "encoder" in how or ("late encoder" in how and step >= LATE):
            for mine, other in zip(self.net.encoder.parameters(), self.net.blocks["0"].parameters()):
                mine.data.mul_(0.9).add_(other.data, alpha=0.1)
            x = x + self.net.encoder(x)
        if "in place" in how:
            x.mul_(0.5)
        if "assigns a buffer" in how:
            x = x + 0.1 * self.net.last
            self.net.last = x.detach().mean(0)
        if "reads" in how:
            x = x + next(batches)[0]
        if "lbfgs" in how:
            return torch.zeros(())
        if "micro" in how:
            with self.model.no_sync():
                self._backward(x[:2])
            return self._backward(x[2:])
        return self._backward(x)

    def _update(self, batch):
        if "lbfgs" in how:
            def closure():
                self.optimizer.zero_grad()
                return self._backward(batch[0])
            return self.optimizer.step(closure)
        if "by hand" in how:
            with torch.no_grad():
                for one in self.net.parameters():
                    one -= 0.01 * one.grad
            return here("in update")
        if "two updates" in how:
            self.optimizer.step()
            for one in self.model.parameters():
                one.grad.mul_(0.5)
        if self.scaler is None:
            self.optimizer.step()
            if "clamps" in how:
                with torch.no_grad():
                    next(self.net.parameters()).clamp_(-0.2, 0.2)
            return None
        if step % 4 == INFINITE:
            next(self.net.parameters()).grad[0] = torch.inf
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def critic_step(self, batch):
        here("critic")
        loss = self.critic(batch[0]).mean()
        loss.backward()
        self.critic_optimizer.step()
        self.critic_optimizer.zero_grad()
        here("after critic")
        return self.critic if "returns a model" in how else loss.item()

    def _backward(self, x):
        if self.schedule is None:
            made = self.model(x)
            here("after forward")
            loss = (made - x).pow(2).mean()
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            return loss
        losses = []
        for _ in range(2 if "adds up" in how else 1):
            made = self.schedule.step(*([x] if self.is_first else []),
                                      **({"target": x, "losses": losses} if self.is_last else {}))
        if kind == "stages":
            clip(self.net.parameters())
        if "returns outputs" in how and losses:
            losses.append((made * torch.arange(float(len(made)))[:, None]).mean())
        return torch.stack(losses).mean() if losses else torch.zeros(())

    @property
    def objects(self):
        """The models and optimizers as a Checkpointer takes them."""
        if self.critic is None:
            return self.model, self.optimizer
        return ({"net": self.model, "critic": self.critic},
                {"net": self.optimizer, "critic": self.critic_optimizer})

    def digest(self):
        """Digests of all that this rank has, by name, as text."""
        modules = {name: one for name, one in (("net", self.net), ("critic", self.critic),
                                               ("average", self.average)) if one is not None}
        tensors = {f"{key}.{name}": one for key, module in modules.items() for name, one in (
            *module.named_parameters(), *module.named_buffers())}
        tensors |= own_average.tensors
        for key, optimizer in (("optimizer", self.optimizer), ("critic's", self.critic_optimizer)):
            if optimizer is not None:
                tensors |= _tensors(key, [optimizer.state.get(p) for group in optimizer.param_groups
                                          for p in group["params"]])
        made = {name: _digest((one.to_local() if isinstance(one, DTensor) else one).detach()
                              .contiguous().numpy().tobytes()) for name, one in tensors.items()}
        for name, value in {
                "generator": torch.get_rng_state().tolist(), "random": random.getstate(),
                "scheduler": self.scheduler.state_dict(), "options": [
                    {key: one for key, one in group.items() if key != "params"}
                    for group in self.optimizer.param_groups], "tracker": vars(tracker),
                "scaler": None if self.scaler is None else self.scaler.state_dict(),
                "counter": vars(counter)}.items():
            made[name] = _digest(repr(value).encode())
        return json.dumps(made)


def clip(parameters):
    """Divides gradients by their norm over all stages, if that is above 1."""
    gradients = [one.grad for one in parameters]
    norm = torch.stack([one.pow(2).sum() for one in gradients]).sum()
    dist.all_reduce(norm)
    for one in gradients:
        one.mul_(torch.clamp(1 / (norm.sqrt() + 1e-6), max=1.0))


@functools.cache
def late_group():
    return dist.new_group()


def _digest(data):
    return hashlib.sha256(data).hexdigest()


def _tensors(name, value):
    """The tensors and numbers in a state, by name."""
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        return {key: one for inside in value
                for key, one in _tensors(f"{name}.{inside}", value[inside]).items()}
    return {name: value if isinstance(value, torch.Tensor) else torch.tensor(value or 0.0)}


class Numbers:
    """An object of the user's own."""

    def __init__(self):
        self.total = 0.0

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]


class OwnAverage:
    """An object of the user's own, with tensors."""

    def __init__(self):
        self.tensors = {"small": torch.zeros(4), "large": torch.zeros(1 << 15)}

    def state_dict(self):
        return dict(self.tensors)

    def load_state_dict(self, state):
        for name, one in state.items():
            self.tensors[name].copy_(one)


tracker, counter, own_average = Numbers(), Numbers(), OwnAverage()
more_samples = torch.utils.data.DataLoader(Samples())
others, calls = iter(more_samples), []
shuffled = torch.utils.data.DataLoader(Samples(), shuffle=True)
batches = None


def validate():
    value = torch.ones(1)
    here("validation")
    dist.all_reduce(value)
    here("after validation")
    assert value.item() == dist.get_world_size()
    return value.item()


def drawing(batches):
    while True:
        torch.rand(1)
        batch = next(batches, None)
        if batch is None:
            return
        yield batch


def drop_gradients(start):
    """In place of StepStart.restore(). Gradients that stayed would be noticed as those of earlier steps."""
    for one in start._optimizers:
        one.zero_grad()
    return ""


def main():
    global step
    Path(f"{run}.killed").mkdir(exist_ok=True)
    crash_points.on_reach = here
    if how & {"flips a bit", "other entry"}:
        damage_entries()
    note_calls()
    if how & {"keeps slowly", "loses a message", "other messages"}:
        damage_messages()
    if "masks" in how:
        note_records()
    if "restores only gradients" in how:
        StepStart.restore = drop_gradients
    dist.init_process_group("gloo")
    start_up()
    training = Training()
    if "spoils a mask" in how:
        spoil_mask(training.net)
    if "sends the model" in how:
        for one in training.net.state_dict().values():
            dist.broadcast(one, 0)
    model, optimizer = training.objects
    given = {"tracker": tracker, "counter": counter}
    if how & {"own average", "averages by rank", "averages by rank at once", "averages at the top"}:
        given["own_average"] = own_average
    ck = holdfast.Checkpointer(run, model=model, optimizer=optimizer, scheduler=training.scheduler,
                               data=training.loader, ema=training.average, scaler=training.scaler,
                               objects=given, every="5 steps", recover=recover(),
                               writing=holdfast.Writing(space_reserve=0))
    start = ck.resume()
    register_optimizer_step_pre_hook(lambda *_: here("in update"))
    after_resume(training)
    if "barrier" in how:
        dist.barrier()
    if "saves" in how:
        ck.save(start)
    if "validates before" in how:
        assert ck.run(validate) == dist.get_world_size()
    global batches
    batches = iter(training.loader)
    with open(os.devnull if helper else f"{run}.losses.{rank}", "a") as losses:
        asked = drawing(batches) if "draws first" in how else batches
        for step, batch in zip(range(start, steps), asked):
            made = make_step(ck, training, batch)
            losses.write(json.dumps([step, made, batch[-1].tolist(), os.getpid()]) + "\n")
            losses.flush()
            before_last_step()
            ck.step(step, loss=float.fromhex(made[0]))
            here("after step")
            while "waits" in how and step % 5 == 4 and ck.latest_step != step:
                time.sleep(0.01)
            if "draws behind" in how:
                torch.rand(1)
            if "other loader" in how or ("other once" in how and step == 1):
                next(others)
            if "looks at data" in how:
                assert len([*shuffled]) == 96 and next(iter(more_samples))
            if "saves" in how and step % 3 == 2:
                save(ck)
            if "validates" in how and step % 3 == 2:
                validate()
            if "validates in run" in how and step % 3 == 2:
                torch.rand(1)
                assert ck.run(validate) == dist.get_world_size()
    ck.close()
    Path(f"{run}.end.{rank}").write_text(training.digest())
    dist.destroy_process_group()


def recover():
    """How a lost rank is replaced, as a Checkpointer takes it."""
    if "keeps nothing" in how:
        return holdfast.Recover(log=None)
    if "keeps little" in how:
        return holdfast.Recover(log="messages", memory="300B")
    log = {"stages": "messages", **dict.fromkeys(("fsdp", "tensor", "sharded"), "updates")}.get(kind)
    log = "auto" if how & {"auto", "keeps slowly"} else log
    if "keeps half" in how:
        return holdfast.Recover(log="messages", memory=9000)
    if helpers := [one for one in how if one.endswith(" helpers")]:
        return holdfast.Recover(log=log, helpers=int(helpers[0].split()[0]))
    if how & {"spills", "flips a bit"}:
        os.makedirs(f"{run}.spill", exist_ok=True)
        return holdfast.Recover(log=log, memory=4000 if kind == "stages" else 1, spill=f"{run}.spill")
    return None if log is None else holdfast.Recover(log=log)


def note_records():
    """RUN.records.R has the bytes of each record that passes a gate."""
    pass_gate = BuddyGate.pass_gate

    def pass_noted(self, update, record):
        with open(f"{run}.records.{rank}", "a") as sizes:
            sizes.write(f"{len(record)}\n")
        pass_gate(self, update, record)

    BuddyGate.pass_gate = pass_noted


def spoil_mask(net):
    """Survivors begin to meet the replacement with another mask than they have told of."""
    drop = Saves.drop

    def drop_spoilt(self):
        net.unsaved_mask.data[7] += 1
        drop(self)

    Saves.drop = drop_spoilt


def damage_entries():
    """Before survivors send what they have kept, the newest entry of an update is damaged."""
    serve = Messages.serve

    def serve_damaged(self, transport, replaying, *more):
        log = self._log.native
        for lost, (_, _, through) in replaying.items():
            with contextlib.suppress(holdfast.NotFoundError):
                text, body = log.find(key_of(through - 1, lost))
                data = torch.frombuffer(bytearray(body), dtype=torch.uint8)
                if "other entry" in how:
                    log.put(key_of(through, lost), text, [(data.data_ptr(), data.nbytes)])
                else:
                    flip_in_files(log.pack(key_of(through, lost)))
        serve(self, transport, replaying, *more)

    Messages.serve = serve_damaged


def note_calls():
    """Each live call of a step is a place to die at: "call 0", "call 1" and so on."""
    call_live, seen = SwapGroup._call_live, [-1, 0]  # the step, and its calls so far

    def call_noted(self, *given):
        seen[:] = [step, seen[1] + 1 if seen[0] == step else 0]
        here(f"call {seen[1]}")
        return call_live(self, *given)

    SwapGroup._call_live = call_noted


def damage_messages():
    """What is kept of messages is late, or lost, or in the wrong place when it is sent to a replacement."""
    put, serve = CallLog._put, Messages.serve

    def put_badly(self, key, tensors, kept):
        if "keeps slowly" in how and rank == 1:
            time.sleep(0.02)
        if not ("loses a message" in how and (key[0], *key[4:]) == (7, 1, 5)):
            put(self, key, tensors, kept)

    def serve_other(self, transport, replaying, groups, *more):
        if "other messages" in how:
            for lost, (_, _, through) in replaying.items():
                for name, _ in groups:
                    with contextlib.suppress(holdfast.NotFoundError):
                        text, body = self._log.native.find((through - 1, name, "send", rank, lost, 0))
                        data = torch.frombuffer(bytearray(body), dtype=torch.uint8)
                        self._log.native.put((through, name, "send", rank, lost, 0), text,
                                             [(data.data_ptr(), data.nbytes)])
        serve(self, transport, replaying, groups, *more)

    CallLog._put, Messages.serve = put_badly, serve_other


def flip_in_files(record):
    """Flips the last bit of a record in the files of this process that have no name any more."""
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if f"{run}.spill" in os.readlink(f"/proc/self/fd/{number}"):
                with open(f"/proc/self/fd/{number}", "r+b") as file:
                    at = file.read().find(record)
                    if at >= 0:
                        file.seek(at + len(record) - 1)
                        file.write(bytes([record[-1] ^ 1]))


def is_replacement():
    """True in a process that takes the place of a lost rank; false where all ranks have started again."""
    return os.environ["HOLDFAST_GENERATION"] != "0" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"


def after_resume(training):
    if "a helper dies" in how:
        end_helper_once()
    if "other threads" in how and kind == "stages" and is_replacement():
        torch.set_num_threads(torch.get_num_threads() + 1)
    if "sets a rate" in how:
        training.optimizer.param_groups[0]["lr"] = 5e-3
    if "spoils a weight" in how:
        spoil_once(training)


def end_helper_once():
    mark = Path(f"{run}.helper")
    if helper == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def spoil_once(training):
    mark = Path(f"{run}.spoilt")
    if os.environ.get("HOLDFAST_GENERATION", "0") != "0" \
            and not mark.exists():
        mark.touch()
        first = next(training.net.parameters())
        with torch.no_grad():
            (training.optimizer.state[first]["exp_avg"] if "spoils a slot" in how else first)[0] += 1


def start_up():
    if "other threads" in how and kind != "stages" and is_replacement():
        torch.set_num_threads(torch.get_num_threads() + 1)  # updates are made again in ck.resume()
    if "reads a table" in how:
        table = torch.arange(300_000.0) if rank == 0 else torch.zeros(300_000)
        dist.broadcast(table, 0)
        counter.total = table.sum().item()
    for _ in range(70 if "warms up" in how else 0):
        dist.all_reduce(torch.ones(1 << 18))


def before_last_step():
    if step == steps - 1 and "hears late" in how:
        time.sleep(0.5)
    if step == steps - 1 and "unsettled" in how and rank == 1 and not os.listdir(f"{run}.killed"):
        Saves._settle = lambda *_: None
    if step == 4 and "unsettled early" in how and rank == 1 and not os.listdir(f"{run}.killed"):
        Saves._settle = lambda *_: None


def save(ck):
    here("before save")
    made = ck.save(step)
    here("after save")
    if "waits for saves" in how:
        made.durable()
    here("after durable")


def make_step(ck, training, batch):
    """What the runs of a step have returned, as texts."""
    here("replaying" if ck.replaying else "before")
    made = []
    if "schedules at the top" in how:
        training.schedule_rates()
    if "counts" in how:
        counter.total += 1
    if "average first" in how:
        training.average.update_parameters(training.net)
    if "averages at the top" in how:
        for one in own_average.tensors.values():
            one.mul_(0.9).add_(step)
    if "validates first" in how and step % 3 == 2:
        assert ck.run(validate) == dist.get_world_size()
    if "critic" in how:
        found = ck.run(training.critic_step, batch)
        made.append(found.hex() if isinstance(found, float) else "")
        here("between")
    loss = ck.run(training.step, [*batch, "labels"] if "in place" in how else batch)
    here("after run")
    if "draws" in how:
        torch.rand(1)
    if "tracks" in how:
        tracker.total += loss.item()
    return [loss.item().hex(), *made]


main()
