"""How many seconds a job has for its last save after a stop signal."""

import dataclasses
import logging
import os

from holdfast.options import Failures

_USUAL = 60.0
_MARGIN = 5.0  # seconds that a process needs to end after its last save
_TORCHRUN = 30.0  # so long torchrun waits for its workers after a signal, unless it is told

_log = logging.getLogger("holdfast")


def with_grace(failures: Failures) -> Failures:
    """The options with a `grace` that fits what has started this process.

    torchrun kills its workers some time after it has passed a signal on. Its option
    --shutdown-timeout, or the environment variable TORCH_ELASTIC_SHUTDOWN_TIMEOUT, says when; a
    worker sees only the variable.
    """
    limit = _limit_of_torchrun()
    if failures.grace is None:
        grace = _USUAL if limit is None else max(limit - _MARGIN, 1.0)
        return dataclasses.replace(failures, grace=grace)
    is_number = isinstance(failures.grace, (int, float))
    if limit is not None and is_number and failures.grace > limit:
        _log.warning("grace=%g s, and torchrun kills its workers %g s after a signal; expected at "
                     "most %g, or a longer time in TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
                     failures.grace, limit, limit - _MARGIN)
    return failures


def _limit_of_torchrun() -> float | None:
    """Seconds from a signal to the end of this process; None if torchrun did not start it."""
    # `holdfast launch` sets the variables of torchrun, too, and waits for its workers without a limit.
    if "TORCHELASTIC_RUN_ID" not in os.environ or "HOLDFAST_LAUNCH_ID" in os.environ:
        return None
    try:
        return float(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _TORCHRUN))
    except ValueError:
        return _TORCHRUN
