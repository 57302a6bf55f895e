"""The training of bench/resize_bench.py: the GPT of examples/train_gpt.py.

    holdfast launch -n 4 --most 4 bench/resize_training.py FOLDER tp=2,pp=2
    torchrun --nproc-per-node 4 bench/resize_training.py FOLDER tp=2,pp=2
    torchrun --nproc-per-node 4 bench/resize_training.py FOLDER tp=2,pp=2 --dcp

The loop with holdfast.Elastic is the same under holdfast launch and under torchrun, where Elastic only builds.
With --dcp, it is the same training without Holdfast: torch.distributed.checkpoint saves and loads it. Each process
writes a line to FOLDER/steps.PID after each step: the step, when it ended (on the clock that all processes of
a machine share), the rank, the number of ranks and the samples of its batch. If FOLDER/stop has a number, a
training with --dcp saves after that step and ends; the others are stopped by SIGTERM.

--pace is the time for which each step sleeps, for a batch on one replica: each of two sleeps for half of it.
It stands for the computation of devices of which this machine has too few.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh

import holdfast
from holdfast.resize.parallel import AXES, Parallel

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
from train_gpt import GPT, TEXT, Windows, backward, cut, pipeline  # noqa: E402

SIZES = argparse.Namespace(width=128, head=16, layers=4, dropout=0.0, context=16, batch=24, device="cpu",
                           ballast=0)
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)  # names of parameters, whatever the stages are


def parse() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", type=Path)
    made.add_argument("parallel")
    made.add_argument("--steps", type=int, default=1_000_000)
    made.add_argument("--pace", type=float, default=0.2)
    made.add_argument("--every", default="never", help="how often to save")
    made.add_argument("--mtbf", type=float, help="seconds between failures of the job, if known")
    made.add_argument("--save-at", type=pairs, default={}, help="steps to save: 10,25")
    made.add_argument("--shrink", type=pairs, default={}, help="behind which step to ask for which size: 75:2,112:1")
    made.add_argument("--ballast", type=int, default=0, help="bytes of the state beside the model")
    made.add_argument("--handover", action="store_true", help="the state stays in memory when it is stopped")
    made.add_argument("--dcp", action="store_true")
    return made.parse_args()


def pairs(text: str) -> dict[int, str]:
    """`75:2,112:1` as numbers with texts."""
    return {int(one.partition(":")[0]): one.partition(":")[2] for one in text.split(",") if one}


def build(mesh):
    """The model for a mesh with the axes pp, dp and tp."""
    made = GPT(SIZES)
    if SIZES.ballast:
        made.ballast = torch.nn.Parameter(torch.zeros(SIZES.ballast // 4), requires_grad=False)
    model = cut(made, mesh)
    return {"model": model, "schedule": pipeline(model, mesh, SIZES) if mesh.shape[0] > 1 else None}


def optimizer_for(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)


def train(model, schedule, optimizer, mesh, pace: float, x, y):
    """One step. Returns the loss of all replicas, or None on a rank that does not have it."""
    time.sleep(pace / mesh.shape[1] / (mesh.shape[0] * mesh.shape[2]))
    loss = backward(model, schedule, x, y)
    if loss is not None:
        dist.all_reduce(loss, group=mesh.get_group("dp"))
        loss /= mesh.shape[1]
    optimizer.step()
    optimizer.zero_grad()
    return loss


class Lines:
    """Writes a line after each step."""

    def __init__(self, folder: Path) -> None:
        self._file = open(folder / f"steps.{os.getpid()}", "a", buffering=1)

    def write(self, step: int, mesh) -> None:
        pp, dp, tp = mesh.shape
        print(step, time.monotonic(), dist.get_rank(), pp * dp * tp, file=self._file)


def with_holdfast(given: argparse.Namespace) -> None:
    job = holdfast.Elastic(build, given.parallel, device="cpu", backend="gloo",
                           sizes={3: "dp=3", 2: "dp=2", 1: "dp=1"})
    optimizer = optimizer_for(job.model)
    loader = holdfast.data.loader(Windows(TEXT.read_bytes(), SIZES.context), SIZES.batch, last="join", elastic=job)
    ck = holdfast.Checkpointer(given.folder / "run", model=job, optimizer=optimizer, data=loader, every=given.every,
                               handover=given.handover, schedule=holdfast.Schedule(mtbf=given.mtbf))

    def step_of(x, y):
        return train(job.model, job.schedule, optimizer, job.mesh, given.pace, x, y)

    lines = Lines(given.folder)
    for step, batch in zip(range(ck.resume(), given.steps), loader):
        loss = ck.run(step_of, *batch)
        lines.write(step, job.mesh)
        ck.step(step, loss=loss)
        if step in given.save_at:
            ck.save(step, loss=loss)
        if step in given.shrink and dist.get_rank() == 0:
            job.resize(f"dp={given.shrink[step]}")
    ck.close()


def with_dcp(given: argparse.Namespace) -> None:
    dist.init_process_group("gloo")
    parallel = Parallel.parse(given.parallel)
    mesh = init_device_mesh("cpu", parallel.shape, mesh_dim_names=AXES)
    model, schedule = build(mesh).values()
    optimizer = optimizer_for(model)
    kept, stop = given.folder / "dcp", given.folder / "stop"
    step = 0
    if (kept / ".metadata").exists():
        step = load(model, optimizer, kept) + 1
    data, lines = Windows(TEXT.read_bytes(), SIZES.context), Lines(given.folder)
    share = SIZES.batch // parallel.dp
    while True:
        first = step * SIZES.batch + mesh.get_local_rank("dp") * share
        x, y = (torch.stack(part) for part in zip(*(data[one % len(data)] for one in range(first, first + share))))
        train(model, schedule, optimizer, mesh, given.pace, x, y)
        lines.write(step, mesh)
        if stop.exists() and int(stop.read_text()) == step:
            states = get_state_dict(model, optimizer, options=FLAT)
            dcp.save({"model": states[0], "optimizer": states[1], "step": step}, checkpoint_id=kept)
            return
        step += 1


def load(model, optimizer, kept: Path) -> int:
    """Loads what was saved there. Returns the step."""
    states = get_state_dict(model, optimizer, options=FLAT)
    state = {"model": states[0], "optimizer": states[1], "step": 0}
    dcp.load(state, checkpoint_id=kept)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"],
                   options=FLAT)
    return state["step"]


if __name__ == "__main__":
    torch.set_num_threads(1)  # many processes share few cores
    torch.manual_seed(0)
    options = parse()
    SIZES.ballast = options.ballast
    (with_dcp if options.dcp else with_holdfast)(options)
