"""Runs recovered.py under `holdfast launch`, and compares what a job with deaths has left with what
one without has."""

import contextlib
import fcntl
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from ranks import start

import holdfast

SCRIPT = Path(__file__).parent / "recovered.py"
RANKS = {"ddp": 3, "hsdp": 4, "fsdp": 3, "tensor": 2, "pipeline": 4, "sharded": 4, "stages": 3}


def launch(arguments, *, ranks, said, timeout=180):
    """Runs `holdfast launch` in a forked process, in which torch is already imported.

    Returns its exit code, None if it took too long, and what it has written to the file `said`, then with
    the stacks of all its processes.
    """
    command = ["-n", str(ranks), *map(str, arguments)]
    process, code = begin_launch(command, said), None
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(timeout)
    if code is None:
        tell_stacks(process.pid)
        process.send_signal(signal.SIGTERM)  # so that its workers end, too
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
    return code, Path(said).read_text()


def tell_stacks(launcher):
    """Has a launcher that begin_launch() has begun, and its processes, print where they are."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text()
    for pid in [launcher, *map(int, children.split())]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)
    time.sleep(2)


def begin_launch(command, said, variables=()):
    """Begins `holdfast launch` in the same way. Returns the process."""
    return start(_launch, [str(one) for one in command], str(said), dict(variables))


def _launch(command, said, variables):
    from holdfast.launch import __main__ as program

    # As the launcher has it where torch is not imported yet. Threads of OpenMP that wait for each other on
    # too few cores make a run many times as long.
    torch.set_num_threads(1)
    out = os.open(said, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.setsid()
    os.environ.update(variables)
    logging.getLogger().handlers.clear()  # those of pytest
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.argv = ["holdfast launch", *command]
    return program.main()


class Ran:
    """What a run has left."""

    def __init__(self, kind, run, steps, kills=(), how=(), ranks=None, timeout=180):
        self.kills = list(kills)
        ranks = range(ranks or RANKS[kind])
        self.code, self.said = launch([SCRIPT, kind, run, steps, ",".join(kills), *how],
                                      ranks=len(ranks), said=f"{run}.said", timeout=timeout)
        lines = [[json.loads(line) for line in _text(f"{run}.losses.{rank}").splitlines()]
                 for rank in ranks]
        self.losses = [{step: (loss, samples) for step, loss, samples, _ in own} for own in lines]
        # The steps that each process has made, in that order.
        self.steps = [{pid: [step for step, *_, other in own if other == pid] for *_, pid in own} for own in lines]
        self.pids = [list(dict.fromkeys(pid for *_, pid in own)) for own in lines]
        self.end = [json.loads(_text(f"{run}.end.{rank}") or "{}") for rank in ranks]
        killed = Path(f"{run}.killed")
        self.killed = {one.name for one in killed.iterdir()} if killed.exists() else set()

    def check(self, whole, islands=()):
        """Fails unless it has the bits of a run in which nobody died, and lost no process else.

        Of islands, all ranks are started again if one dies.
        """
        assert self.code == 0, self.said
        assert self.killed == set(self.kills), self.said
        for rank, (own, expected) in enumerate(zip(self.losses, whole.losses, strict=True)):
            other = [step for step in own if own[step] != expected[step]]
            assert not other, f"rank {rank}: {other}: {own[other[0]]} is not {expected[other[0]]}\n" \
                              f"{self.said}"
            # A rank that died after its update has not written that loss.
            assert len(expected) - len(own) <= len(self.kills)
        self.check_end(whole)
        assert "holdfast: all ranks start again" not in self.said, self.said
        assert "not exact" not in self.said, self.said
        for rank, made in enumerate(self.steps):
            for pid, own in made.items():
                assert own == [*range(own[0], own[0] + len(own))], f"rank {rank}: process {pid} repeats steps: {own}"
        for rank, pids in enumerate(self.pids):
            together = next((one for one in islands if rank in one), [rank])
            assert len(pids) <= 1 + sum(int(kill.partition(":")[0]) in together for kill in self.kills)

    def check_restart(self, whole, why):
        """Fails unless all ranks have started again, for that reason, and ended with its bits."""
        assert self.code == 0, self.said
        assert self.killed == set(self.kills), self.said
        assert "start again from the newest checkpoint" in self.said and why in self.said, self.said
        self.check_end(whole)

    def check_end(self, whole):
        """Fails unless it has ended with the same bits."""
        for rank, (own, expected) in enumerate(zip(self.end, whole.end, strict=True)):
            other = [name for name in {**expected, **own} if own.get(name) != expected.get(name)]
            assert not other, f"rank {rank}: other bits: {other}\n{self.said}"


class Whole:
    """Runs in which nobody dies. The processes of one session of tests share them."""

    def __init__(self, factory):
        base = factory.getbasetemp()
        self._folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def __call__(self, kind, steps, how=(), ranks=None):
        name = "-".join(["whole", kind, str(steps), *sorted(how), str(ranks)]).replace(" ", "_")
        kept = self._folder / f"{name}.pickle"
        with open(self._folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                ran = Ran(kind, self._folder / name, steps, how=how, ranks=ranks)
                assert ran.code == 0, ran.said
                kept.write_bytes(pickle.dumps(ran))
        return pickle.loads(kept.read_bytes())


def program():
    """The path of the program `holdfast`."""
    return Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"


def _text(path):
    with contextlib.suppress(FileNotFoundError):
        return Path(path).read_text()
    return ""
