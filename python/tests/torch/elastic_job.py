"""A training for the tests of changes of the configuration, run by `holdfast launch`:

    elastic_job.py RUN FIRST PLAN STEPS KILLS HOW...

FIRST is the configuration at first, PLAN a list, with semicolons, of others that rank 0 asks for one after
the other. The job ends some steps behind the last answer, or after STEPS. KILLS is a list, with commas,
of worker:point:number: that worker ends itself with SIGKILL when one of its processes is there for that
time; once. RUN.steps.W has a line for each step of worker W: the step, the configuration, the loss, the
samples, its process, and which generation of the job that is. RUN.bits has all tensors before and after each
change, as each worker holds them. RUN.changed.W has a line for each change that worker W has seen: the step, what
is not exact behind it, and what the old model says if it is called. HOW are words for what it does else (HOW below).
"""

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from elastic_models import ARGS, data_of, make_step, then_average, training_of

import holdfast
from holdfast import _native
from holdfast.resize.parallel import Parallel
from holdfast.torch.elastic import late_memory
from holdfast.torch.recover import crash_points
from holdfast.torch.state.module_names import by_key

HOW = {
    "raises": "build() raises on worker 1 for tp=1,pp=2,dp=2",
    "forgets": "build() makes a tensor that is no buffer",
    "other model": "build() makes a smaller model in a change to stages",
    "plain data": "the loader is a DataLoader of torch",
    "resumable data": "the loader is a DataLoader of torch that holdfast.data.resumable follows",
    "naive": "behind a change, the data is read from its beginning",
    "1f1b": "pipelines have the schedule 1F1B",
    "average": "build() makes an average of the model, too, which has no place in any optimizer",
    "sleeps": "worker 3 sleeps before it has come to the Checkpointer",
    "dies early": "worker 3 ends itself, once, before it can get a place",
    "saves": "it saves after step 90 and after the last one, so that a job that is started again begins there",
    "is stopped": "the launcher gets SIGTERM when worker 0 has built its new model",
    "loses its host": "worker 2 and its launcher are killed at the gate of step 7",
    "no buffers": "the model has no buffers",
    "vision": "a ResNet with a GradScaler, and two processes that read data",
    "hugging face": "a Llama of Hugging Face",
    "counts": "RUN.counts.W has what each worker has moved, written and held",
    "no bits": "RUN.bits is not written",
    "parts": "the state moves in parts",
    "files": "the samples are the lines of RUN.jsonl",
    "mixed": "the samples are a mixture of the lines of RUN.jsonl and of the samples of the model",
}
ENOUGH = 20.0  # seconds after which an answer does not come any more


run, first, plan, steps, kills, *how = sys.argv[1:]
steps, plan, kills = int(steps), [one for one in plan.split(";") if one], kills.split(",")
assert set(how) <= set(HOW), how
worker = int(os.environ["RANK"])
reached = {}
described = [None]


def on_reach(point):
    reached[point] = reached.get(point, 0) + 1
    if point == "gate" and "change committed" in reached:
        on_reach("gate after a change")
    lost = Path(f"{run}.lost")
    if (point, worker, reached[point]) == ("gate", 2, 8) and "loses its host" in how and not lost.exists():
        lost.touch()
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    if (point, worker) == ("change built", 0) and "is stopped" in how:
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(0.5)  # until the signal has come
    if point == "change described":
        note_bits("before")
        note_count(before=written())
    elif point == "change committed":
        note_count(after=written())
        note_bits("after")
    kill = f"{worker}:{point}:{reached[point]}"
    mark = Path(f"{run}.killed.{kill.replace(' ', '-')}")
    if kill in kills and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def note_bits(what):
    """Keeps all tensors that this worker holds."""
    state, link = vars(ck).get("_state"), job._member._side.link
    if "no bits" in how or state is None:
        return
    if what == "after" and (state is described[0] or link.slot not in link.members):
        return  # the worker has no part in what follows
    described[0] = state
    Path(f"{run}.bits").mkdir(exist_ok=True)
    held = {name: (tuple(piece.shape), piece.box.extents, piece.tensor.clone())
            for piece, name in state.saved_pieces()}
    torch.save(held, f"{run}.bits/{link.incarnation:03}.{link.announced:03}.{what}.{link.slot}")


def note_count(**counted):
    if "counts" in how:
        with open(f"{run}.counts.{worker}", "a") as file:
            print(json.dumps(counted), file=file)


def written():
    """How many bytes this process has caused to be written to disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


class Malloc(ctypes.Structure):
    """What glibc tells of its memory."""

    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


def held():
    """What must not grow: the descriptors, the threads, the memory in use in kB, hooks, and the size of the
    process in kB, which has gaps between what is in use, too."""
    gc.collect()
    tell = ctypes.CDLL(None).mallinfo2
    tell.restype = Malloc
    memory = tell()
    return [len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")),
            (memory.uordblks + memory.hblkhd) // 1024,
            len(optimizer._optimizer_load_state_dict_post_hooks) + depth_of(sys.excepthook),
            next(int(line.split()[1]) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()
                 if line.startswith("Pss:"))]


def depth_of(hook):
    """How many functions call each other if an exception is not caught."""
    inner = [one.cell_contents for one in getattr(hook, "__closure__", None) or () if callable(one.cell_contents)]
    return 1 + max(map(depth_of, inner), default=0)


def counted_change(*given):
    moved = change_layout(*given)
    note_count(received=moved.received, sent=moved.sent, moved=moved.moved, bound=moved.bound,
               copied=moved.copied, kept=moved.kept)
    return moved


def answers():
    """How many requests have got their last answer."""
    found = 0
    for path in Path(run, "control").glob("answer-*"):
        with contextlib.suppress(OSError, ValueError):
            found += json.loads(path.read_text())["state"] in ("made", "refused")
    return found


class Asking:
    """Rank 0 asks for one configuration after the other, whoever rank 0 is. RUN.wanted and RUN.last are
    read by all."""

    def __init__(self):
        self._wanted, self._last = Path(f"{run}.wanted"), Path(f"{run}.last")

    def has_ended(self, step, changed_at):
        if dist.get_rank() == 0:
            self._ask(step, changed_at)
        return self._last.exists() and step >= int(self._last.read_text() or steps)

    def _ask(self, step, changed_at):
        number = int(self._wanted.read_text() or 0) if self._wanted.exists() else 0
        waits = number > 0 and time.time() - self._wanted.stat().st_mtime < ENOUGH
        if answers() < number and waits or step <= changed_at or not plan:
            return
        if number < len(plan):
            write(self._wanted, number + 1)
            job.resize(plan[number])
        elif not self._last.exists() and step > changed_at + 2:
            write(self._last, step + 3)


def write(path, value):
    part = path.with_suffix(".part")
    part.write_text(str(value))
    part.rename(path)


def said_by(model):
    """What the model says if it is called."""
    try:
        next(iter(by_key(model)))[1](None)
    except Exception as error:
        return str(error)
    return "nothing"


if "counts" in how:
    # Torch keeps a record of each of the newest 2,000 calls between ranks, which takes 1 MB in 150 steps.
    os.environ["TORCH_FR_BUFFER_SIZE"] = "8"
if worker == 3 and "dies early" in how and not Path(f"{run}.died").exists():
    Path(f"{run}.died").touch()
    os.kill(os.getpid(), signal.SIGKILL)
if worker == 3 and "sleeps" in how:
    time.sleep(600)
change_layout, _native.change_layout = _native.change_layout, counted_change
crash_points.on_reach = on_reach
late_memory._SMALL = 0  # these tensors are small
faulthandler.register(signal.SIGUSR2)  # says where a process is that hangs
torch.set_num_threads(1)  # many processes share few cores
torch.manual_seed(0)
training = training_of(how, worker)
job = holdfast.Elastic(training.build, first, backend="gloo",
                       sizes={3: "dp=3", 2: "dp=2" if {"vision", "hugging face"} & {*how} else "pp=2", 1: "dp=1"},
                       in_parts="parts" in how or None)
optimizer, warm_up, scaler = training.optimizers(job)
if {"plain data", "resumable data"} & {*how}:
    loader = torch.utils.data.DataLoader(training.data, 24)
    loader = holdfast.data.resumable(loader) if "resumable data" in how else loader
else:
    loader = holdfast.data.loader(data_of(training, f"{run}.jsonl", how), ARGS.batch, seed=0, last="join", elastic=job,
                                  num_workers=2 if "vision" in how else 0)
ck = holdfast.Checkpointer(run, model=job, optimizer=optimizer, scheduler=warm_up, scaler=scaler, data=loader,
                           ema=job.average if "average" in how else None, every="never")
made = []  # the samples of the newest step
train = make_step(training, job, loader, optimizer, warm_up, scaler, made)
if "average" in how:
    train = then_average(train, job)
start = ck.resume()
changed_at, parallel, asking = start - 1, job.parallel, Asking()
link = job._member._side.link
again = None
for step, batch in zip(range(start, steps), loader):
    batch, model = batch if again is None else next(again), job.model
    loss = ck.run(train, *batch)
    with open(f"{run}.steps.{worker}", "a") as file:
        print(json.dumps([step, job.parallel, None if loss is None else loss.item().hex(), made,
                          os.getpid(), [link.incarnation, link.generation]]), file=file)
    is_last = asking.has_ended(step, changed_at)
    time.sleep(0.02)
    ck.step(step, loss=loss)
    if "saves" in how and (step == 90 or is_last):
        ck.save(step).durable()
    if job.parallel != parallel:
        changed_at, parallel = step, job.parallel
        if "naive" in how:
            again = iter(holdfast.data.loader(training.data, ARGS.batch, seed=0, last="join"))
        with open(f"{run}.changed.{worker}", "a") as file:
            print(json.dumps([step, ck.report.inexact, said_by(model)]), file=file)
    elif step == changed_at + 3:
        note_count(parallel=parallel, held=held())
    if is_last:
        break
ck.close()
