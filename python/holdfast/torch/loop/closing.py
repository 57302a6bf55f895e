"""Ends the job of a Checkpointer: in order, or because an error ends the process early."""

import atexit
import contextlib
import logging
import sys
import weakref
from collections.abc import Callable

from holdfast._native import TcpTransport
from holdfast.options import Failures
from holdfast.torch.loop.ctrl_c import CtrlC
from holdfast.torch.loop.end_of_training import is_exception_on_its_way
from holdfast.torch.loop.saves import Saves

_log = logging.getLogger("holdfast")

_AT_EXIT = 600.0  # seconds for the last saves of a process that ends without close()


class Closing:
    """Waits for the saves under way and closes the job; `release` then frees all else, once."""

    def __init__(self, saves: Saves, transport: TcpTransport | None, failures: Failures,
                 release: Callable[[], None], rank: int) -> None:
        self._saves = saves
        self._transport = transport
        self._grace = failures.grace
        self._release = release
        self.ctrl_c = CtrlC(failures.signals, rank)
        self.expected: BaseException | None = None  # an error that ends the training in order

    @property
    def is_alone(self) -> bool:
        """True in a job of one rank."""
        return self._transport is None

    def close(self, timeout: float | None = None) -> None:
        """Closes it, and raises the error of the last save if it failed.

        A Ctrl-C that no step has seen takes effect now, unless an exception is on its way anyway.
        """
        self._close_job(timeout, orderly=True)
        if not is_exception_on_its_way():
            self.ctrl_c.raise_if_asked()

    def _close_job(self, timeout: float | None, *, orderly: bool) -> None:
        job = self._saves.job
        if job is None:
            return
        try:
            self._saves.settle(timeout)
            job.close(timeout, alone=not orderly, orderly=orderly)
        except TimeoutError:  # the saves go on, and close() may be called again
            raise
        except Exception:
            self._let_go()
            raise
        self._let_go()

    def leave(self, error: BaseException | None) -> None:
        """Closes it; a failure meanwhile becomes a note of the error that is on its way."""
        if error is None:
            self.close()
            return
        try:
            self.end(error)
        except Exception as failure:
            error.add_note(f"and the last save failed: {failure}")

    def end(self, error: BaseException | None) -> None:
        """Closes it in a process that ends early, because of that error if there is one.

        The other ranks may be waiting for this one in a collective call. So this rank agrees on
        nothing with them, and they find it gone.
        """
        job = self._saves.job
        if job is None:
            return
        # The next process counts any other end as a failure, and saves more often.
        orderly = error is None or error is self.expected or isinstance(error, SystemExit)
        if self._transport is None:
            self._close_job(None, orderly=orderly)
            return
        timeout = _AT_EXIT if orderly else self._grace
        try:
            self._saves.settle(timeout)
            job.close(timeout, alone=True, orderly=orderly)
        finally:
            self._transport.close()  # threads here that wait for other ranks give up
            self._let_go()

    def close_for_change(self, release: Callable[[], None], *, alone: bool) -> None:
        """Closes the job in mid-training, because another one follows; `release` frees the parts of this.

        A rank that is lost meanwhile is missed later: here it only makes this rank close alone.
        """
        self._release = release
        if (job := self._saves.job) is not None:
            try:
                self._saves.settle(_AT_EXIT)
                job.close(_AT_EXIT, alone=alone, orderly=True)
            except Exception as error:
                _log.warning("a change of the configuration: the job before it: %s", error)
                with contextlib.suppress(Exception):
                    job.close(0.0, alone=True, orderly=True)
            if self._transport is not None:
                self._transport.close()
            self._let_go()

    def _let_go(self) -> None:
        # Forgets the function, which refers to the Checkpointer: in a cycle of references, loaders
        # and their workers would outlive their use.
        release, self._release = self._release, _nothing
        self.ctrl_c.close()
        release()


def close_at_exit(closing: Closing) -> None:
    """Has the end of the process finish the saves under way, if close() was not called."""
    atexit.register(_end_process, weakref.ref(closing))


def _end_process(ref: "weakref.ref[Closing]") -> None:
    live = ref()
    if live is not None:
        try:
            live.end(getattr(sys, "last_value", None))  # an exception that nobody caught
        except Exception as error:
            _log.error("at exit: %s", error)


def _nothing() -> None: ...
