"""Learns where a training leaves its epochs early, with `break` after so many batches.

A save at the last batch before such a `break` cannot know that the epoch is over, and a loop that
counts its batches (enumerate) counts from 0 again in an epoch that is resumed in its middle. What
is known is where the epochs before were left. A resumed epoch ends there, too.
"""

import logging
from collections.abc import Mapping
from typing import Any

from holdfast.torch.data.passes import Pass

_log = logging.getLogger("holdfast")
_ENDED = ("data: the resumed epoch ends after its batch %d, because the epoch before was left there; "
          "expected `for i, batch in enumerate(loader, loader.batch)` if this is not meant")
_DIFFERS = ("data: an epoch that was resumed after its batch %d ended %s, and the next one is left "
            "after batch %d, so the training may have made other steps than one without the restart; "
            "expected `for i, batch in enumerate(loader, loader.batch)` in a loop that leaves epochs")


class EpochEnds:
    """The ends of the epochs of one loader that were trained on."""

    def __init__(self) -> None:
        # Of the newest epoch that was read from its beginning: the batches that were handed out,
        # and those before its last step. (0, 0) if it was read to its end; None if there is none.
        self._whole: tuple[int, int] | None = None
        # Of an epoch that was resumed when no end was known: where it was resumed, and where it was
        # left; 0 if it was read to its end.
        self._resumed: tuple[int, int] | None = None
        self._is_sure = False  # the end is that of the resumed epoch itself, and not of one before
        self.are_counted = False  # the training asks for the position, and counts from there

    def to_save(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"ends": [self._whole, self._resumed]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes back to what was saved; earlier versions saved nothing."""
        whole, resumed = state.get("ends", (None, None))
        self._whole, self._is_sure = None if whole is None else tuple(whole), False
        self._resumed = None if resumed is None else tuple(resumed)

    @property
    def is_known(self) -> bool:
        """True if an end was seen, or none has to be known."""
        return self.are_counted or self._whole is not None

    def take(self, read: int, trained: int) -> None:
        """Notes the end of the very epoch that is resumed."""
        self._whole = (read, trained)
        self._is_sure = True

    def ended(self, one: Pass, batch: int) -> None:
        """Notes that an epoch has ended which trained: left after a batch, or at its end (0)."""
        if one.first > 0:
            if self._whole is None:
                self._compare(one.first, batch)
                self._resumed = (one.first, batch)
            return
        self._compare(0, batch)
        self._whole = (batch, min(one.stepped or batch, batch))

    def limit(self, one: Pass) -> tuple[int, int] | None:
        """Where an epoch ends that is resumed by this pass; None if it is read to its end.

        The first number counts all batches that are read, the second those that are trained on.
        """
        if self.are_counted or self._whole is None or one.first > self._whole[1]:
            return None
        return self._whole

    def say_ended(self, batch: int) -> None:
        """Says that an epoch ends although its loop did not leave it."""
        if not self._is_sure:
            _log.warning(_ENDED, batch)
        self._is_sure = False

    def _compare(self, begun: int, batch: int) -> None:
        """Warns if a resumed epoch had as many batches as another, and should have had fewer."""
        resumed, self._resumed = self._resumed, None
        if self.are_counted or resumed is None or batch in (0, resumed[1]):
            return
        first, last = resumed
        if batch - begun == last - first or (last == 0 and begun == 0 and first <= batch):
            how = f"after batch {last}" if last else "with its last batch"
            _log.warning(_DIFFERS, first, how, batch)
