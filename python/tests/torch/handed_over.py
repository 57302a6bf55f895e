"""A training whose updates depend on each element alone, so that it ends with the same bits on any
number of ranks and with any cut. For the tests of `handover=`; under torchrun:

    handed_over.py RUN MEMORY

Each rank adds a line "START WORLD" to RUN.starts when it has resumed. It trains until the file
RUN.steps says after how many steps to end, and RUN.end.R has digests of what rank R ends with.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from training import digest

import holdfast

WIDTH, INNER = 24, 36
PACE = 0.05  # seconds that a step takes under torchrun


def make_model(dp, tp):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, INNER), nn.ReLU(), nn.Linear(INNER, WIDTH))
    if dp == tp == 1:
        return model
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    if tp > 1:
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return fully_shard(model, mesh=mesh["dp"]) if dp > 1 else model


def update(model, optimizer, step):
    """An update by gradients that depend on the step and the place of the element."""
    for number, parameter in enumerate(model.parameters()):
        whole = torch.sin(torch.arange(parameter.numel()) * (number + 1.0) + step)
        whole = whole.reshape(parameter.shape)
        if isinstance(parameter, DTensor):
            whole = distribute_tensor(whole, parameter.device_mesh, parameter.placements)
        parameter.grad = whole
    optimizer.step()


def gathered(model, optimizer):
    """Digests of the whole tensors, by name."""
    found = {}
    for name, parameter in model.named_parameters():
        found[name] = parameter
        found |= {f"{name}.{slot}": value for slot, value in optimizer.state[parameter].items()}
    whole = {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in found.items()}
    return {name: digest(tensor.detach()) for name, tensor in whole.items()}


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)


def undisturbed(steps):
    """What a training ends with that nobody stops."""
    model = make_model(1, 1)
    optimizer = make_optimizer(model)
    for step in range(steps):
        update(model, optimizer, step)
    return gathered(model, optimizer)


class Training:
    def __init__(self, run, memory, dp=1, tp=1, **options):
        self.model = make_model(dp, tp)
        self.optimizer = make_optimizer(self.model)
        self.checkpointer = holdfast.Checkpointer(
            run, model=self.model, optimizer=self.optimizer, handover=memory,
            writing=holdfast.Writing(space_reserve=0), **({"every": "never"} | options))

    def train(self, start, steps):
        for step in range(start, steps):
            update(self.model, self.optimizer, step)
            self.checkpointer.step(step)


def stop():
    """Asks this process to stop, as a scheduler does."""
    os.kill(os.getpid(), signal.SIGTERM)


def main(run, memory):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    training = Training(run, memory, world)
    step = start = training.checkpointer.resume()
    with open(f"{run}.starts", "a") as starts:
        starts.write(f"{start} {world}\n")
    while not os.path.exists(f"{run}.steps") or step < int(Path(f"{run}.steps").read_text()):
        time.sleep(PACE)
        training.train(step, step + 1)
        step += 1
    Path(f"{run}.end.{rank}").write_text(json.dumps(gathered(training.model, training.optimizer)))
    training.checkpointer.close(save=False)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
