"""Runs several ranks of a job, as forked processes in which torch is already imported.

    >>> def body(rank, world, text):          # at the top level of a test module
    ...     total = torch.tensor(rank)
    ...     dist.all_reduce(total)
    ...     return int(total)
    >>> run_ranks(3, body, "any arguments")   # the ranks' results, in order
    [3, 3, 3]

Once torch has run a backward pass in a process, a process that is forked from it cannot run
another. So a separate process, the nursery, is forked when all test modules are imported and no
test has run yet, and the ranks are forked from the nursery. It finds functions by their names, so
they must be at the top level of a module. Arguments and results are pickled.
"""

import contextlib
import faulthandler
import logging
import os
import pickle
import signal
import subprocess
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor.parallel  # noqa: F401  (imported here once, before the fork)

_CONTEXT = get_context("fork")
_GRACE_S = 3.0  # time for the other ranks to report how a rank's failure reached them


class RankError(AssertionError):
    """Raised if ranks failed. The message has their tracebacks."""


def run_ranks(
    world: int, fn: Callable[..., Any], *args: Any, timeout: float = 150, backend: str = "gloo"
) -> list[Any]:
    """Runs fn(rank, world, *args) on every rank of a new process group.

    Collectives have the same timeout. If a rank fails, the others are ended shortly after, and
    RankError shows what each of them raised. With backend="" there is no process group.
    """
    job = pickle.dumps((world, fn, args, timeout, backend))
    answers = _nursery.run(job) if _nursery is not None else _run(job)
    failed = [f"rank {rank}: {text}" for rank, (good, text) in enumerate(answers) if not good]
    if failed:
        raise RankError("\n".join([f"{len(failed)} of {world} ranks failed", *failed]))
    return [pickle.loads(result) for _, result in answers]


class Nursery:
    """The process from which ranks are forked."""

    def __init__(self) -> None:
        self._pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(theirs, self._pipe))
        self._process.start()
        theirs.close()

    def run(self, job: bytes) -> list[tuple[bool, Any]]:
        self._pipe.send_bytes(job)
        return pickle.loads(self._pipe.recv_bytes())

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


class Started:
    """A process that start() has forked, with the calls of subprocess.Popen that tests need.

    A process that does not end in time prints on its standard error where its threads are.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = _ask(_poll, self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                self.send_signal(signal.SIGUSR2)
                time.sleep(1)
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(fn: Callable[..., int], *args: Any) -> Started:
    """Begins a process that calls the function and ends with the exit code that it returns."""
    return Started(_ask(_start, fn, args))


def _ask(fn: Callable[..., Any], *args: Any) -> Any:
    ((is_good, result),) = _nursery.run(pickle.dumps((0, fn, args, 0, "")))
    if not is_good:
        raise RankError(result)
    return result


_nursery: Nursery | None = None


def open_nursery() -> None:
    """Forks the nursery. Must be called before any test runs."""
    global _nursery
    if _nursery is None:
        _nursery = Nursery()


def close_nursery() -> None:
    global _nursery
    if _nursery is not None:
        _nursery.close()
    _nursery = None


def _serve(pipe: Connection, other_end: Connection) -> None:
    other_end.close()  # otherwise the nursery would not notice that the parent has ended
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            pipe.send_bytes(pickle.dumps(_run(pipe.recv_bytes())))
    os._exit(0)


def _run(job: bytes) -> list[tuple[bool, Any]]:
    world, fn, args, timeout, _ = pickle.loads(job)
    if world == 0:  # not for ranks, but for the nursery itself
        return [(True, fn(*args))]
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world):
            ours, theirs = _CONTEXT.Pipe(duplex=False)
            process = _CONTEXT.Process(target=_rank, args=(rank, job, folder, theirs))
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        answers = _collect(pipes, time.monotonic() + timeout)
        for rank, process in enumerate(processes):
            process.join(_GRACE_S if answers[rank][0] else 0)
            if process.is_alive():
                process.kill()
                process.join()
            if answers[rank] == _SILENT:
                answers[rank] = (False, f"no answer, exit code {process.exitcode}")
    return answers


_started: dict[int, Any] = {}  # processes, by their ids


def _start(fn: Callable[..., int], args: tuple[Any, ...]) -> int:
    process = _CONTEXT.Process(target=_become, args=(fn, args))
    process.start()
    _started[process.pid] = process
    return process.pid


def _become(fn: Callable[..., int], args: tuple[Any, ...]) -> None:
    faulthandler.register(signal.SIGUSR2, file=2)
    code = 1
    try:
        code = fn(*args)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def _poll(pid: int) -> int | None:
    return _started[pid].exitcode


_SILENT = (False, None)


def _collect(pipes: list[Connection], deadline: float) -> list[tuple[bool, Any]]:
    answers: list[tuple[bool, Any]] = [_SILENT] * len(pipes)
    open_pipes = {pipe: rank for rank, pipe in enumerate(pipes)}
    while open_pipes and time.monotonic() < deadline:
        for pipe in wait(list(open_pipes), max(0.0, deadline - time.monotonic())):
            rank = open_pipes.pop(pipe)  # type: ignore[call-overload]
            with contextlib.suppress(EOFError):
                answers[rank] = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
            if not answers[rank][0]:
                deadline = min(deadline, time.monotonic() + _GRACE_S)
    return answers


def _rank(rank: int, job: bytes, folder: str, pipe: Connection) -> None:
    code = 1
    try:
        answer = (True, pickle.dumps(_body(rank, job, folder)))
        code = 0
    except BaseException:  # includes SystemExit, which is a failure of the rank, too
        answer = (False, traceback.format_exc())
    pipe.send_bytes(pickle.dumps(answer))
    pipe.close()
    if code == 0 and dist.is_initialized():
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
    os._exit(code)


def _body(rank: int, job: bytes, folder: str) -> Any:
    world, fn, args, timeout, backend = pickle.loads(job)
    torch.set_num_threads(1)
    logging.getLogger("torch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="torch")
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank))
    if backend:
        dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank,
                                world_size=world, timeout=timedelta(seconds=timeout))
        # A rank that ends at once would break the connections that others still make.
        dist.barrier()
    return fn(rank, world, *args)
