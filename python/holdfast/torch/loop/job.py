"""The native job behind a Checkpointer and a DCP Writer."""

import gc
import platform
from os import PathLike

import torch

from holdfast import _native
from holdfast.checkpoint import Tiers, open_tiers, parse_duration, parse_keep
from holdfast.errors import ConflictError
from holdfast.options import Failures, Resuming, Schedule, Writing


def open_job(
    run: str | PathLike[str],
    transport: _native.TcpTransport | None,
    *,
    every: str,
    keep: int | str | _native.Keep | None,
    tiers: Tiers,
    writing: Writing,
    failures: Failures,
    schedule: Schedule = Schedule(),
    resuming: Resuming = Resuming(),
    recover: bool = False,
    handover: str | None = None,
) -> _native.Job:
    """Opens the job on all ranks together. The options are those of a Checkpointer."""
    options = {
        **vars(writing), **vars(failures), **vars(schedule), "every": every,
        "keep": parse_keep(keep), "recover": recover, "tiers": open_tiers(tiers),
        "handover": handover,
        "fail_after": parse_duration(failures.fail_after),
        "allow_unreachable_tiers": resuming.allow_unreachable_tiers,
        "software": {"holdfast": _native.version, "torch": torch.__version__,
                     "python": platform.python_version()},
    }
    try:
        return _native.Job(run, transport, options)
    except ConflictError as error:
        if transport is not None or "this very process" not in str(error):
            raise
    # The Checkpointer that has the run may be garbage, as after a cell of a notebook has failed.
    gc.collect()
    return _native.Job(run, transport, options)
