"""The native job behind a Checkpointer and a DCP Writer."""

import dataclasses
import logging
import platform
from os import PathLike
from typing import Any

import torch

from holdfast import _native
from holdfast.checkpoint import Tiers, open_tiers, parse_duration, parse_keep
from holdfast.options import Failures, Schedule, Writing

# The native job has no word for "never by itself": something else than a policy decides.
NEVER = "1000000000000 steps"

_log = logging.getLogger("holdfast")


def open_job(
    run: str | PathLike[str],
    transport: _native.TcpTransport | None,
    *,
    every: str,
    keep: int | _native.Keep | None,
    tiers: Tiers,
    writing: Writing,
    failures: Failures,
    schedule: Schedule | None = None,
    allow_unreachable_tiers: bool = False,
) -> _native.Job:
    """Opens the job on all ranks together. The options are those of a Checkpointer."""
    return _native.Job(
        run, transport, every=every, keep=parse_keep(keep), tiers=open_tiers(tiers),
        grace=failures.grace, signals=failures.signals, agree_within=failures.timeout,
        fail_after=parse_duration(failures.fail_after), **dataclasses.asdict(writing),
        software={"holdfast": _native.version, "torch": torch.__version__,
                  "python": platform.python_version()},
        schedule=_as_dict(schedule), allow_unreachable_tiers=allow_unreachable_tiers,
    )


def log_messages(job: _native.Job) -> None:
    """Logs failures since the last call that did not stop training, and what tiers removed."""
    for sentence in job.take_warnings():
        _log.warning("%s", sentence)
    for sentence in job.take_notes():
        _log.info("%s", sentence)


def _as_dict(schedule: Schedule | None) -> dict[str, Any]:
    found = {} if schedule is None else vars(schedule)
    lists = ("milestones", "durable_steps")
    return {name: list(value) if name in lists and value is not None else value
            for name, value in found.items()}
