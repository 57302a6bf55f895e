"""Checkpointer.check(): saves to a scratch folder, and compares what comes back with memory.

It finds what cannot be stored or comes back different, without a second model and without a kill.
Whether a restarted script reads the same data is what `holdfast rehearse` tells.
"""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import _native
from holdfast.options import Failures, Writing
from holdfast.torch.loop.job import open_job
from holdfast.torch.loop.saves import Saves
from holdfast.torch.loop.step_record import digest_values
from holdfast.torch.loop.transport import connect
from holdfast.torch.state.capture import current_stream
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values import generators
from holdfast.torch.values.dotted_names import name_a_few


@dataclass
class Check:
    """What a check has found on this rank; `is_exact` if all came back as it was."""

    tensors: int = 0  # how many were compared
    values: int = 0
    differs: list[str] = field(default_factory=list)  # names of what came back different
    unsaved: list[str] = field(default_factory=list)  # sentences about what is not saved

    @property
    def is_exact(self) -> bool:
        """True if all that is saved came back with the same bits, and nothing else was found."""
        return not self.differs and not self.unsaved

    def __str__(self) -> str:
        what = f"{self.tensors} tensors and {self.values} values came back from a scratch folder"
        parts = [f"{what}: " + (f"{name_a_few(self.differs)} differ" if self.differs else "equal")]
        parts += [f"not saved: {line}" for line in self.unsaved]
        return "\n".join(parts)


def check(state: TrainingState, saves: Saves, run: str, group: Any, unknown: Mapping[str, str]) -> Check:
    """Saves what is there now to a folder beside the run, reads it again, and compares.

    All ranks call it together, between two updates. `unknown` has a sentence about each optimizer,
    scheduler or scaler that takes part and was not given.
    """
    saves.settle()
    found = Check()
    with _scratch(run, state) as folder:
        captured = saves.look()
        saved = _save_and_read(folder, state, captured, group)
        _compare_tensors(captured.pieces, saved, found)
        _compare_values(captured, saved, state.rank, found)
    found.differs += state.reload_plain_values()
    found.differs += _reload_generators(state)
    found.unsaved = [*unknown.values(),
                     *(f"generator {name}: {why}" for name, why in state.unsaved.items())]
    return found


@contextlib.contextmanager
def _scratch(run: str, state: TrainingState) -> Iterator[str]:
    """A new folder for all ranks, beside the run, where there is room for its steps."""
    folder = state.all_ranks(_new_folder(run) if state.rank == 0 else None)[0]
    if isinstance(folder, OSError):
        raise folder
    try:
        yield folder
    finally:
        state.all_ranks(None)  # no rank reads it any more
        if state.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _new_folder(run: str) -> str | OSError:
    """A folder beside the run; the error if there can be none, which all ranks then raise."""
    beside = None if _native.is_object_path(run) else os.path.dirname(run)
    try:
        if beside is not None:
            os.makedirs(beside, exist_ok=True)
        return tempfile.mkdtemp(prefix=".holdfast-check-", dir=beside)
    except OSError as error:
        return error


def _save_and_read(folder: str, state: TrainingState, captured: Any, group: Any
                   ) -> _native.SavedStep:
    """Saves, reads and checks every byte, and returns what the files say."""
    job = open_job(folder, connect(group), every="never", keep=None, tiers=(), writing=Writing(),
                   failures=Failures(grace=60.0, signals=False))
    read: list[_native.SavedStep] = []

    def pieces_for(found: _native.SavedStep) -> _native.Pieces:
        read.append(found)
        return _native.Pieces([])

    try:
        job.attach(captured.pieces, current_stream())
        handle = job.save(0, captured.pieces, captured.owners, {}, state.parallel,
                          lambda: (captured.objects, captured.rank_objects), current_stream(),
                          None, "check")
        job.settle([], current_stream(), None)
        handle.durable()
        job.resume(pieces_for, None, True, current_stream())
    finally:
        job.close(60.0)
    return read[-1]


def _compare_tensors(pieces: _native.Pieces, saved: _native.SavedStep, found: Check) -> None:
    """Compares the seals of memory with those in the files, where any rank may have saved a replica."""
    of_files = {one for path in Path(saved.folder).glob("rank-*.index.json") for one in _seals_in(path)}
    of_memory = pieces.seals()
    found.tensors = len(of_memory)
    found.differs += sorted({name for name, seal in of_memory if (name, seal) not in of_files})


def _seals_in(path: Path) -> Iterator[tuple[str, str]]:
    """(name, seal) of each piece in the index of a rank's file."""
    index = json.loads(path.read_text())
    names = [row[0] for row in index["tensors"]]
    for row in index["pieces"]:
        yield names[row[0]], row[4]


def _compare_values(captured: Any, saved: _native.SavedStep, rank: int, found: Check) -> None:
    of_memory = digest_values([captured.objects, captured.rank_objects])
    of_file = digest_values([saved.objects if rank == 0 else captured.objects,
                             saved.rank_objects[rank]])
    found.values = len(of_memory)
    found.differs += [name for name in of_memory | of_file
                      if of_memory.get(name) != of_file.get(name)]


def _reload_generators(state: TrainingState) -> list[str]:
    """Restores the generators from what is saved of them; names those that then differ."""
    before = generators.capture(state.generators)
    generators.restore(before, state.generators)
    a, b = digest_values(before), digest_values(generators.capture(state.generators))
    return [f"generator {name}" for name in a if a[name] != b.get(name)]
