"""Whether ranks agree after a recovery, so that "exact" is told only where it was looked at.

The survivors have put back what the step began with, and the replacement has come to the same step by
its own way. All ranks compare what they hold, twice:

1. At the beginning of that step, before any gradient is made: plain values (options of parameter groups,
   scheduler, scaler and objects) that were equal on all ranks at the end of the step before, and the
   seals of tensors that ranks hold alike. If only replacements differ, they take what the survivors have.
2. At its gate, before the update: the seals of parameters and slots, the options, the scheduler and the
   scaler. A difference that is found here is in the gradients already. Objects of the user's are compared,
   too: if only a replacement differs, the recovery is told as not exact.

What cannot be mended has all ranks start again from the newest checkpoint. It is told as not exact if
there is no checkpoint, or if a checkpoint would not have it either (loop_draws.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from holdfast import _native
from holdfast.torch.loop.step_record import digest_values
from holdfast.torch.recover.loop_draws import LoopDraws, compare
from holdfast.torch.recover.peers import PATIENCE, tell
from holdfast.torch.state.piece import Piece
from holdfast.torch.state.stateful import Stateful
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values.dotted_names import name_a_few
from holdfast.torch.values.trees import tensor_names_in

_OPTIONS = "options"  # the first part of the paths of options; others begin with "things"
_OF_UPDATES = ("scheduler", "scaler")  # objects that ranks with the same parameters hold alike

Told = Sequence[Mapping[str, Any]]
Pieces = Sequence[tuple[Piece, str]]  # with the names of their tensors


class Agreement:
    """Compares the state of this rank with that of all others."""

    def __init__(self, state: TrainingState, draws: LoopDraws) -> None:
        self._state, self._peers, self._draws = state, state.peers, draws
        self.inexact: list[str] = []  # what was found by the newest comparison, and cannot be mended
        self.unsaved: list[str] = []  # what was found, and no checkpoint has
        self._at_start: dict[str, str] = {}

    def compare_starts(self, transport: _native.TcpTransport, record: Mapping[str, Any], *,
                       is_new: bool) -> str:
        """Compares what ranks begin a step with; `record` is of the end of the step before.

        A replacement (`is_new`) takes what it has otherwise from the survivors. Returns what could not
        be mended, or "".
        """
        values, pieces = self._values(), self._peers.shared_pieces()
        told = tell(transport, {"before": self._digest(record), "now": self._digest(values),
                                "values": values, "is new": is_new, "draws": self._draws.told(),
                                "tensors": self._seals(pieces), **self._describe_objects(pieces)})
        old = [one for one in told if not one["is new"]]
        tensors, found = _of_new(told, "tensors"), _parted(told)
        self.inexact = compare([one["draws"] for one in told]) + _inexact_objects(told, tensors)
        if found and (not old or _parted(old) or not self._can_take(found, told)):
            return f"{name_a_few(found)}: other values on a replacement than on other ranks"
        taken = self._take_tensors(transport, tensors, pieces, is_new=is_new)
        if is_new and (found or tensors):
            self._take(found, [one["values"] for one in old], taken)
        self._at_start = self._digest(self._values())
        return ""

    def compare_at_gate(self, transport: _native.TcpTransport, *, is_new: bool) -> str:
        """Compares tensors, and what an update depends on. Returns what differs, or "".

        What only a replacement has otherwise among the objects of the user's is then in `inexact`.
        Ranks have begun the step alike, so what differs now depends on something that none of them
        has told, such as a variable of the program: survivors have changed it twice, and a replacement
        has it from its own beginning. So nobody is known to have it right, and no checkpoint has it.
        """
        digests = self._digest(self._values())
        now = {path: digest for path, digest in digests.items() if _is_of_update(path)}
        own = {path: digest for path, digest in digests.items() if path not in now}
        objects = [(piece, name) for piece, name in self._peers.shared_pieces()
                   if piece.kind == "object"]
        told = tell(transport, {"before": self._at_start, "now": now, "own": own, "is new": is_new,
                                "tensors": self._seals(self._state.resting()),
                                "tensors of objects": self._seals(objects)})
        before = set(_unequal([one["before"] for one in told], is_missing=""))
        self.inexact = [f"{_named(one)}: other values on a replacement than on other ranks"
                        for one in (*_of_new(told, "own"), *_of_new(told, "tensors of objects"))
                        if one not in before]
        tensors = _unequal([one["tensors"] for one in told])
        if found := [*map(_named, tensors), *_parted(told)]:
            self.unsaved = [f"{name_a_few(found)}: a step depends on something that no checkpoint has"]
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

    def _describe_objects(self, pieces: Pieces) -> dict[str, Any]:
        """Which object each tensor belongs to, and which objects also have tensors of this rank's own."""
        objects = {one.key: one.capture()[1] for one in self._peers.but_loader()}
        of = {piece.name: key for key, held in objects.items() for piece in held}
        return {"objects": {_key(piece, name): of[piece.name] for piece, name in pieces
                            if piece.kind == "object" and piece.name in of},
                "mixed": [key for key, held in objects.items() if any(one.copies == "own" for one in held)]}

    def _can_take(self, found: Sequence[str], told: Told) -> bool:
        """False if an object with these paths has other tensors on another rank."""
        return all(len({tuple(tensor_names_in(rank["values"]["things"].get(one.key))) for rank in told}) == 1
                   for one in self._objects_of(found))

    def _take_tensors(self, transport: _native.TcpTransport, keys: Sequence[str], pieces: Pieces, *,
                      is_new: bool) -> dict[str, torch.Tensor]:
        """Fills these tensors of replacements. Returns the tensors of objects that were filled here."""
        if not keys:
            return {}
        chosen = [(piece, name) for piece, name in pieces if _key(piece, name) in set(keys)]
        mine, none = self._state.describe(chosen), _native.Pieces([])
        _native.change_layout(transport, none if is_new else mine, mine if is_new else none, PATIENCE)
        return {piece.name: piece.tensor for piece, _ in chosen if piece.kind == "object"}

    def _take(self, found: Sequence[str], survivors: Sequence[Mapping[str, Any]],
              taken: Mapping[str, torch.Tensor]) -> None:
        """Gives the objects with these paths, or with tensors that were taken, the values of a survivor.

        The object of another stage has other tensors. If no survivor has the same, its values stay.
        """
        if any(path.split(".")[0] == _OPTIONS for path in found):
            self._peers.load_options(survivors[0][_OPTIONS])
        changed = self._objects_of(found)
        for one in self._peers.but_loader():
            own, pieces = one.capture()
            tensors = {piece.name: piece.tensor for piece in pieces}
            if one in changed or tensors.keys() & taken.keys():
                trees = [values["things"].get(one.key) for values in survivors]
                tree = next((tree for tree in trees if tensor_names_in(tree) == tensor_names_in(own)), own)
                one.give(tree, {name: taken.get(name, tensor).clone() for name, tensor in tensors.items()})

    def _objects_of(self, found: Sequence[str]) -> list[Stateful]:
        """The objects that the values of these paths belong to."""
        return [one for one in self._peers.but_loader()
                if any(f"{path}.".startswith(f"things.{one.key}.") for path in found)]

    def _seals(self, pieces: Pieces) -> dict[str, str]:
        """The seals of these pieces, by name and box."""
        if any(piece.tensor.is_cuda for piece, _ in pieces):
            torch.cuda.synchronize()
        seals = _native.Pieces(self._state.describe(list(pieces))).seals()
        return {_key(piece, name): seal for (piece, name), (_, seal) in zip(pieces, seals, strict=True)}


def _key(piece: Piece, name: str) -> str:
    return f"{name}[{piece.box}]"


def _named(key: str) -> str:
    """The name in a key of a tensor, or in the path of a value of an object."""
    return key.removeprefix("things.").partition("[")[0]


def _is_of_update(path: str) -> bool:
    return path.startswith((f"{_OPTIONS}.", *(f"things.{key}" for key in _OF_UPDATES)))


def _inexact_objects(told: Told, of_new: Sequence[str]) -> list[str]:
    """What cannot be taken from a survivor; `of_new` are the keys of tensors that will be.

    All ranks find the same: the launcher hears of it from the first one that makes its update.
    """
    of = {key: name for one in told for key, name in one["objects"].items()}
    apart = _unequal([one["tensors"] for one in told if not one["is new"]])
    mixed = {of[key] for key in of_new if key in of} & {name for one in told for name in one["mixed"]}
    return [f"{_named(key)}: differs between ranks, so that a replacement has that of another rank"
            for key in apart if key in of] + [
            f"{name}: changes before ck.run(), and has tensors that differ between ranks"
            for name in sorted(mixed)]


def _of_new(told: Told, key: str) -> list[str]:
    """What replacements have otherwise than the survivors, who all have the same of it."""
    old = [one[key] for one in told if not one["is new"]]
    apart = set(_unequal(old))
    known = {name for one in old for name in one}
    return [name for name in _unequal([one[key] for one in told]) if name in known and name not in apart]


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
