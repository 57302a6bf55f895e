"""Brings a training process back to its newest whole checkpoint."""

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from holdfast import _native
from holdfast.checkpoint import warn_of_mended
from holdfast.errors import NotFoundError
from holdfast.options import Resuming
from holdfast.torch.loop.branch import Start
from holdfast.torch.loop.saves import Saves
from holdfast.torch.state import gradients
from holdfast.torch.state.capture import current_stream
from holdfast.torch.state.ddp_buckets import BucketOrders
from holdfast.torch.state.optimizer_states import is_inner
from holdfast.torch.state.peer_step import CarriedStep
from holdfast.torch.state.piece import Piece
from holdfast.torch.state.report import Report
from holdfast.torch.state.saved_names import saved_extra_names, saved_optimized, saved_transient
from holdfast.torch.state.stateful import VALUES
from holdfast.torch.state.stateful_objects import is_internal
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values.dotted_names import name_a_few, plain_name
from holdfast.torch.values.dtypes import SavedTensor

_log = logging.getLogger("holdfast")


class Resume:
    """One resume. `report` says how the checkpoint fits, also after an error."""

    def __init__(self, state: TrainingState, buckets: BucketOrders, options: Resuming,
                 last: int | None = None) -> None:
        """`last` is the newest step that this process has made; None if it has made none."""
        self.report = Report()
        self._last = last
        self._state = state
        self._buckets = buckets
        self._strict = options.strict
        self._verify_all = options.verify == "full"
        self._tried: list[_native.SavedStep] = []  # checkpoints, the newest first
        self._what = "resume"  # is in front of warnings

    def run_or_begin(self, saves: Saves, start: Start) -> _native.Restored | None:
        """Restores a checkpoint, or begins a run that has none and returns None."""
        try:
            restored = self.run(saves.live_job(), start.step)
            if start.goes_back_after_all(restored.objects):
                restored = self.run(saves.live_job(), start.step)
        except NotFoundError:
            if not start.may_begin:
                raise
            self._check_fresh()
            start.begin(strict=self._strict)
            saves.attach()
            return None
        if self.report.dropped and self._state.rank == 0:
            _keep(Path(start.run, self._tried[-1].folder.name))
        saves.resumed(restored.objects)
        start.resumed(restored.step, restored.objects)
        return restored

    def _check_fresh(self) -> None:
        """NotFoundError if steps were made: the run cannot begin anew with what they changed."""
        if self._last is not None:
            raise NotFoundError(f"resume: there is no checkpoint, and step {self._last} is made; "
                                "expected a save before resume() goes back, or a new process to "
                                "begin anew") from None

    def run(self, job: _native.Job, step: int | None) -> _native.Restored:
        """Restores the newest whole checkpoint, or that of `step`.

        NotFoundError if there is none. ValueError, before anything is changed, if the checkpoint
        does not fit.
        """
        self._tried.clear()
        restored = job.resume(self._allocate, step, self._verify_all, current_stream())
        found = self._tried[-1]
        self._state.load(found)
        self.report.tier = restored.tier
        self.report.skipped = restored.skipped
        for folder, why in restored.skipped:
            _log.warning("resume: %s is passed over: %s", folder, why)
        warn_of_mended(restored)
        self._restore_what_changes_bits(restored.objects["buckets"], found)
        return restored

    def allocate(self, found: CarriedStep, inside: AbstractContextManager[None]) -> list[tuple[Piece, str]]:
        """Tensors for the state that other ranks hold now, and the names that they have there; as run(),
        with finish() behind it. They are made inside that context."""
        self._what = "change"
        self._tried = [found]  # type: ignore[list-item]
        self._fit(found)  # type: ignore[arg-type]
        with inside:
            return self._state.allocate_all(found)  # type: ignore[arg-type]

    def describe(self, pieces: list[tuple[Piece, str]]) -> list[_native.Piece]:
        """Describes tensors to the engine. They must have memory by then."""
        return self._state.describe(pieces)

    def finish(self, found: CarriedStep) -> None:
        """Loads the rest, when the memory is filled."""
        self._state.load(found)  # type: ignore[arg-type]
        self._restore_what_changes_bits(found.objects["buckets"], found)  # type: ignore[arg-type]

    def _allocate(self, found: _native.SavedStep) -> _native.Pieces:
        """Memory for a checkpoint, once the names and shapes are seen to fit.

        Called for the newest checkpoint, and for an older one if that one is damaged.
        """
        self._tried.append(found)
        self._fit(found)
        return _native.Pieces(self._state.allocate(found))

    def _fit(self, found: _native.SavedStep) -> None:
        """Checks that names and shapes fit."""
        self._state.load_diverged(found)
        self.report = compare_with_checkpoint(self._state, found)
        if self.report.reshaped or (self._strict and not self.report.exact):
            damaged = f" ({self._tried[0].folder} is damaged, and has been read in part)"
            raise ValueError(f"{found.folder}: {self.report.refusal}"
                             f"{damaged if self._tried[1:] else ''}")
        if not self.report.exact:
            _log.warning("%s: %s: %s", self._what, found.folder, self.report.warning)
            if not self._state.has_any(found):
                raise ValueError(f"{found.folder}: none of its tensors is one of the model's; "
                                 "expected a checkpoint of this model")

    def _restore_what_changes_bits(self, buckets: Any, found: _native.SavedStep) -> None:
        """Restores bucket orders, gradients and generators, and reports what is not exact."""
        inexact = self.report.inexact
        inexact += [f"buckets of {reason}"
                    for reason in self._buckets.restore(buckets)]
        inexact += self._state.inexact_replicas(found)
        self._state.load_gradients()
        self._state.restore_generators(found, inexact)
        inexact += gradients.inexact(found.rank_objects, self._state.world)
        for line in inexact:
            if self._what == "resume" or self._state.rank == 0:
                _log.warning("%s: %s", self._what, line)


def _keep(folder: Path) -> None:
    """Pins a step that has trained tensors which this training leaves out: no later step has them."""
    pin = folder.with_name(f"{folder.name}.pin")
    try:
        if folder.is_dir() and not pin.exists():
            pin.touch()
            _log.warning("resume: %s is pinned, so that what was left out stays there; `holdfast unpin` ends that",
                         folder)
    except OSError as error:
        _log.warning("resume: %s could not be pinned (%s); expected `holdfast pin`, or what was left out goes "
                     "with the step", folder, error)


def compare_with_checkpoint(state: TrainingState, found: _native.SavedStep) -> Report:
    """Compares the names, dtypes and shapes of a checkpoint with those of all ranks.

    A collective call: all ranks get the same report.
    """
    saved = {name: info for info in found.tensors for name in (info.name, *info.aliases)}
    missing, reshaped = _differences(state.expected(found), saved)
    missing += state.missing_extra(found)
    others = state.other_kinds(found)
    ranks = state.all_ranks(((missing, reshaped, others), state.known_names(), state.object_keys,
                             state.optimized()))
    report = Report()
    known: set[str] = set()
    kinds: list[str] = []
    for (missing, reshaped, others), names, *_ in ranks:
        report.missing += [name for name in missing if name not in report.missing]
        report.reshaped += [line for line in reshaped if line not in report.reshaped]
        kinds += [line for line in others if line not in kinds]
        known |= names
    report.unexpected = [info.name for info in found.tensors if not _belongs(info.name, known)]
    _tolerate_caches(found, report)
    report.unexpected += [name for name in saved_extra_names(found) if name not in known]
    _compare_optimized([names for rank in ranks for names in rank[3]], found, report)
    saved_objects = _object_keys(found)
    report.missing += sorted(ranks[0][2] - saved_objects - {VALUES})
    report.unexpected += sorted(saved_objects - ranks[0][2])
    report.unexpected += kinds
    return report


def _tolerate_caches(found: _native.SavedStep, report: Report) -> None:
    """Lets a checkpoint have buffers that are not persistent and that the model lacks as yet.

    Modules make such a buffer in a forward pass, which a new process has not had.
    """
    transient = saved_transient(found)
    caches = [name for name in report.unexpected if plain_name(name) in transient]
    report.unexpected = [name for name in report.unexpected if name not in caches]
    if caches:
        report.inexact.append(f"{name_a_few(caches)}: a buffer that is not persistent, and that the "
                              "model does not have yet: it is left out")


def _compare_optimized(live: list[list[str]], found: _native.SavedStep, report: Report) -> None:
    """Adds parameters that only the live optimizers have, or only those of the checkpoint.

    Slots do not tell: an optimizer may have none yet, or never. An optimizer inside another one is
    left out, because earlier versions did not save it (TrainingState.load() notes that).
    """
    saved = saved_optimized(found)
    if saved is None:
        return
    missing = [names[0] for names in live if not is_inner(names[0]) and
               set(names).isdisjoint(saved)]
    report.missing += [name for name in dict.fromkeys(missing) if name not in report.missing]
    known = {name for names in live for name in names}
    slots = {name.rpartition(".")[0] for name in report.unexpected}
    report.unexpected += [name for name in saved if name not in known and name not in slots]


def missing_or_reshaped(expected: Mapping[str, SavedTensor], tensors: Iterable[Any]) -> list[str]:
    """Sentences about expected tensors that are not there, or have another dtype or shape."""
    saved = {name: info for info in tensors for name in (info.name, *info.aliases)}
    missing, reshaped = _differences(expected, saved)
    return [f"{name} is missing" for name in missing] + reshaped


def _object_keys(found: _native.SavedStep) -> set[str]:
    keys = set(found.objects.get("things", {}))
    for own in found.rank_objects:
        keys |= set(own.get("things", {}))
    return {key for key in keys if not is_internal(key)}


def _differences(
    expected: Mapping[str, SavedTensor], saved: Mapping[str, _native.TensorInfo]
) -> tuple[list[str], list[str]]:
    """(names that are missing, sentences about tensors of another dtype or shape)."""
    missing, reshaped = [], []
    of_any_rank = {plain_name(name): info for name, info in saved.items()}
    for name, wanted in expected.items():
        info = saved.get(name) or of_any_rank.get(plain_name(name))
        if info is None:
            missing.append(name)
        elif (there := SavedTensor.of(info)) != wanted:
            reshaped.append(f"{name} is {_words(there)}; expected {_words(wanted)}")
    return missing, reshaped


def _belongs(name: str, known: set[str]) -> bool:
    """True if the name, or one of the names that it begins with, is known."""
    head = plain_name(name)
    while head and head not in known:
        head = head.rpartition(".")[0]
    return bool(head)


def _words(saved: SavedTensor) -> str:
    return f"{str(saved.dtype).removeprefix('torch.')} {list(saved.shape)}"
