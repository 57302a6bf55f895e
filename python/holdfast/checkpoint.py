"""Saves arrays and objects in the background, and restores them."""

import logging
import os
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Self

from holdfast import _native
from holdfast.arrays import describe
from holdfast.options import Writing, check_groups, check_unused
from holdfast.rehearse.plan import VARIABLE, place_to_read, places

_Path = str | PathLike[str]
Tiers = Sequence[_Path | _native.Tier]

_log = logging.getLogger("holdfast")


def absolute_path(path: _Path) -> str:
    """The path made absolute, so that it stays the same if the process changes its directory.

    The address of an object store ("s3://bucket/prefix") is returned as it is.
    """
    text = fspath(path)
    if _native.is_object_path(text):  # raises ValueError for a malformed address
        return text
    return os.path.abspath(os.path.expanduser(text))


def run_path(run: Any) -> str:
    """The path of a run directory, made absolute. TypeError or ValueError for what can be none."""
    if not isinstance(run, str | PathLike) or not fspath(run):
        kind = ValueError if run == "" else TypeError
        raise kind(f'run={run!r}; expected a folder, such as "runs/gpt"')
    path = absolute_path(run)
    above = path
    while not os.path.lexists(above) and above != os.path.dirname(above):
        above = os.path.dirname(above)
    if not _native.is_object_path(path) and os.path.isfile(above):
        raise ValueError(f"{path}: {'it' if above == path else above} is a file; expected a folder, in "
                         "which the run is kept")
    return path


def parse_keep(keep: int | str | _native.Keep | None) -> _native.Keep | None:
    """What `keep=` means; a number says how many of the newest steps to keep."""
    if keep == "auto":
        return _native.Keep(3, only_temporary=True)
    if keep is None or isinstance(keep, _native.Keep):
        return keep
    if not isinstance(keep, int):
        raise TypeError(f"keep={keep!r}; expected a number, a Keep, \"auto\" or None")
    if keep < 1:
        raise ValueError(f"keep={keep}; expected 1 or more, or None to keep all")
    return _native.Keep(keep)


def parse_duration(text: str | float | None) -> str | None:
    """The text of a duration; a number means seconds, and None means for ever."""
    return None if text is None else str(text)


def open_tiers(tiers: Tiers) -> list[_native.Tier]:
    """Opens the tiers that are given by their address; others are open already."""
    if isinstance(tiers, str | PathLike):
        raise TypeError(f"tiers={tiers!r}; expected a list of places")
    for tier in tiers:
        if not isinstance(tier, str | PathLike | _native.Tier):
            raise TypeError(f"tiers: {tier!r}; expected a folder, \"s3://bucket/prefix\" or a Tier")
    return [tier if isinstance(tier, _native.Tier) else _native.Tier(absolute_path(tier))
            for tier in tiers]


def log_messages(source: "_native.Saver | _native.Job") -> None:
    """Logs failures since the last call that did not stop the program, and what tiers removed."""
    for sentence in source.take_warnings():
        _log.warning("%s", sentence)
    for sentence in source.take_notes():
        _log.info("%s", sentence)


class Saver:
    """Saves arrays and objects into a run directory while training goes on.

        >>> with holdfast.Saver("runs/gpt", keep=3) as saver:
        ...     handle = saver.save(step, model.state_dict(), {"epoch": 3})
        ...     handle.captured()  # the tensors may change again
        ...     handle.durable()   # no crash can lose it

    `keep` is how many steps to keep: a number or a Keep; None keeps all. `writing` is a Writing:
    memory, compression and checks. `software` is noted in the checkpoint, as names and versions.

    `tiers` are further places for copies of each step, made in the background once the step is
    durable: folders (another disk, or "/dev/shm/gpt", which outlives the process),
    "s3://bucket/prefix" (keys and server as in AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
    AWS_ENDPOINT_URL, AWS_REGION), or a Tier. If a tier fails, there is a warning, and the save
    itself goes on. A run directory that was lost is brought back from the tiers. A run without a
    step is not opened while a tier does not answer, unless `allow_unreachable_tiers` is True, nor
    if all that a tier holds is damaged or belongs to another run.

    ConflictError if a live job owns the directory; the directory of a dead job is taken over. A
    save that fails for a reason that may pass (a full disk) is dropped with a warning, and the
    next save tries again. close() raises that error if the last save failed, and save() raises it
    once all saves have failed for `fail_after` ("30m", or seconds; None means never). An error of
    any other kind is raised by the next save().
    """

    def __init__(
        self,
        path: _Path,
        *,
        keep: int | _native.Keep | None = None,
        tiers: Tiers = (),
        writing: Writing = Writing(),
        fail_after: str | float | None = None,
        software: Mapping[str, str] | None = None,
        allow_unreachable_tiers: bool = False,
    ) -> None:
        check_groups(writing=writing)
        check_unused("Saver", writing, "guard")
        versions = {"holdfast": _native.version} | dict(software or {})
        run, tiers, _ = places(absolute_path(path), tiers)
        self._native = _native.Saver(run, {
            **vars(writing), "guard": "off", "keep": parse_keep(keep), "tiers": open_tiers(tiers),
            "fail_after": parse_duration(fail_after), "software": versions,
            "allow_unreachable_tiers": allow_unreachable_tiers,
        })
        log_messages(self._native)

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
        """Begins to save, and returns before the save is done.

        `tensors` are numpy arrays or torch tensors in main memory. They must not change before
        the handle is captured, and are kept alive until then. `objects` is anything made of None,
        bool, int, float, str, bytes, list, tuple and dict, and is restored with the same types;
        `rank_objects` likewise, for what belongs to this rank alone. Keep(best=) chooses by
        `metrics`. `parallel` says in words how the job is laid out, and `parent` names the step
        folder that the job resumed from.
        """
        log_messages(self._native)
        held = dict(tensors)  # read once: some mappings make new values at each access
        return self._native.save(
            step, describe(held), held, objects, rank_objects,
            dict(metrics or {}), parallel, parent,
        )

    def close(self, timeout: float | None = None) -> None:
        """Waits until everything is durable, and gives the run up.

        Raises the error of the last save if it failed. After TimeoutError the saves go on, and
        close() may be called again.
        """
        try:
            self._native.close(timeout)
        finally:
            log_messages(self._native)

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

    `path` is a run directory, or "s3://bucket/prefix". If one of the `tiers` (as in Saver) has a
    newer step than the run directory, that step is copied there first; the result's `tier` says
    so. If the copy fails for another reason than damage (a full disk), the error is raised and no
    older step is taken. A tier that does not answer is listed in `skipped`. If there is no step
    at all, its error is raised, or NotFoundError with `allow_unreachable_tiers`.

    Names, dtypes and shapes must be those of the checkpoint, which may have more tensors
    (`unused`). Every byte that is used is checked. A step that is damaged, or that the disk does
    not return when asked again, is passed over for the one before it (`skipped`), with a warning
    in the log "holdfast". With `verify_all`, all of a step is read and checked first. An error
    that says nothing about the step (no memory, a stale NFS handle, no permission) is raised.
    NotFoundError if there is no step. ValueError if the step is of another model, or if two
    arrays share memory without being the same. CorruptError if no step is whole; if its message
    says so, the arrays then hold arbitrary values.
    """
    held = dict(into)
    path, tiers = place_to_read(path), () if VARIABLE in os.environ else tiers
    restored = _native.restore(path, describe(held, writable=True), step, verify_all,
                               open_tiers(tiers), allow_unreachable_tiers)
    for folder, why in restored.skipped:
        _log.warning("restore: %s is passed over: %s", folder, why)
    warn_of_mended(restored)
    return restored


def warn_of_mended(restored: _native.Restored) -> None:
    """Warns of each word that was damaged before it was written, and is mended in memory."""
    for sentence in restored.mended:
        _log.warning("%s: %s: damaged between seal and file, not on the disk; mended in memory",
                     os.path.basename(restored.folder), sentence)
