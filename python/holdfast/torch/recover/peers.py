"""Carries the state of a lost rank from the others to its replacement."""

import pickle
from dataclasses import dataclass, field
from typing import Any

from holdfast import _native
from holdfast.torch.loop.resume import missing_or_reshaped
from holdfast.torch.recover.flat_copy import FlatCopy
from holdfast.torch.state.ddp_buckets import BucketOrders
from holdfast.torch.state.peer_step import PeerStep, PeerTensor, Record, describe, own_objects
from holdfast.torch.state.training_state import TrainingState

_PATIENCE = 600.0  # seconds that ranks wait for each other while a replacement is filled


def pack_record(record: Record) -> bytes:
    """A record as bytes."""
    flat = FlatCopy(record.tensors)
    flat.take()
    return pickle.dumps((record.values, flat.data()))


def values_of(record: bytes) -> dict[str, Any]:
    """The plain values of a record."""
    values: dict[str, Any] = pickle.loads(record)[0]
    return values


@dataclass
class Filled:
    """How a replacement was filled."""

    step: int  # the last step that is done
    moved: int  # bytes that it got
    function: str  # that the survivors are making a step with; "" if they are at the end
    inexact: list[str] = field(default_factory=list)


def give(transport: _native.TcpTransport, state: TrainingState, buckets: BucketOrders,
         objects: tuple[Any, Any], *, step: int, function: str, record: bytes, peer: int, record_of_peer: bytes | None) -> None:
    """Gives replacements what they need of this rank. Called by all survivors.

    `record` is this rank's own of the last update, and `record_of_peer` what it keeps of `peer`.
    """
    shared = state.shared_pieces()
    tell(transport, {
        "step": step, "function": function, "objects": objects[0], "rank objects": objects[1],
        "tensors": [describe(piece, name) for piece, name in shared],
        "flags": buckets.sync_flags(), "peer": peer, "record": record_of_peer,
        "differing": _differing(record, record_of_peer, state.own_keys),
    })
    _native.fill_from_peers(transport, state.describe(shared), True, _PATIENCE)


def receive(transport: _native.TcpTransport, state: TrainingState, buckets: BucketOrders,
            rank: int) -> tuple[Filled, bytes]:
    """Fills this replacement. Returns how, and its record."""
    told = {other: one for other, one in enumerate(tell(transport, None)) if one is not None}
    first = told[min(told)]
    kept = next((one for one in told.values() if one["peer"] == rank), None)
    if kept is None or kept["record"] is None:
        raise LookupError("the rank that kept its record is lost, too")
    values, flat = pickle.loads(kept["record"])
    twin = _twin(state, told)
    ranks = [_at_record(told[other]["rank objects"], values) if other in told else None
             for other in range(transport.size)]
    mine = own_objects(values, state.own_keys, twin["rank objects"], set(kept["differing"]))
    found = PeerStep(
        first["step"],
        [PeerTensor.of(one) for one in _unique([*_all_tensors(told), *values["tensors"]])],
        _at_record(first["objects"], values), [mine if one is None else one for one in ranks])
    moved = _fill(transport, state, found, values, flat)
    state.load(found)
    inexact = [f"{key}: differs between ranks, and is as it was before the update"
               for key in kept["differing"]]
    if failed := buckets.restore(twin["objects"]["buckets"]):
        raise ValueError(f"buckets of {failed[0]}")  # its collective calls would not fit
    buckets.set_sync_flags(twin["flags"])
    state.restore_generators(found, inexact)
    return Filled(first["step"], moved, first["function"], inexact), kept["record"]


def tell(transport: _native.TcpTransport, message: Any) -> list[Any]:
    """What all ranks tell each other, by rank."""
    return [pickle.loads(one) for one in transport.all_gather(pickle.dumps(message), _PATIENCE)]


def _fill(transport: _native.TcpTransport, state: TrainingState, found: PeerStep,
          values: dict[str, Any], flat: bytes) -> int:
    own = {name: index for index, (name, *_) in enumerate(values["tensors"])}
    expected = {name: one for name, one in state.expected(found).items()}  # type: ignore[arg-type]
    if wrong := missing_or_reshaped(expected, found.tensors):
        raise ValueError(f"the replacement is of another model: {wrong[0]}")
    pieces = state.allocate_all(found)  # type: ignore[arg-type]
    shared = [(piece, name) for piece, name in pieces if name not in own]
    filled = _native.fill_from_peers(transport, state.describe(shared), False, _PATIENCE)
    of_record = sorted(((own[name], piece) for piece, name in pieces if name in own),
                       key=lambda pair: pair[0])
    copy = FlatCopy([piece.tensor for _, piece in of_record])
    copy.load(flat)
    copy.put_back()
    return filled.received


def _at_record(objects: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """The objects, with the loader where it was: survivors hold their next batch already."""
    data = {key: tree for key, tree in record["things"].items() if key == "data"}
    return {**objects, "things": {**objects.get("things", {}), **data}}


def _differing(mine: bytes, other: bytes | None, own_keys: set[str]) -> list[str]:
    """The keys of objects whose values two ranks did not share when they made their records."""
    if other is None:
        return []
    ours, theirs = (pickle.loads(one)[0]["things"] for one in (mine, other))
    return [key for key in theirs if key not in {*own_keys, "data"} and ours.get(key) != theirs[key]]


def _twin(state: TrainingState, told: dict[int, Any]) -> Any:
    """The rank that holds tensors of the same names as this one; else the lowest."""
    mine = {name for name in state.expected()}

    def shared_names(other: int) -> int:
        return -len(mine & {one[0] for one in told[other]["tensors"]})

    return told[min(told, key=lambda other: (shared_names(other), other))]


def _all_tensors(told: dict[int, Any]) -> list[Any]:
    return [one for other in sorted(told) for one in told[other]["tensors"]]


def _unique(tensors: list[Any]) -> list[Any]:
    return list({one[0]: one for one in tensors}.values())

