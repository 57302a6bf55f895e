"""The native job behind a Checkpointer and a DCP Writer."""

import logging
import platform
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

import torch

from holdfast import _native
from holdfast.checkpoint import Tiers, duration_of, keep_of, tiers_of

_log = logging.getLogger("holdfast")


def open_job(
    run: str | PathLike[str],
    transport: _native.TcpTransport | None,
    *,
    every: str,
    grace: float,
    signals: bool,
    keep: int | _native.Keep | None,
    tiers: Tiers,
    ring: int,
    backpressure: str,
    in_flight: int,
    read_back: bool,
    incremental: bool,
    compress: int,
    space_reserve: int,
    direct: bool,
    guard: str,
    timeout: float,
    fail_after: str | float | None = None,
    schedule: Mapping[str, Any] | None = None,
    allow_unreachable_tiers: bool = False,
) -> _native.Job:
    """Opens it on all ranks together; the keywords are those of Checkpointer."""
    return _native.Job(
        run, transport, every=every, grace=grace, signals=signals, keep=keep_of(keep),
        tiers=tiers_of(tiers), ring=ring, backpressure=backpressure, in_flight=in_flight,
        read_back=read_back, incremental=incremental, compress=compress,
        space_reserve=space_reserve, direct=direct, guard=guard, agree_within=timeout,
        fail_after=duration_of(fail_after),
        software={"holdfast": _native.version, "torch": torch.__version__,
                  "python": platform.python_version()},
        schedule=dict(schedule or {}), allow_unreachable_tiers=allow_unreachable_tiers,
    )


def complete(job: _native.Job, make: Callable[[], tuple[Any, Any]]) -> None:
    """Gives the save that has begun its objects: of all ranks, and of this one.

    Or says that there are none, if `make` fails: the other ranks wait for them.
    """
    try:
        job.objects(*make())
    except BaseException as error:
        job.no_objects(f"{type(error).__name__}: {error}")
        raise


def warn(job: _native.Job) -> None:
    """Logs what went wrong since the last call and stopped nothing, and what tiers removed."""
    for sentence in job.take_warnings():
        _log.warning("%s", sentence)
    for sentence in job.take_notes():
        _log.info("%s", sentence)
