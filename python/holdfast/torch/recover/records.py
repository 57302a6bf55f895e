"""The records of a rank: what no other rank has, for the process that may replace it.

A record is made at the gate of each update, and goes to another rank, the buddy, before any rank
makes the update. It is made again at the end of each step, and sent without waiting, because a
training may change more until then: an average of its own statistics, a counter, a generator that
it draws from. If the rank dies in between, the record is of the gate, and what the other ranks saw
changing since then is named as not exact.
"""

from typing import Any

import torch

from holdfast.torch.recover.flat_copy import FlatCopy
from holdfast.torch.recover.kept_gradients import MOST_BYTES
from holdfast.torch.recover.record_bytes import States, pack_record, unpack_record
from holdfast.torch.recover.repeated_calls import Call, RepeatedCalls, pack_calls
from holdfast.torch.state import gradients
from holdfast.torch.state.peer_step import Record
from holdfast.torch.state.training_state import TrainingState


class Records:
    """The newest records of this rank."""

    def __init__(self, state: TrainingState, repeated: RepeatedCalls) -> None:
        """The repeated calls say whether gradients are part of a record, and which loaders were not given."""
        self._state, self._kept_gradients, self._unknown = state, repeated.gradients, repeated.unknown
        self._flat, self._states = FlatCopy([]), States()
        self._versions: list[int] = []
        self.newest = b""
        self.seal: dict[str, Any] = {}  # what messages.py adds to the records of the update that is made
        self.is_at_end = False  # the newest was made at the end of a step or run
        self.is_open = False  # ... and the loop has neither asked for a batch nor begun a run since
        self.values: dict[str, Any] = {}  # the plain values of the newest record
        self.data = b""  # the bytes of the tensors of the newest record
        self.at_gate: dict[str, Any] = {}  # the values of the newest one made at a gate
        self._data_at_gate = b""
        # The copies whose bytes these are: _flat may belong to a record that was never taken.
        self._flat_of_data = self._flat_at_gate = self._flat
        # The values when the loop took its last batch, or None if that was before the first step.
        self._at_top: dict[str, Any] | None = None
        # The position of the loader at the begin of a run that undo.py makes again, after the loop has gone on.
        self.position: Any = None

    def capture(self) -> Record:
        """What only this rank has, now. Nothing is copied yet."""
        made = self._state.peers.record(self._state.gradients,
                                        MOST_BYTES if self._kept_gradients["are kept"] else 0)
        if self.position is not None:
            made.values["things"]["data"] = self.position
        return made

    def loader_state(self) -> Any:
        """The position of the loader in a record that is made now."""
        return self._state.peers.loader_state() if self.position is None else self.position

    def mark(self) -> dict[str, Any]:
        """What go_back() needs to come back to here."""
        return dict(vars(self))

    def go_back(self, mark: dict[str, Any]) -> None:
        """The newest records are those of then."""
        vars(self).update(mark)

    def has_moved(self, record: Record | None = None) -> bool:
        """Whether the loader gave batches between the newest record and that one, or now."""
        if not self.values:
            return False
        now = self.loader_state() if record is None else _loader_state(record.values)
        return now != _loader_state(self.values)

    def note_top(self, generators: dict[str, Any]) -> bool:
        """Notes the generators where the loop begins a step. True if it has drawn since the record."""
        self.is_open = False
        top = None if generators == self.values["generators"] else generators
        if top == self.values["at top"]:
            return False
        self.values["at top"] = top
        self.newest = pack_record(self.values, self.data, self._states)
        return True

    def make_at_gate(self, record: Record, calls: list[Call], *, is_top: bool) -> "Made":
        """The record for the gate of an update; `is_top` if it is the first at a new batch."""
        top = self._at_top
        if is_top:
            calls, top = [], start_of(self.values) if self.values else None
        return self._make(record, calls, top, must_copy=True)

    def make_at_end(self, calls: list[Call]) -> bytes:
        """The record at the end of a step, or of a run that others follow."""
        self._take(self._make(self.capture(), calls, self._at_top, must_copy=False))
        self.is_at_end = self.is_open = True
        return self.newest

    def _take(self, made: "Made") -> None:
        self.values, self.data, self.newest = made.values, made.data, made.packed
        self._flat_of_data = made.flat

    def take(self, made: "Made") -> None:
        """Makes a record of a gate the newest one: the update is committed."""
        self._at_top = made.values["top"]
        self.at_gate, self._data_at_gate, self._flat_at_gate = made.values, made.data, made.flat
        self.is_at_end = self.is_open = False
        self._take(made)

    def load(self, packed: bytes) -> None:
        """Takes over the record of a lost rank."""
        values, data = unpack_record(packed)
        self.take(Made(values, data, packed, FlatCopy([])))
        self.is_at_end = self.is_open = True

    def changed(self) -> list[str]:
        """The values that only this rank has and that changed since the last gate, by their keys."""
        if not self.at_gate:
            return []
        keys = [key for key in sorted(self._state.peers.own_keys | {"data"})
                if self.values["things"].get(key) != self.at_gate["things"].get(key)]
        keys += ["generators"] if self.values["generators"] != self.at_gate["generators"] else []
        now = _named(self.values, self._flat_of_data.parts(self.data))
        then = _named(self.at_gate, self._flat_at_gate.parts(self._data_at_gate))
        # Their bytes are not in all records.
        now, then = {**now, **self.values["seals"]}, {**then, **self.at_gate["seals"]}
        # Other names: gradients were made or dropped.
        return keys + [name for name in {**then, **now} if now.get(name) != then.get(name)]

    def has_gradients(self) -> bool:
        """True if the newest record has gradients, which the next step adds to."""
        return bool(self.values.get(gradients.KEY, {"of": ()})["of"])

    def changed_things(self) -> list[str]:
        """The keys of objects that have changed between the last gate and the newest record."""
        gate = self.at_gate.get("things", {})
        return [key for key, tree in self.values["things"].items() if gate.get(key) != tree]

    def _make(self, record: Record, calls: list[Call], top: Any, *, must_copy: bool) -> "Made":
        values = {**record.values, **self.seal, "top": top, "at top": None,
                  "unknown": list(self._unknown), "calls": pack_calls(calls, on_cpu_only=True)}
        data = self._copy(record.tensors, must_copy)
        return Made(values, data, pack_record(values, data, self._states), self._flat)

    def _copy(self, tensors: list[torch.Tensor], must_copy: bool) -> bytes:
        """The bytes of the tensors. Reading a GPU takes time: unchanged ones are not read again."""
        versions = [one._version for one in tensors]
        is_same = self._flat.is_of(tensors)
        if not is_same:
            self._flat = FlatCopy(tensors)
        elif not must_copy and versions == self._versions and any(one.is_cuda for one in tensors):
            return self.data
        self._versions = versions
        self._flat.take()
        return self._flat.data()


class Made:
    """A record that was made: its values, the bytes of its tensors, both as bytes, and the copies of the tensors."""

    def __init__(self, values: dict[str, Any], data: bytes, packed: bytes, flat: FlatCopy) -> None:
        self.values, self.data, self.packed, self.flat = values, data, packed, flat


def _named(values: dict[str, Any], parts: list[bytes]) -> dict[str, Any]:
    """The bytes of the tensors of a record by name; without their bytes if it was made elsewhere."""
    names = [name for name, *_ in values["tensors"]]
    return dict(zip(names, parts if len(parts) == len(names) else [b""] * len(names), strict=True))


def start_of(values: dict[str, Any]) -> dict[str, Any]:
    """What a loop begins with: the position of the loader, and the generators."""
    return {"data": values["things"].get("data"), "generators": values["generators"],
            "data draws": values.get("data draws")}


def _loader_state(values: dict[str, Any]) -> Any:
    return values["things"].get("data")
