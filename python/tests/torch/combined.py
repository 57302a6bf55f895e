"""A training for test_combinations.py, run by `holdfast launch`. Its parts are drawn by a seed.

    combined.py SEED RUN STEPS KILLS

KILLS is a list, with commas, of rank:step:point: that rank ends itself with SIGKILL, once, when it
is there. RUN.made.R has a line for each step of rank R, with digests of all that the step has
changed, and RUN.killed a file for each kill.
"""

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
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import holdfast
from holdfast.torch.recover import crash_points

PARTS = {
    "optimizer": ["adamw", "sgd", "rmsprop", "by hand", "two groups"],
    "scheduler": ["behind", "before the update", "top of the loop", "by hand at the top", "none",
                  "plateau"],
    "loader": ["holdfast", "resumable", "not given", "read in the step"],
    "hook": ["none", "fp16", "powerSGD", "clips"],
    "extra": ["none", "tracks before the update", "keeps gradients", "momentum encoder",
              "draws behind the step", "draws at the top", "draws at both", "codebook", "scaler",
              "micro batches", "own generator", "other generators", "assigned buffer", "history"],
    "norm": ["none", "batch norm"],
    "average": ["none", "behind the update", "top of the loop", "by data before the update"],
    "ranks": [2, 2, 3],
    "table": ["none", "mask", "unsaved mask", "written", "written by data", "grows", "made in the first step",
              "of each rank", "written by rank 0"],
    "syncs": ["none", "parameters by data", "parameters of rank 0 by data", "averages a table"],
}
LARGE = 1 << 18  # elements of a table: 2 MiB
POINTS = ["top", "forward", "backward", "gate", "committed", "after update", "end", "after step"]
WIDTH = 8


def draw(seed):
    """The parts of the training of a seed."""
    dice = random.Random(seed)
    return {part: dice.choice(choices) for part, choices in PARTS.items()}


class Tracker:
    """An object of the user's own."""

    def __init__(self):
        self.seen, self.history = 0.0, []

    def state_dict(self):
        return {"seen": self.seen, "history": list(self.history)}

    def load_state_dict(self, state):
        self.seen, self.history = state["seen"], list(state["history"])


class Training:
    """The objects of one rank, and its step."""

    def __init__(self, parts, here):
        self.parts, self.here, self.step_number = parts, here, -1
        self.noise = torch.zeros(WIDTH)
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(2 * WIDTH) if parts["norm"] == "batch norm" else nn.Identity()
        self.net = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), norm, nn.Dropout(0.1), nn.Tanh(),
                                 nn.Linear(2 * WIDTH, 1))
        self._add_table()
        self.average = None if parts["average"] == "none" else AveragedModel(self.net, use_buffers=True)
        if parts["extra"] == "assigned buffer":
            self.net.register_buffer("last", torch.zeros(WIDTH))
        self.generator = torch.Generator().manual_seed(7 + dist.get_rank())
        self.twin = nn.Linear(WIDTH, 2 * WIDTH).requires_grad_(False)  # not trained by gradients
        self.model = DistributedDataParallel(self.net, broadcast_buffers=parts["table"] != "of each rank")
        self._add_hook()
        self.optimizer = self._make_optimizer()
        self.scheduler = None
        if parts["scheduler"] in ("behind", "before the update", "top of the loop"):
            self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.95)
        if parts["scheduler"] == "plateau":
            self.scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=0)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3) \
            if parts["extra"] == "scaler" else None
        self.tracker = Tracker()
        self._make_loader()
        for seed in (torch.manual_seed, random.seed, numpy.random.seed):
            seed(100 + dist.get_rank())
        next(self.net.parameters()).register_hook(lambda _: here("backward"))

    def _add_table(self):
        """A large buffer."""
        how, made = self.parts["table"], torch.randn(LARGE, dtype=torch.float64)
        if how == "of each rank":
            made += dist.get_rank()
        if how == "made in the first step" and self.parts["average"] == "none":  # averages copy all buffers
            made = None
        if how != "none":
            self.net.register_buffer("table", made, persistent=how not in ("unsaved mask", "made in the first step"))

    def _use_table(self, x):
        how = self.parts["table"]
        if how == "none":
            return x
        if how == "made in the first step" and self.net.table is None:
            self.net.table = torch.arange(LARGE, dtype=torch.float64) / LARGE
        if how == "written" or (how == "written by rank 0" and dist.get_rank() == 0):
            self.net.table.mul_(0.99).add_(float(x.mean()))
        if how == "written by data" and self.step_number >= 5:
            self.net.table.data.mul_(0.99).add_(float(x.mean()))
        if how == "grows" and self.step_number % 4 == 3 and self.parts["average"] == "none":
            self.net.table = torch.cat([self.net.table, self.net.table[:9].detach()])
        if self.parts["syncs"] == "averages a table" and self.net.table is not None:
            dist.all_reduce(self.net.table)
            self.net.table /= dist.get_world_size()
        return x + 0.1 * self.net.table[-WIDTH:].to(x)

    def _add_hook(self):
        if self.parts["hook"] == "fp16":
            self.model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        if self.parts["hook"] == "powerSGD":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1,
                                                start_powerSGD_iter=2, min_compression_rate=0.5)
            self.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def _make_optimizer(self):
        made, parameters = self.parts["optimizer"], list(self.net.parameters())
        if made == "adamw":
            return torch.optim.AdamW(parameters, lr=1e-2)
        if made == "rmsprop":
            return torch.optim.RMSprop(parameters, lr=1e-3, momentum=0.5)
        groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 3e-2}]
        return torch.optim.SGD(groups if made == "two groups" else parameters, lr=1e-2, momentum=0.9)

    def _make_loader(self):
        x = torch.randn(96, WIDTH)
        samples, how = TensorDataset(x, x.sum(1, keepdim=True)), self.parts["loader"]
        self.batches = None  # made by the first step, behind resume()
        if how == "holdfast":
            self.loader = self.given = holdfast.data.loader(samples, 6, seed=1, epochs=None)
            return
        sampler = DistributedSampler(samples, seed=2)
        plain = DataLoader(samples, 3, sampler=sampler)
        self.given = None if how == "not given" else holdfast.data.resumable(plain)
        self.loader = plain if self.given is None else self.given

    def next_batch(self):
        if self.batches is None:
            self.batches = iter(self.loader)
        batch = next(self.batches, None)
        if batch is None:
            self.batches = iter(self.loader)
            batch = next(self.batches)
        return batch

    def top(self):
        """What the loop does before ck.run()."""
        if self.parts["scheduler"] == "top of the loop":
            self.scheduler.step()
        if self.parts["scheduler"] == "by hand at the top":
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.97
        if self.parts["extra"] in ("draws at the top", "draws at both"):
            self.noise = torch.rand(WIDTH)
        if self.parts["average"] == "top of the loop":
            self.average.update_parameters(self.net)
        self.here("top")

    def step(self, batch):
        self.here("forward")
        x, y = self.next_batch() if batch is None else batch
        if self.parts["extra"] == "codebook":
            self.twin.weight.mul_(0.9).add_(x.mean(), alpha=0.1)
        if self.parts["extra"] == "own generator":
            x = x + torch.rand(WIDTH, generator=self.generator)
        if self.parts["extra"] == "other generators":
            x = x + random.random() + numpy.random.rand()
        if self.parts["extra"] == "assigned buffer":
            x = x + 0.1 * self.net.last
            self.net.last = x.detach().mean(0)
        if self.parts["extra"] == "micro batches":
            with self.model.no_sync():
                self._make_gradients(x[:2], y[:2])
            x, y = x[-2:], y[-2:]
        loss = self._make_gradients(self._use_table(x), y)
        self._before_update(loss)
        self._update()
        self.here("after update")
        if self.parts["scheduler"] == "behind":
            self.scheduler.step()
        if self.parts["average"] == "behind the update":
            self.average.update_parameters(self.net)
        if self.parts["extra"] != "keeps gradients" or self.step_number % 2:
            self.optimizer.zero_grad()
        self.here("end")
        return loss.detach()

    def _make_gradients(self, x, y):
        loss = (self.model(x + self.noise) - y).pow(2).mean() + self.twin(x).pow(2).mean()
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        return loss

    def _before_update(self, loss):
        for one in self.net.parameters():
            if self.parts["syncs"] == "parameters by data":
                dist.all_reduce(one.data)
                one.data /= dist.get_world_size()
            if self.parts["syncs"] == "parameters of rank 0 by data":
                dist.broadcast(one.data, 0)
        if self.parts["scheduler"] == "plateau":
            whole = loss.detach().clone()
            dist.all_reduce(whole)
            self.scheduler.step(whole.item())
        if self.parts["extra"] == "history":
            self.tracker.history = [*self.tracker.history[-2:], loss.item()]
        if self.parts["hook"] == "clips":
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        if self.parts["scheduler"] == "before the update":
            self.scheduler.step()
        if self.parts["extra"] == "tracks before the update":
            self.tracker.seen += 1.0
        if self.parts["average"] == "by data before the update":
            for mine, other in zip(self.average.module.parameters(), self.net.parameters()):
                mine.data.mul_(0.9).add_(other.data, alpha=0.1)
        if self.parts["extra"] == "momentum encoder":
            with torch.no_grad():
                self.twin.weight.lerp_(self.net[0].weight, 0.1)

    def _update(self):
        if self.scaler is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        elif self.parts["optimizer"] == "by hand":
            with torch.no_grad():
                for one in self.net.parameters():
                    one -= self.optimizer.param_groups[0]["lr"] * one.grad
        else:
            self.optimizer.step()

    def digest(self):
        """Digests of all that the training has, by name."""
        tensors = {**self.net.state_dict(), **dict(self.net.named_buffers()), "twin": self.twin.weight}
        if self.average is not None:
            tensors |= {f"average.{name}": one for name, one in self.average.state_dict().items()}
        for number, one in enumerate(self.net.parameters()):
            for name, slot in self.optimizer.state.get(one, {}).items():
                tensors[f"{number}.{name}"] = slot
        made = {name: None if one is None else _digest(torch.as_tensor(one).detach().numpy().tobytes())
                for name, one in tensors.items()}
        values = {"rates": [group["lr"] for group in self.optimizer.param_groups],
                  "tracker": [self.tracker.seen, self.tracker.history],
                  "generator": self.generator.get_state().tolist(),
                  "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
                  "scaler": None if self.scaler is None else self.scaler.state_dict()}
        return made | {name: _digest(repr(value).encode()) for name, value in values.items()}


def _digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def main():
    seed, run, steps, kills = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].split(",")
    rank = int(os.environ["RANK"])
    Path(f"{run}.killed").mkdir(exist_ok=True)

    def here(point):
        kill = f"{rank}:{training.step_number}:{point}"
        mark = Path(f"{run}.killed") / kill
        if kill in kills and not mark.exists():
            mark.touch()
            time.sleep(0.05)  # what it has sent leaves the process
            os.kill(os.getpid(), signal.SIGKILL)

    dist.init_process_group("gloo")
    parts = draw(int(seed))
    training = Training(parts, here)
    crash_points.on_reach = here
    ck = holdfast.Checkpointer(
        run, model={"net": training.model, "twin": training.twin}, optimizer=training.optimizer,
        scheduler=training.scheduler, scaler=training.scaler, data=training.given,
        ema=training.average, objects={"tracker": training.tracker, "noise": training.generator}, every="4 steps",
        writing=holdfast.Writing(space_reserve=0))
    with open(f"{run}.made.{rank}", "a") as made:
        for step in range(ck.resume(), steps):
            training.step_number = step
            training.top()
            batch = None if parts["loader"] == "read in the step" else training.next_batch()
            loss = ck.run(training.step, batch)
            made.write(json.dumps([step, loss.item().hex(), training.digest()]) + "\n")
            made.flush()
            ck.step(step, loss=loss)
            if parts["extra"] in ("draws behind the step", "draws at both"):
                torch.rand(3)
            here("after step")
    ck.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
