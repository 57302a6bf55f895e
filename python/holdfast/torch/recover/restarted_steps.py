"""Steps under `holdfast launch` that are not made again: if a rank dies, all ranks start again.

So it is with recover=False, in the loops of other libraries, and for a second Checkpointer of one
program: the process that replaces a lost one would begin with the first.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from holdfast import _native
from holdfast.torch.loop.closing import Closing
from holdfast.torch.loop.plain_parts import PlainSteps, Resumed
from holdfast.torch.recover.worker_side import WorkerSide, current

_log = logging.getLogger("holdfast")

_THEN = "if a rank dies, all ranks start again from the newest checkpoint"


class RestartedSteps(PlainSteps):
    """Tells the launcher what it must know to start all ranks again."""

    def __init__(self, side: WorkerSide, group: Any, why: str) -> None:
        """`why` says, for a message, why a lost rank is not replaced."""
        super().__init__(group)
        self._side, self._why = side, why
        self._job: _native.Job | None = None

    def serve(self, saves: Any, rejoin: Any, leave: Any, durable: Any) -> None:
        self._side.has_checkpointer = True
        self._side.groups.end_start_up()  # no replacement will ask for it
        self._job = saves.live_job()
        saves.on_stopped = lambda: self._side.link.say("saved")
        self._side.link.events.write_to(self._job)
        self._side.link.say("plain", why=self._why, is_open=True)

    def resume(self, resume: Callable[[], Resumed], take_over: Callable[[int], int]) -> int:
        begun = resume()
        self._side.link.note_start(begun.start, in_memory=begun.in_memory, inexact=begun.inexact)
        return begun.start

    def after_step(self, function: Callable[[int, Any], None], step: int, loss: Any) -> bool:
        self._side.groups.end_start_up()
        self._side.link.note_start(step)
        self._side.link.note_step(step + 1)
        self._side.link.note_commit()
        return super().after_step(function, step, loss)

    def at_end(self, save: Callable[[], None], closing: Closing, timeout: float | None) -> None:
        super().at_end(save, closing, timeout)
        self._side.link.say("closed")

    def close(self) -> None:
        self._side.link.events.stop(self._job)
        self._job = None


def warn(side: WorkerSide, why: str, expected: str) -> None:
    """Warns, on one rank, that no rank is replaced."""
    if side.link.rank == 0:
        _log.warning("%s: %s; expected %s", why, _THEN, expected)


def without_run(options: Mapping[str, Any], library: str) -> dict[str, Any]:
    """The options of a Checkpointer whose steps another library makes.

    ValueError if they ask for recovery, which needs steps that are made by Checkpointer.run().
    """
    if options.get("recover"):
        raise ValueError(f"recover=True: {library} makes the steps, and Holdfast cannot make one "
                         "again; expected no recover=, or a loop of your own with "
                         "Checkpointer.run()")
    side = current()
    if side is not None and options.get("recover") is None and not side.has_checkpointer:
        warn(side, f"{library} makes the steps, and Holdfast cannot make one again",
             "a loop of your own with Checkpointer.run(), or recover=False to accept this")
    return {**options, "recover": False}
