"""What it costs to keep a log for a lost rank, in the first steps of a generation.

All ranks count the gates that they have passed, so that all come to the end of the trial at the same gate.
"""

import time
from typing import Any

from holdfast import _native
from holdfast.torch.recover.call_log import CallLog
from holdfast.torch.recover.updates import Updates

TRIAL = 20  # steps
MOST = 0.02  # of a step
# Seconds of a step that are never too many. In a step of less than 50 ms, 2 % are less than what a busy
# machine adds to one call.
LEAST = 0.001


class LogCost:
    """What this rank's log costs."""

    def __init__(self, log: CallLog, updates: Updates) -> None:
        self._log, self._updates = log, updates
        self._gates = 0  # that were passed since the trial began
        self._began = 0.0  # when the first of them was
        self._told: dict[str, Any] = {}  # what the event says that is not written yet
        self._has_event = False  # it was written

    def restart(self) -> None:
        """The trial begins anew. Called by all ranks together."""
        self._gates = 0

    def note_gate(self) -> None:
        """A gate was passed."""
        self._gates += 1
        if self._gates == 1:
            self._began = time.perf_counter()
            self._updates.seconds = self._log.seconds = self._log.waited = 0.0

    @property
    def is_due(self) -> bool:
        """True at the gate that ends the trial."""
        return self._gates == TRIAL

    def measure(self, kind: str) -> dict[str, Any]:
        """Seconds of a step, and what this kind of log took of them. At the gate that ends the trial."""
        took = (time.perf_counter() - self._began) / TRIAL
        cost = (self._updates if kind == "updates" else self._log).seconds / TRIAL
        self._told = {"steps": TRIAL, "seconds": cost, "step_seconds": took}
        if kind == "updates":
            self._told["bytes"] = self._updates.size
        else:
            self._told["own_seconds"] = max(0.0, took - self._log.waited / TRIAL)
            self._told["borders"] = " ".join(f"{border} {size}" for border, size in sorted(self._log.borders.items()))
        return self._told

    def write_event(self, job: _native.Job) -> None:
        """Writes what was measured into the log of events, once."""
        told, self._told = self._told, {}
        if told and not self._has_event:
            self._has_event = True
            (job.messages_kept if "borders" in told else job.updates_kept)(told)


def find_excess(told: list[dict[str, Any]], kind: str) -> str:
    """Why a kind of log costs too much, by what measure() has said on all ranks; "" if it does not."""
    # The rank that comes last to gates waits least in the one that passes updates on.
    cost = (min if kind == "updates" else max)(one["seconds"] for one in told)
    took = max(one["step_seconds"] for one in told)
    return f"to keep {kind} takes {cost / took:.1%} of a step" if cost > max(LEAST, MOST * took) else ""
