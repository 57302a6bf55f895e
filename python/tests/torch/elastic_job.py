"""A training for the tests of changes of the configuration, run by `holdfast launch`:

    elastic_job.py RUN FIRST PLAN STEPS KILLS HOW...

FIRST is the configuration at first, PLAN a list, with semicolons, of others that rank 0 asks for one after
the other. The job ends three steps behind the last one, or after STEPS. KILLS is a list, with commas,
of worker:point:number: that worker ends itself with SIGKILL when it is there for that time. RUN.steps.W has
a line for each step of worker W: the step, the configuration, the loss, the samples. RUN.bits has all
tensors before and after each change, as each worker holds them. HOW are words for what it does else (HOW
below).
"""

import faulthandler
import json
import os
import signal
import sys
import time
from argparse import Namespace
from pathlib import Path

import torch
import torch.distributed as dist

import holdfast
from holdfast.resize.parallel import Parallel
from holdfast.torch.recover import crash_points

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
import train_gpt

ARGS = Namespace(width=32, head=8, layers=4, dropout=0.0, context=16, batch=24, device="cpu")

HOW = {
    "raises": "build() raises on worker 1 for tp=1,pp=2,dp=2",
    "forgets": "build() makes a tensor that is no buffer",
    "other model": "build() makes a smaller model in a change",
    "plain data": "the loader is a DataLoader of torch",
    "saves": "it saves after step 90, so that a job that is started again begins there",
    "is stopped": "the launcher gets SIGTERM when worker 0 has built its new model",
    "scaler": "a GradScaler, and two processes that read data",
}


class Model(train_gpt.GPT):
    """With buffers that no state_dict has, and that count."""

    def __init__(self, args):
        super().__init__(args)
        self.register_buffer("table", torch.arange(args.width) / args.width, persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        if "forgets" in how and torch.get_default_device().type == "meta":
            self.forgotten = torch.zeros(3)

    def forward(self, x):
        self.seen += 1
        return super().forward(x) + 0 * self.table[0]


class Numbered(train_gpt.Windows):
    """Each sample with its number."""

    def __getitem__(self, index):
        return (*super().__getitem__(index), index)


def build(mesh):
    is_change = torch.get_default_device().type == "meta"
    if "raises" in how and is_change and mesh.shape == (2, 2, 1) and worker == 1:
        raise ValueError("there is no such layer")
    args = Namespace(**{**vars(ARGS), "width": 16}) if "other model" in how and is_change else ARGS
    model = train_gpt.cut(Model(args), mesh)
    return {"model": model, "schedule": train_gpt.pipeline(model, mesh, args) if mesh.shape[0] > 1 else None}


run, first, plan, steps, kills, *how = sys.argv[1:]
steps, plan = int(steps), [one for one in plan.split(";") if one]
assert set(how) <= set(HOW), how
worker = int(os.environ["RANK"])
reached = {}
described = [None]


def on_reach(point):
    reached[point] = reached.get(point, 0) + 1
    if f"{worker}:{point}:{reached[point]}" in kills.split(","):
        Path(f"{run}.killed.{worker}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if (point, worker) == ("change built", 0) and "is stopped" in how:
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(0.5)  # until the signal has come
    if point in ("change described", "change committed"):
        note_bits(point == "change described")


def note_bits(is_before):
    """Keeps all tensors that this worker holds."""
    state, link = vars(ck).get("_state"), job._member._side.link
    if state is None or (not is_before and (state is described[0] or worker not in link.members)):
        return  # the worker has no part in what follows
    described[0] = state
    Path(f"{run}.bits").mkdir(exist_ok=True)
    held = {name: (tuple(piece.shape), piece.box.extents, piece.tensor.clone())
            for piece, name in state.saved_pieces()}
    what = "before" if is_before else "after"
    torch.save(held, f"{run}.bits/{link.announced:03}.{what}.{worker}")


crash_points.on_reach = on_reach
faulthandler.register(signal.SIGUSR2)  # says where a process is that hangs
torch.set_num_threads(1)  # many processes share few cores
torch.manual_seed(0)
job = holdfast.Elastic(build, first, backend="gloo", sizes={3: "dp=3", 2: "pp=2", 1: "dp=1"})
named = dict(job.model.named_parameters())
optimizer = torch.optim.AdamW([{"params": [p for p in named.values() if p.dim() > 1]},
                               {"params": [p for p in named.values() if p.dim() < 2], "weight_decay": 0.0}],
                              lr=1e-3, foreach=False)
warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=20)
scaler = torch.amp.GradScaler("cpu", growth_interval=5) if "scaler" in how else None
data = Numbered(train_gpt.TEXT.read_bytes()[:4000], ARGS.context)
if "plain data" in how:
    loader = torch.utils.data.DataLoader(data, 24)
else:
    loader = holdfast.data.loader(data, ARGS.batch, seed=0, last="join", elastic=job,
                                  num_workers=2 if "scaler" in how else 0)
ck = holdfast.Checkpointer(run, model=job, optimizer=optimizer, scheduler=warm_up, scaler=scaler, data=loader,
                           every="never")


def train(x, y):
    loss = train_gpt.backward(job.model, job.schedule, x, y)
    if loss is not None:
        loss *= getattr(loader, "weight", 1.0)
        dist.all_reduce(loss, group=job.mesh.get_group("dp"))
        loss /= job.mesh.shape[1]
    optimizer.step()
    warm_up.step()
    optimizer.zero_grad()
    return loss


start = ck.resume()
changed_at, parallel, wanted = start - 1, job.parallel, Path(f"{run}.wanted")
last = str(Parallel.parse(plan[-1])) if plan else ""
for step, (x, y, samples) in zip(range(start, steps), loader):
    loss = ck.run(train, x, y)
    with open(f"{run}.steps.{worker}", "a") as file:
        print(json.dumps([step, job.parallel, None if loss is None else loss.item().hex(),
                          samples.tolist(), os.getpid()]), file=file)
    number = int(wanted.read_text() or 0) if wanted.exists() else 0
    if dist.get_rank() == 0 and number < len(plan) and step - changed_at == 1:
        wanted.write_text(str(number + 1))
        job.resize(plan[number])
    time.sleep(0.02)
    ck.step(step, loss=loss)
    if "saves" in how and step == 90:
        ck.save(step).durable()
    if job.parallel != parallel:
        changed_at, parallel = step, job.parallel
    elif parallel == last and step - changed_at == 3 and number == len(plan):
        break
ck.close(save="scaler" not in how)
Path(f"{run}.end.{worker}").write_text(json.dumps([len(os.listdir("/proc/self/fd")),
                                                  len(os.listdir("/proc/self/task"))]))
