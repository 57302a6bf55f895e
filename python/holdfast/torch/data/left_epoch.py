"""Keeps beside a run where its loop has left the first epoch that it left early, with `break`.

The checkpoints of that epoch cannot know its end, because they were made before it. So a small file is
written when the loop begins the next epoch, and a resume in the epoch that was left reads it.
"""

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

# What tells one epoch of a training from another: its number, and the seed that was drawn for it.
_WHICH = ("epoch", "base")


class LeftEpoch:
    """The file of one loader and one rank."""

    def __init__(self, run: str, rank: int, number: int) -> None:
        """`number` is that of the loader."""
        self._path = os.path.join(run, "events", f"rank-{rank:04d}.epoch-{number}.json")
        self._left: dict[str, Any] | None = None  # what is to be written
        self._is_unsure = False  # it is written, and the training has not learned from the next epoch yet

    def left(self, position: Mapping[str, Any], read: int, trained: int) -> None:
        """Notes that the epoch of that position was left."""
        self._left = {**_which(position), "end": [read, trained]}

    def write(self) -> None:
        """Writes what was noted, when the next epoch begins. The training goes on if this fails."""
        left, self._left = self._left, None
        if left is None:
            return
        with contextlib.suppress(OSError):
            beside = f"{self._path}.tmp"
            with open(beside, "w") as file:
                json.dump(left, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self._path)
            self._is_unsure = True

    def read(self, position: Mapping[str, Any]) -> tuple[int, int] | None:
        """How many batches of the epoch of that position were read and trained on; None if nobody knows."""
        try:
            with open(self._path) as file:
                found = json.load(file)
            read, trained = map(int, found.pop("end"))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        return (read, trained) if found == _which(position) else None

    def confirm(self) -> None:
        """Notes that the training has learned from the next epoch."""
        self._is_unsure = False

    def close(self) -> None:
        """Takes the note back if no epoch has followed: the last one of a training may be left anywhere."""
        if self._is_unsure:
            with contextlib.suppress(OSError):
                os.unlink(self._path)


def _which(position: Mapping[str, Any]) -> dict[str, Any]:
    return {name: position.get(name) for name in _WHICH}
