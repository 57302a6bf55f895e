"""A small training for the tests of `holdfast launch`:

    launched.py RUN STEPS PACE [RANK:STEP:WHAT ...]

When a rank comes to a step, it does WHAT there, in the middle of the step and once for each process
that began the job: `stop` (SIGSTOP), `kill` (SIGKILL), `sleep` (for ever), `fail` (ValueError, every
time), `other` (a collective call that the others do not make), `preempt` (has the launcher stop the job,
and dies before it has saved), `alone` (kills the launcher and itself), `leave` and `leave143` (ends with
that code, every time). As a STEP, `end` is between the last step and close(). RUN.pids has the process ids of all
ranks, RUN.losses.R a line for each step of rank R, and RUN.end.R what it ends with. The environment
variable HANDOVER names a folder in memory in which a job that stops leaves its state, and SLOW says how
many seconds longer a replacement takes to start.
"""

import faulthandler
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast

run, steps, pace = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
events = [event.split(":") for event in sys.argv[4:]]
rank = int(os.environ["RANK"])


def do(what):
    if what == "fail":
        raise ValueError("this batch is bad")
    if what.startswith("leave"):
        sys.exit(int(what.removeprefix("leave") or 0))
    mark = Path(f"{run}.did-{what}-{rank}-{step}")
    if mark.exists():
        return
    mark.touch()
    if what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "sleep":
        time.sleep(1000)
    elif what == "preempt":
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "alone":
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "other":
        dist.all_reduce(torch.zeros(3))


def do_events(where):
    for who, when, what in events:
        if (who, when) == (str(rank), str(where)):
            do(what)


def train(batch):
    time.sleep(pace)
    loss = (model(batch[0]) - batch[1]).pow(2).mean()
    loss.backward()
    do_events(step)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


faulthandler.register(signal.SIGUSR2)
with open(f"{run}.pids", "a") as pids:
    pids.write(f"{os.getpid()}\n")
if os.environ["HOLDFAST_GENERATION"] != "0":
    time.sleep(float(os.environ.get("SLOW", 0)))
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
inputs = torch.randn(96, 8)
loader = holdfast.data.loader(torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True)), 12,
                              seed=1, epochs=None)
torch.manual_seed(rank)
ck = holdfast.Checkpointer(run, model=model, optimizer=optimizer, data=loader, every="1000 steps",
                           handover=os.environ.get("HANDOVER", False),
                           writing=holdfast.Writing(space_reserve=0))
with open(f"{run}.losses.{rank}", "a") as losses:
    for step, batch in zip(range(ck.resume(), steps), loader):
        loss = ck.run(train, batch)
        losses.write(json.dumps([step, loss.item().hex(), os.getpid()]) + "\n")
        losses.flush()
        ck.step(step, loss=loss)
do_events("end")
ck.close()
made = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters()))
Path(f"{run}.end.{rank}").write_text(made.hexdigest())
dist.destroy_process_group()
