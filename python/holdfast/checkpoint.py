"""Saving the state of a training job in the background, and bringing it back."""

import logging
import os
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Self

from holdfast import _native
from holdfast.arrays import describe

_Path = str | PathLike[str]
Tiers = Sequence[_Path | _native.Tier]

_log = logging.getLogger("holdfast")


def absolute(path: _Path) -> str:
    """The same place when the process changes its directory; of an object store as it is."""
    text = fspath(path)
    if _native.is_object_path(text):  # refuses names that are neither
        return text
    return os.path.abspath(os.path.expanduser(text))


def keep_of(keep: int | _native.Keep | None) -> _native.Keep | None:
    """A number is that of the newest steps to keep."""
    if keep is None or isinstance(keep, _native.Keep):
        return keep
    if not isinstance(keep, int):
        raise TypeError(f"keep={keep!r}: want a number, a Keep or None")
    if keep < 1:
        raise ValueError(f"keep={keep}: want 1 or more, or None to keep all")
    return _native.Keep(keep)


def duration_of(text: str | float | None) -> str | None:
    """A number is one of seconds; None is for ever."""
    return None if text is None else str(text)


def tiers_of(tiers: Tiers) -> list[_native.Tier]:
    """Opens those that are named only."""
    if isinstance(tiers, str | PathLike):
        raise TypeError(f"tiers={tiers!r}: want a list of places")
    return [tier if isinstance(tier, _native.Tier) else _native.Tier(absolute(tier))
            for tier in tiers]


class Saver:
    """Saves arrays and objects into a run directory while training goes on.

        >>> with holdfast.Saver("runs/gpt", keep=3) as saver:
        ...     handle = saver.save(step, model.state_dict(), {"epoch": 3})
        ...     handle.captured()  # the tensors may change again
        ...     handle.durable()   # no crash can lose it

    `keep` is the number of steps to keep, or a Keep; None keeps all. `ring` is the memory
    in bytes that saves pass through; 0 is as much as the state, but at most a quarter of
    what is free. `in_flight` saves may be under way; for one more, `backpressure` says
    whether to "wait", to "skip" it, or to drop those that wait for it, the "newest". With
    `read_back` a checkpoint is read again before it counts; with `incremental` what did not
    change is linked and not written again; `compress` is a level of zstd, 1 to 22, for files
    that only Holdfast reads. `space_reserve` bytes are left
    free on the disk; `direct` goes past the system's cache where that is possible;
    `software` is noted in the checkpoint, as names and versions.

    `tiers` are further places for copies of each step, made in the background once it is
    durable: folders (another disk, or "/dev/shm/gpt", which outlives the process),
    "s3://bucket/prefix" (keys and server as in AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
    AWS_ENDPOINT_URL, AWS_REGION), or a Tier. A tier that fails costs a warning, never the
    save. A run directory that was lost is brought back from them: without a step it is not
    opened while a tier does not answer, unless `allow_unreachable_tiers`, nor where all that
    a tier has is damaged or of another run.

    ConflictError if a live job owns the directory; a dead one's is taken over. A save that
    fails for a reason that may pass (a full disk) is dropped with a warning, and the next one
    tries again; it is raised by close() if it was the last, and by save() once all saves have
    failed for `fail_after` ("30m", or seconds; None: never). What fails for any other reason
    is raised by the next save().
    """

    def __init__(
        self,
        path: _Path,
        *,
        keep: int | _native.Keep | None = None,
        ring: int = 0,
        backpressure: str = "wait",
        in_flight: int = 2,
        read_back: bool = False,
        incremental: bool = False,
        compress: int = 0,
        space_reserve: int = 64 << 20,
        direct: bool = True,
        fail_after: str | float | None = None,
        software: Mapping[str, str] | None = None,
        tiers: Tiers = (),
        allow_unreachable_tiers: bool = False,
    ) -> None:
        versions = {"holdfast": _native.version} | dict(software or {})
        self._native = _native.Saver(
            absolute(path), keep=keep_of(keep), ring=ring, backpressure=backpressure,
            in_flight=in_flight, read_back=read_back, incremental=incremental,
            compress=compress, space_reserve=space_reserve, direct=direct,
            fail_after=duration_of(fail_after), software=versions, tiers=tiers_of(tiers),
            allow_unreachable_tiers=allow_unreachable_tiers,
        )
        self._warn()

    @property
    def path(self) -> PathLike[str]:
        """The run directory."""
        return self._native.path

    def save(
        self,
        step: int,
        tensors: Mapping[str, Any],
        objects: Any = None,
        *,
        metrics: Mapping[str, float] | None = None,
        rank_objects: Any = None,
        parallel: str = "",
        parent: str = "",
    ) -> _native.SaveHandle:
        """Begins to save, and returns before it is done.

        `tensors` are numpy arrays or torch tensors in main memory, which must not change
        before the handle is captured; they are kept alive until then. `objects` is
        anything made of None, bool, int, float, str, bytes, list, tuple and dict, and
        comes back as it was; `rank_objects` likewise, for what is this rank's alone.
        `metrics` serve Keep's `best`. `parallel` says in words how the job is laid out,
        `parent` names the step folder that it went on from.
        """
        self._warn()
        held = dict(tensors)  # once: some mappings make their values anew each time
        return self._native.save(
            step, describe(held), held, objects, rank_objects,
            dict(metrics or {}), parallel, parent,
        )

    def close(self, timeout: float | None = None) -> None:
        """Waits until all is durable, lets go of the run, raises what the last save did.

        After TimeoutError, the saves go on, and it may be called again.
        """
        try:
            self._native.close(timeout)
        finally:
            self._warn()

    def _warn(self) -> None:
        for sentence in self._native.take_warnings():
            _log.warning("%s", sentence)
        for sentence in self._native.take_notes():
            _log.info("%s", sentence)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"and the last save failed: {failure}")


def restore(
    path: _Path,
    into: Mapping[str, Any],
    step: int | None = None,
    *,
    verify_all: bool = False,
    tiers: Tiers = (),
    allow_unreachable_tiers: bool = False,
) -> _native.Restored:
    """Fills arrays from the newest whole checkpoint of a run, or from that of `step`.

    `path` is a run directory, or "s3://bucket/prefix". Of `tiers` (as in Saver), a newer
    step than the run directory has is copied there first; the result's `tier` says so. If
    that fails for another reason than damage (a full disk), no older step is taken. A tier
    that does not answer is in `skipped`; where there is no step at all its error is raised,
    or, with `allow_unreachable_tiers`, NotFoundError.

    Names, dtypes and shapes must be those of the checkpoint, which may have more tensors
    (`unused`). Every byte that is used is checked; a step that is damaged, or that the disk
    does not give back when asked again, is passed over for the one before it (`skipped`),
    with a warning in the log "holdfast", and with `verify_all` it is read in full first. A
    failure that says nothing of the step (no memory, a stale handle of NFS, no permission)
    is raised. NotFoundError if there is no step, ValueError if it is of another model or two
    arrays share memory without being the same, CorruptError if none is whole: then, if the
    message says so, the arrays have any contents.
    """
    held = dict(into)
    restored = _native.restore(path, describe(held, writable=True), step, verify_all,
                               tiers_of(tiers), allow_unreachable_tiers)
    for folder, why in restored.skipped:
        _log.warning("restore: %s is passed over: %s", folder, why)
    return restored
