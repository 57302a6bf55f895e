"""What a worker of `holdfast launch` has from its beginning: a link to the launcher, and groups."""

import os
import time
import weakref
from typing import Any, NoReturn

from holdfast.errors import Interrupted, UnavailableError
from holdfast.launch.worker_identity import FAILED, WorkerIdentity
from holdfast.torch.recover import ddp_calls, pipelines
from holdfast.torch.recover.call_log import CallLog
from holdfast.torch.recover.group import Groups, install
from holdfast.torch.recover.link import Link


AFTER_CLOSE = "a rank died when the Checkpointer was being closed, or was closed"

_TICK = 1.0  # seconds
_LONGEST = 300  # characters of a message to the launcher

# Exceptions that may be due to another rank, or to what passes.
_MAY_PASS = (RuntimeError, OSError, UnavailableError)


class WorkerSide:
    """One for each worker process."""

    def __init__(self, identity: WorkerIdentity) -> None:
        self.groups = Groups(CallLog(identity.log), f"{identity.incarnation}.{identity.generation}")
        if identity.is_replacement:
            self.groups.mode = "replay"
        elif identity.rank < 0:
            self.groups.mode = "silent"
        self.has_checkpointer = False  # this process has made a Checkpointer
        self.is_closed = False  # that Checkpointer is closed, or closes
        self._listeners: weakref.WeakSet[Any] = weakref.WeakSet()
        self.groups.on_failure = self._on_failure
        self.link = Link(identity, self._on_lost, self.groups.waits_since)
        self.groups.log.on_full = self._on_full_log
        if identity.world > 1 or identity.can_change:  # a job's only rank is not replaced
            install(self.groups)
            ddp_calls.install(self.groups)
            pipelines.install(self.groups, is_replacement=identity.is_replacement)

    def _on_full_log(self) -> None:
        self.link.say("plain", why="collective calls at start-up have returned more than is kept for a "
                      "replacement (64 MiB)", is_open=self.has_checkpointer)

    def tell_losses_to(self, listener: Any) -> None:
        """Calls listener.on_lost() when ranks were lost, from the thread of the link."""
        self._listeners.add(listener)

    def stop_telling(self, listener: Any) -> None:
        """Ends what tell_losses_to() began."""
        self._listeners.discard(listener)

    def interrupt(self, why: Exception) -> None:
        """Ends what waits for other ranks, from any thread."""
        for listener in list(self._listeners):
            listener.on_lost()
        self.groups.break_off(why)

    def _on_lost(self, ranks: list[int]) -> None:
        if self.is_closed:
            # The launcher had not heard of it, and waits for this rank to meet a replacement.
            self.link.say("restart", why=AFTER_CLOSE)
        self.interrupt(RuntimeError(f"rank {', '.join(map(str, ranks))} died"))

    def _on_failure(self, why: Exception) -> None:
        """A collective call has failed. Raises Interrupted if that ends the training here."""
        if self.link.is_unfilled and self.link.hears_of_newer(self.link.born):
            wait_for_end()  # another rank of the island died, and another process takes this one's place
        if not self.groups.may_repeat and self.link.hears_of_loss():
            raise Interrupted(
                f"{why}; a rank died during a collective call outside of Checkpointer.run()"
                ) from why


_side: WorkerSide | None = None
_process = 0


def start(identity: WorkerIdentity) -> None:
    """Called once in a new worker, before its program runs."""
    global _side, _process
    _side, _process = WorkerSide(identity), os.getpid()


def current() -> WorkerSide | None:
    """The WorkerSide of this process; None if `holdfast launch` did not start the process."""
    return _side if _process == os.getpid() else None


def tell_why(error: BaseException) -> None:
    """Tells the launcher why this process ends, if that concerns all ranks."""
    if _side is None:
        return
    link = _side.link
    if isinstance(error, Interrupted):
        link.say("restart", why=str(error))
        return
    if link.is_unfilled and link.hears_of_newer(link.born, 2 * _TICK):
        wait_for_end()  # another rank died, and another process takes this one's place
    link.say("failed", why=_in_a_line(error), is_final=not isinstance(error, _MAY_PASS))


def _in_a_line(error: BaseException) -> str:
    first = str(error).strip().split("\n")[0]
    name = type(error).__name__
    return f"{name}: {first}"[:_LONGEST] if first else name


def wait_for_end() -> NoReturn:
    """Waits until the launcher ends this process; ends it if the launcher is gone."""
    while _side is None or not _side.link.is_closed:
        time.sleep(_TICK)
    os._exit(FAILED)
