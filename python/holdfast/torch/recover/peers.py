"""Carries the state of a lost rank from the others to its replacement.

Everything that ranks tell each other is plain values, encoded as in a checkpoint: nothing is pickled.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast import Box, _native, intersect
from holdfast.torch.loop.resume import missing_or_reshaped
from holdfast.torch.recover.buddies import KeptRecord
from holdfast.torch.recover.flat_copy import FlatCopy
from holdfast.torch.recover.record_bytes import pack_record, unpack_record
from holdfast.torch.recover.records import Records, start_of
from holdfast.torch.recover.repeated_calls import Call, unpack_calls
from holdfast.torch.state import gradients
from holdfast.torch.state.ddp_buckets import BucketOrders
from holdfast.torch.state.diverged_replicas import BUFFER_SEALS
from holdfast.torch.state.peer_step import PeerStep, PeerTensor, describe, own_objects
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values import generators as random_generators
from holdfast.torch.values.dotted_names import name_a_few, plain_name

# Ranks that make "messages" (runs) or "updates" again, behind an update and up to another one.
Replaying = dict[int, tuple[str, int, int]]

PATIENCE = 600.0  # seconds that ranks wait for each other while a replacement is filled


@dataclass
class Filled:
    """How a replacement was filled."""

    moved: int  # bytes that it got
    repeated: dict[str, Any]  # of a survivor
    calls: list[Call]  # that this rank makes until it is where the others are
    record: bytes  # of this rank
    inexact: list[str]
    own: dict[str, Any]  # the objects of this rank, as a checkpoint has them
    arrive: Callable[[], None]  # restores what may have changed on the way to the others


def give(transport: _native.TcpTransport, state: TrainingState, buckets: BucketOrders,
         objects: tuple[Any, Any], *, repeated: dict[str, Any], records: Records,
         kept: list[KeptRecord], is_outside: bool, groups: list[Any],
         messages: dict[str, Any], serve: Callable[[Replaying], None]) -> Replaying:
    """Gives replacements what they need of this rank. Called by all survivors.

    `kept` are records of lost ranks. `is_outside` if this rank has made collective calls since its
    last batch and outside of ck.run(). `groups` are the process groups of this rank. `messages` says
    what it has kept for others, and `serve` sends it. Returns the ranks that make steps or updates again.
    """
    shared = state.peers.shared_pieces()
    tell(transport, {
        "groups": groups, "repeated calls": repeated, "messages": messages,
        "objects": _at_record(objects[0], records.values),
        "rank objects": _with_options(_at_record(objects[1], records.values), records.values),
        "tensors": [describe(piece, name) for piece, name in shared],
        "boxes": {name: piece.box.extents for piece, name in shared if piece.kind == "parameter"},
        "flags": buckets.sync_flags(), "is outside": is_outside, "changed": records.changed(),
        "has gradients": records.has_gradients(),
        "kept": [{"peer": one.peer, "record": one.record, "is at end": one.is_at_end,
                  "is first": one.is_first, "changed things": records.changed_things(),
                  "differing": _differing(records, one, state.peers.own_keys),
                  "averaged": _differing_averages(records, one)} for one in kept],
    })
    replaying = answer(transport, None)
    serve(replaying)
    wait_for(transport, replaying, "updates")
    _native.change_layout(transport, state.describe(shared), _native.Pieces([]), PATIENCE)
    return replaying


@dataclass
class Heard:
    """What survivors have told a replacement."""

    told: dict[int, Any]  # by rank
    kept: dict[str, Any]  # the record of the lost rank, and what a buddy said of it
    values: dict[str, Any]  # that record
    flat: bytes  # the bytes of the tensors in it
    lacks: str  # a tensor that no other rank has; "" if there is none
    lacks_twin: bool  # no other rank has a part of each parameter of this one
    replaying: Replaying = field(default_factory=dict)  # what answer() has returned

    def messages(self) -> dict[int, Any]:
        """What each survivor has kept for others."""
        return {rank: one["messages"] for rank, one in self.told.items()}

    def check_seal(self, seal: int) -> None:
        """ValueError if the lost rank has told another seal of its parameters, at the end of its last update."""
        if self.kept["is at end"] and self.values.get("after", seal) != seal:
            raise ValueError("the parameters that updates have made are not those that the lost rank had")


def hear(transport: _native.TcpTransport, state: TrainingState, rank: int, groups: list[Any]) -> Heard:
    """Hears what survivors have. This replacement has those process groups."""
    told = {other: one for other, one in enumerate(tell(transport, {})) if one}
    if late := _missing_group({rank: groups} | {one: told[one]["groups"] for one in told}):
        raise LookupError(f"process group {late} was made after start-up, so that a replacement does "
                          "not have it; expected dist.new_group() before ck.resume()")
    if parted := sorted({name for one in told.values() for names in one["objects"]["parted"].values()
                         for name in names}):
        raise LookupError(f"{name_a_few(parted)}: differs between ranks, and no other rank has that of "
                          "the lost one")
    kept, values, flat = _newest_record(told, rank)
    state.peers.still.take_over(values)
    there = {one for tensors in (_all_tensors(told), values["tensors"])
             for name, *_, aliases in tensors for one in (name, *aliases)}
    lacks = [name for name in state.expected() if name not in there] + _uncovered(state, told)
    mine = {name for piece, name in state.resting() if piece.kind == "parameter"}
    lacks_twin = not any(mine <= set(one["boxes"]) for one in told.values())
    return Heard(told, kept, values, flat, lacks[0] if lacks else "", lacks_twin)


def _uncovered(state: TrainingState, told: dict[int, Any]) -> list[str]:
    """The parameters of which this rank has a part that the others do not have."""
    return [name for piece, name in state.resting() if piece.kind == "parameter"
            and not _is_covered(piece.box, {Box([*map(tuple, one["boxes"][name])]) for one in told.values()
                                            if name in one["boxes"]})]


def _is_covered(box: Box, others: set[Box]) -> bool:
    """Whether boxes that do not overlap cover that one."""
    common = [intersect(box, other) for other in others]
    return sum(one.elements for one in common if one is not None) >= box.elements


def answer(transport: _native.TcpTransport, replays: tuple[str, int, int] | None) -> Replaying:
    """Tells whether this rank makes "messages" or "updates" again: those behind one update and up to another.

    Returns what all ranks have told of that.
    """
    told = tell(transport, {"replays": replays})
    return {rank: tuple(one["replays"]) for rank, one in enumerate(told) if one["replays"]}


def wait_for(transport: _native.TcpTransport, replaying: Replaying, rung: str) -> None:
    """Returns when the ranks that make these again have come to where the others are."""
    if any(one[0] == rung for one in replaying.values()):
        tell(transport, {}, patience=None)


def receive(transport: _native.TcpTransport, state: TrainingState, buckets: BucketOrders, rank: int,
            heard: Heard, made: set[str] | None) -> Filled:
    """Fills this replacement from ranks that have what the lost one had.

    `made` has the names of the tensors that this rank has by its own updates; None if it makes none again.
    """
    told, kept, values, flat = heard.told, heard.kept, heard.values, heard.flat
    twin = twin_of(state, told)
    _check_gradients(values, twin["repeated calls"]["gradients"])
    drops = _drops_gradients(values, told, kept)
    inexact = [*values.get("inexact", []), *_find_inexact(told, kept, drops)]
    inexact += [f"{name}: differs between ranks, so that a replacement has that of another rank"
                for name in kept["averaged"]]
    unknown = twin["repeated calls"]["unknown"]
    unknown += [name for name in values["unknown"] if name not in unknown]
    inexact += [f"{name}: was not given as data=, so that a replacement may read other samples"
                for name in unknown]
    calls = _choose_calls(values, twin, told, inexact)
    found = _make_step(values, start_of(values) if not calls else values["top"], twin, kept, told,
                       transport.size, rank, state)
    if made is None:
        heard.replaying = answer(transport, None)
    wait_for(transport, heard.replaying, "updates")
    moved = _fill(transport, state, found, values, flat, made or set())
    state.load(found, keep=bool(calls))  # type: ignore[arg-type]
    if failed := buckets.restore(twin["objects"]["buckets"]):
        raise ValueError(f"buckets of {failed[0]}")  # its collective calls would not fit
    buckets.set_sync_flags(twin["flags"])
    things = {**state.peers.things(), **{key: tree for key, tree in values["things"].items()
                                   if key == "data"}}
    state.restore_generators(found, inexact)  # type: ignore[arg-type]

    state.load_gradients()
    if drops:
        state.gradients().load_state_dict({"of": {}})

    def arrive() -> None:
        if calls:
            state.load_again(found)  # type: ignore[arg-type]
            random_generators.restore(values["generators"], state.generators)

    # The next process in this place, if this one dies in its first step, has no other record.
    record = {**values, "things": things, "options": state.peers.options(), "inexact": inexact}
    return Filled(moved, twin["repeated calls"], calls, pack_record(record, flat), inexact, found.rank_objects[rank],
                  arrive)


def _newest_record(told: dict[int, Any], rank: int) -> tuple[Any, dict[str, Any], bytes]:
    """What a buddy has said of the record of a lost rank, with its values and bytes.

    Of two records of the same update, the newer one: the other buddy may not have got it any more.
    """
    found = [(one, *unpack_record(one["record"])) for other in told.values() for one in other["kept"]
             if one["peer"] == rank]
    if not found:
        raise LookupError("the ranks that kept its record are lost, too")
    return max(found, key=lambda one: (one[0]["is at end"], one[1]["at top"] is not None,
                                       len(one[1]["calls"]), one[0]["is first"]))


def _check_gradients(record: dict[str, Any], known: dict[str, bool]) -> None:
    """LookupError if the step needs gradients of earlier ones, and the record does not have them."""
    found = record.get(gradients.KEY)
    if known["is unsure"] or known["are kept"] and (found is None or found["lost"]):
        raise LookupError("a rank died that had kept gradients of earlier steps, which are not in its "
                          "record; expected zero_grad() in each step")


def _drops_gradients(record: dict[str, Any], told: dict[int, Any], kept: Any) -> bool:
    """Whether the gradients of a record are those before zero_grad(), which all survivors have called.

    The record says so from now on, because it may have to fill another process.
    """
    found = record.get(gradients.KEY)
    if found is not None and not kept["is at end"]:
        found["dropped"] = not any(one["has gradients"] for one in told.values())
    return found is not None and found.get("dropped", False)


def tell(transport: _native.TcpTransport, message: Any, patience: float | None = PATIENCE) -> list[Any]:
    """What all ranks tell each other, by rank."""
    return [_native.decode_objects(one)
            for one in transport.all_gather(_native.encode_objects(message), patience)]


def _make_step(values: dict[str, Any], start: dict[str, Any], twin: Any, kept: Any,
               told: dict[int, Any], world: int, rank: int, state: TrainingState) -> PeerStep:
    """The state as a checkpoint would have it; the loop begins with `start`."""
    first = told[min(told)]
    mine = own_objects(values, state.peers.own_keys, twin["rank objects"], set(kept["differing"]))
    if kept["is at end"]:
        mine = _with_options(mine, values)
    mine["generators"] = start["generators"]
    if start["data draws"] is not None:
        mine["data draws"] = start["data draws"]
    ranks = [told[other]["rank objects"] if other in told else mine for other in range(world)]
    tensors = [PeerTensor.of(one) for one in _unique([*_all_tensors(told), *values["tensors"]])]
    return PeerStep(first["repeated calls"]["last step"], tensors, _begin_at(first["objects"], start),
                    [_begin_at(one, start) for one in ranks])


def _choose_calls(values: dict[str, Any], twin: Any, told: dict[int, Any],
                  inexact: list[str]) -> list[Call]:
    """The calls to skip: with the results of the lost rank, else with those of one like it."""
    repeated = twin["repeated calls"]
    if any(one["is outside"] for one in told.values()):
        raise LookupError("ranks made collective calls between two calls of ck.run() or ck.step(), "
                          "and a replacement cannot; expected them inside of ck.run()")
    if not repeated["is known"]:
        raise LookupError("the loop has made too many calls since it took a batch")
    if repeated["calls"] and values["top"] is None:
        raise LookupError("a rank died in the first step")
    own = {place: call for place, call in enumerate(values["calls"])}
    chosen = []
    for place, call in enumerate(repeated["calls"]):
        mine = own.get(place)
        is_own = mine is not None and mine[:2] == call[:2] and not mine[3]
        chosen.append(mine if is_own else call)
        others = [one["repeated calls"]["calls"][place] for one in told.values()]
        if not is_own and any(one != call for one in others):
            inexact.append(f"ck.{call[0]}({call[1]}): returned in the replacement what it had "
                           "returned in another rank")
    for kind, name, _, unkept in chosen:
        if unkept:
            raise LookupError(f"ck.{kind}({name}) was made already, and returned {unkept}; expected "
                              "numbers or small tensors")
    return unpack_calls(chosen)


def _find_inexact(told: dict[int, Any], kept: Any, drops: bool) -> list[str]:
    """What the lost rank may have changed after its update, so that its record does not have it.

    Empty if the record is that of the end of a step. `drops` if gradients are known to be dropped.
    """
    if kept["is at end"]:
        return []
    when = "between the update and the end of its step"
    changed = {plain_name(key) for one in told.values() for key in one["changed"]
               if not (drops and key.startswith(gradients.KEY))}
    lines = [f"{name_a_few(sorted(changed))}: changes {when}, in which the rank was lost"] if changed else []
    things = [one["objects"].get("things", {}) | one["rank objects"].get("things", {})
              for one in told.values()]
    unequal = {key for one in things for key in one if key != "data"
               and any(key in other and other[key] != one[key] for other in things)}
    unequal |= set(kept["differing"])
    return lines + [f"{key}: differs between ranks, and changes {when}, in which the rank was lost"
                    for key in sorted(unequal & set(kept["changed things"]) - changed)]


def _fill(transport: _native.TcpTransport, state: TrainingState, found: PeerStep,
          values: dict[str, Any], flat: bytes, made: set[str]) -> int:
    own = {name: index for index, (name, *_) in enumerate(values["tensors"])}
    expected = {name: one for name, one in state.expected(found).items()}  # type: ignore[arg-type]
    if wrong := missing_or_reshaped(expected, found.tensors):
        if wrong[0].endswith(" is missing"):
            raise LookupError(f"{wrong[0]}: no other rank has it")
        raise ValueError(f"the replacement is of another model: {wrong[0]}")
    pieces = state.allocate_all(found)  # type: ignore[arg-type]
    shared = [(piece, name) for piece, name in pieces if name not in own and name not in made]
    if lost := values["seals"].keys() - own.keys() - {name for _, name in shared}:
        raise LookupError(f"{min(lost)}: no other rank has it")
    filled = _native.change_layout(transport, _native.Pieces([]), state.describe(shared), PATIENCE)
    of_record = sorted(((own[name], piece) for piece, name in pieces if name in own),
                       key=lambda pair: pair[0])
    copy = FlatCopy([piece.tensor for _, piece in of_record])
    copy.load(flat)
    copy.put_back()
    taken = state.peers.still.seals(shared)
    if others := [name for name, seal in values["seals"].items() if taken.get(name, seal) != seal]:
        raise ValueError(f"{others[0]}: other bits on the other ranks than the lost one had, which had told them once")
    return filled.received


def _at_record(objects: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The objects as they were at the end of the step: the loop may have changed them since."""
    things = {key: values["things"].get(key, tree)
              for key, tree in objects.get("things", {}).items()}
    return {**objects, "things": things}


def _with_options(objects: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The objects of a rank, with the options of parameter groups that a record has.

    The loop may have changed a learning rate since then, and the replacement makes it do so again.
    """
    own = objects["optimizer"]
    if len(own["groups"]) != len(values["options"]):
        return objects
    groups = [{**group, "options": options}
              for group, options in zip(own["groups"], values["options"], strict=True)]
    return {**objects, "optimizer": {**own, "groups": groups}}


def _begin_at(objects: dict[str, Any], start: dict[str, Any]) -> dict[str, Any]:
    """The objects, with the loader where the loop begins."""
    things = dict(objects.get("things", {}))
    if start["data"] is not None:
        things["data"] = start["data"]
    return {**objects, "things": things}


def _differing(records: Records, kept: KeptRecord, own_keys: set[str]) -> list[str]:
    """The keys of objects whose values two ranks did not share when they made their records."""
    ours = (records.values if kept.is_at_end else records.at_gate)["things"]
    theirs = unpack_record(kept.record)[0]["things"]
    return [key for key in theirs if key not in {*own_keys, "data"} and ours.get(key) != theirs[key]]


def _differing_averages(records: Records, kept: KeptRecord) -> list[str]:
    """The buffers of averages that two ranks did not share when they made their records."""
    ours = (records.values if kept.is_at_end else records.at_gate).get(BUFFER_SEALS, {})
    theirs = unpack_record(kept.record)[0].get(BUFFER_SEALS, {})
    return [name for name, seal in theirs.items() if ours.get(name, seal) != seal]


def _missing_group(told: dict[int, list[Any]]) -> str:
    """The name of a group that not all its ranks have; "" if there is none.

    `told` has what Groups.describe() says on each rank. To connect such a group would never end.
    """
    members = {name: ranks for groups in told.values() for name, ranks in groups}
    has = {rank: {name for name, _ in groups} for rank, groups in told.items()}
    return next((name for name, ranks in members.items()
                 if any(name not in has[rank] for rank in ranks if rank in has)), "")


def twin_of(state: TrainingState, told: dict[int, Any]) -> Any:
    """The rank that holds tensors of the same names as this one; else the lowest."""
    mine = {name for name in state.expected()}

    def shared_names(other: int) -> int:
        return -len(mine & {one[0] for one in told[other]["tensors"]})

    return told[min(told, key=lambda other: (shared_names(other), other))]


def _all_tensors(told: dict[int, Any]) -> list[Any]:
    return [one for other in sorted(told) for one in told[other]["tensors"]]


def _unique(tensors: list[Any]) -> list[Any]:
    return list({one[0]: one for one in tensors}.values())
