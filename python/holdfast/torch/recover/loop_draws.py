"""Random numbers that a loop draws outside of its steps.

Between ck.step() and the next ck.run(), a loop may draw numbers behind the one (a validation) and
in front of the other (noise for the step). The process that replaces a lost rank begins its loop at
the top: it does not make the first of these draws, and makes the second itself. So a record has the
generators twice: at the end of the step, where a replacement begins, and where the loop then first
asks for a batch or calls ck.run(). A replacement that comes there without a draw takes over the
second; if it has drawn, it must have come to them. If the lost rank did not live to come there, its
replacement must have drawn as much as every survivor. Otherwise the recovery is not exact.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.torch.recover.records import Records
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values import generators as random_generators

_LOST = "generators: random numbers are drawn behind ck.step(), where the rank was lost"
_OTHER = "generators: the replacement has drawn other random numbers before ck.run() than the lost rank"


class LoopDraws:
    """The draws of one rank between the end of a step and the next one."""

    def __init__(self, state: TrainingState, records: Records) -> None:
        self._state, self._records = state, records
        self._own: dict[str, Any] | None = None  # of a replacement, until it has come to the others
        self._before: dict[str, Any] = {}  # its generators when it was filled
        self._drew_before_iterator = False  # from generators that were not restored yet
        self._why = ""  # why this rank is not sure to be exact

    def take_over(self, own: dict[str, Any]) -> None:
        """This process replaces a rank. It restores own["generators"], now or with its loader."""
        self._own, self._before = own, self._state.peers.generators()

    def begin_iteration(self) -> None:
        """A loader is about to make its iterator, with which generators are restored."""
        if self._own is not None and self._state.data.awaits_iterator:
            self._drew_before_iterator = self._state.peers.generators() != self._before

    def reach(self) -> bool:
        """The loop asks for a batch, or calls run(). True if the newest record has changed by that."""
        if not self._records.is_open:
            return False
        now = self._state.peers.generators()
        if self._own is not None:
            now = self._arrive(self._own, now)
            self._own = None
        return self._records.note_top(now)

    def _arrive(self, own: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
        """The generators of a replacement, which gets those of the lost rank if it has not drawn."""
        waits = self._state.data.awaits_iterator  # for the generators to be restored
        begun, lost = (self._records.values[key] for key in ("generators", "at top"))
        has_drawn = self._drew_before_iterator or now != (self._before if waits else begun)
        self._why = _LOST if lost is None else ""
        if has_drawn or lost is None:
            if has_drawn and lost is not None and now != lost:
                self._why = _OTHER
            return begun if waits and not has_drawn else now
        own["generators"] = lost
        if not waits:
            random_generators.restore(lost, self._state.generators)
        return lost

    def told(self) -> dict[str, Any]:
        """What compare() needs of this rank."""
        values, why = self._records.values, self._why
        self._why = ""
        begun = values["generators"]
        moved = random_generators.distances(begun, values["at top"] or begun)
        return {"moved": moved, "why": why}


def compare(ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why a recovery is not exact, by what all ranks have told; empty if it is."""
    return sorted({one["why"] for one in ranks if one["why"] == _OTHER or one["why"] and any(
        other["moved"] != one["moved"] for other in ranks)})
