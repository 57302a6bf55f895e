"""Whether ranks agree after a recovery, so that "exact" is told only where it was looked at.

The survivors have put back what the step began with, and the replacement has come to the same step by
its own way. Two things are compared over all ranks:

1. At the beginning of that step, the plain values: options of parameter groups, scheduler, scaler and
   objects. What was equal on all ranks at the end of the step before must be equal. If only
   replacements differ, they take the values of a survivor. This is before any gradient is made.
2. At its gate, before the update, the seals of parameters and slots that ranks hold alike, and the
   options, the scheduler and the scaler once more. A difference that is found here is in the
   gradients already.

What cannot be mended has all ranks start again from the newest checkpoint, or is told as not exact
if a checkpoint would not have it either (loop_draws.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from holdfast import _native
from holdfast.torch.loop.step_record import digest_values
from holdfast.torch.recover.loop_draws import LoopDraws, compare
from holdfast.torch.recover.peers import tell
from holdfast.torch.state.stateful import Stateful
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values.dotted_names import name_a_few
from holdfast.torch.values.trees import tensor_names_in

_OPTIONS = "options"  # the first part of the paths of options; others begin with "things"
_OF_UPDATES = ("scheduler", "scaler")  # objects that ranks with the same parameters hold alike

Told = Sequence[Mapping[str, Any]]


class Agreement:
    """Compares the state of this rank with that of all others."""

    def __init__(self, state: TrainingState, draws: LoopDraws) -> None:
        self._state, self._peers, self._draws = state, state.peers, draws
        self.inexact: list[str] = []  # what was found by the newest comparison, and cannot be mended
        self._at_start: dict[str, str] = {}

    def compare_starts(self, transport: _native.TcpTransport, record: Mapping[str, Any], *,
                       is_new: bool) -> str:
        """Compares what ranks begin a step with; `record` is of the end of the step before.

        A replacement (`is_new`) takes values of a survivor. Returns what could not be mended, or "".
        """
        values = self._values()
        told = tell(transport, {"before": self._digest(record), "now": self._digest(values),
                                "values": values, "is new": is_new, "draws": self._draws.told()})
        self.inexact = compare([one["draws"] for one in told])
        self._at_start = told[transport.rank]["now"]
        found = _parted(told)
        if not found:
            return ""
        old = [one for one in told if not one["is new"]]
        if not old or _parted(old) or not self._can_take(found, old[0]["values"]):
            return f"{name_a_few(found)}: other values on a replacement than on other ranks"
        if is_new:
            self._take(found, old[0]["values"])
        self._at_start = old[0]["now"]
        return ""

    def compare_at_gate(self, transport: _native.TcpTransport) -> str:
        """Compares tensors, and what an update depends on. Returns what differs, or ""."""
        now = {path: digest for path, digest in self._digest(self._values()).items()
               if path.startswith((f"{_OPTIONS}.", *(f"things.{key}" for key in _OF_UPDATES)))}
        told = tell(transport, {"before": self._at_start, "now": now, "tensors": self._seals()})
        tensors = _unequal([one["tensors"] for one in told])
        if found := [*(name.partition("[")[0] for name in tensors), *_parted(told)]:
            return f"{name_a_few(found)}: not equal on all ranks after a recovery"
        return ""

    def _values(self) -> dict[str, Any]:
        own = self._peers.own_keys
        return {_OPTIONS: self._peers.options(),
                "things": {key: tree for key, tree in self._peers.things().items() if key not in own}}

    def _digest(self, values: Mapping[str, Any]) -> dict[str, str]:
        own = {*self._peers.own_keys, "data"}
        things = {key: tree for key, tree in values["things"].items() if key not in own}
        return digest_values({_OPTIONS: values[_OPTIONS], "things": things})

    def _can_take(self, found: Sequence[str], values: Mapping[str, Any]) -> bool:
        """False if an object with tensors is among them: its tensors would have to come, too."""
        return not any(tensor_names_in(values["things"][one.key]) for one in self._objects_of(found))

    def _take(self, found: Sequence[str], values: Mapping[str, Any]) -> None:
        if any(path.split(".")[0] == _OPTIONS for path in found):
            self._peers.load_options(values[_OPTIONS])
        for one in self._objects_of(found):
            one.give(values["things"][one.key], {})

    def _objects_of(self, found: Sequence[str]) -> list[Stateful]:
        """The objects that the values of these paths belong to."""
        return [one for one in self._peers.but_loader()
                if any(f"{path}.".startswith(f"things.{one.key}.") for path in found)]

    def _seals(self) -> dict[str, str]:
        """The seals of parameters and slots, by name and box."""
        pieces = self._state.resting()
        if any(piece.tensor.is_cuda for piece, _ in pieces):
            torch.cuda.synchronize()
        seals = _native.Pieces(self._state.describe(pieces)).seals()
        return {f"{name}[{piece.box}]": seal
                for (piece, name), (_, seal) in zip(pieces, seals, strict=True)}


def _parted(told: Told) -> list[str]:
    """The paths of values that were equal on all ranks, and are not any more."""
    now = _unequal([one["now"] for one in told], is_missing="")
    before = set(_unequal([one["before"] for one in told], is_missing=""))
    return [path for path in now if path not in before]


def _unequal(ranks: Sequence[Mapping[str, str]], is_missing: str | None = None) -> list[str]:
    """The keys under which two ranks have different texts.

    A key that a rank does not have stands for the text `is_missing`, or is equal to any if that is None.
    """
    keys = {key: None for own in ranks for key in own}
    return [key for key in keys
            if len({text for own in ranks if (text := own.get(key, is_missing)) is not None}) > 1]
