"""What is kept for the replacement of a lost rank, until when, and how it gets it.

If a tensor is on one rank only, one of two kinds of log is kept: "messages" (what ranks send in a step, and
the results of collective calls, call_log.py), or "updates" (the gradients of each update, updates.py). The rank
that replaces a lost one can then make the steps behind the newest durable one again, alone (replay.py), or the
updates behind it:

  1. Entries up to the update of a durable step are dropped. All survivors know a durable step if one of them
     does (DurableSteps.agree), so none has dropped what a replacement needs.
  2. After a death, the survivors tell which updates they have, under which names ck.run() made them, and
     after which update each step was done. The replacement says from where on it wants them.
  3. They send it what was for it, and wait until it has come to where they are.

All ranks choose the kind together, at the gate of the second update. Until then both are kept. With
log="auto" it is the one with fewer bytes in an update; nothing is kept if another rank has every parameter, too.
At the gate that ends a trial (log_cost.py), all ranks keep nothing any more if that costs too much of a step.
"""

import collections
import dataclasses
import hashlib
import logging
import time
from collections.abc import Sequence
from typing import Any

import torch

from holdfast import _native
from holdfast.options import Recover
from holdfast.torch.loop.step_numbers import DurableSteps
from holdfast.torch.recover.buddies import BuddyGate
from holdfast.torch.recover.call_log import CallLog
from holdfast.torch.recover.islands import Island, find_too_large, island_of, join_groups, plan_islands
from holdfast.torch.recover.kept_draws import KeptDraws
from holdfast.torch.recover.log_cost import MOST, LogCost, find_excess
from holdfast.torch.recover.peers import Replaying, tell
from holdfast.torch.recover.undo import check_replicas
from holdfast.torch.recover.updates import Updates, durable_in, seal
from holdfast.torch.state.training_state import TrainingState

_log = logging.getLogger("holdfast")

_KINDS = ("updates", "messages")
_CHOSEN_AT = 2  # the update at whose gate ranks choose a kind
_FULL = 0.8  # of the memory, from which on a save is asked for
_FEWEST, _FEWEST_OF_AUTO = 4, 20  # updates for which the memory must have room: it asks for saves when it is full
_STALL, _POLL = 5.0, 0.01  # seconds: the longest wait for room, and between two looks


@dataclasses.dataclass
class Choice:
    """What all ranks keep from a gate on."""

    kinds: Sequence[str]
    why_not: dict[str, str]  # why a kind is not kept; "" if it is
    islands: list[Island]  # of ranks that make steps again together


class Messages:
    """The part of one rank."""

    def __init__(self, log: CallLog, options: Recover, state: TrainingState) -> None:
        self._log, self._options, self._state = log, options, state
        self.updates = Updates(log, state)
        self._kinds: Sequence[str] = ()  # that are kept
        self._world = state.world
        why = "log=None" if options.log is None else "nothing was agreed on yet"
        self._why_not = dict.fromkeys(_KINDS, why)  # why a kind is not kept; "" if it is
        self._is_decided = False  # whether anything is kept
        self._chosen: Choice | None = None  # at the gate that is passed now
        self.islands: list[Island] = []  # of ranks that make steps again together
        self._has_islands = False  # they were agreed on, even if there are none
        self._unfit: dict[tuple[int, ...], str] = {}  # calls that others cannot answer, by the ranks of their group
        self._is_wished = False  # some rank has log="updates"
        self._cost, self._is_judged = LogCost(log, self.updates), False  # and all ranks have looked at it
        self._is_auto = False  # all ranks have log="auto"
        self._refused = ""  # what the user asked for, and is not possible
        self._update_of: dict[int, int] = {}  # the update after which each step was done
        self._names: dict[int, str] = {}  # under which ck.run() has made each update
        self._has_warned = False  # that the updates of this rank are not kept any more
        self._has_asked = False  # for a save, because the memory fills up
        self._has_stalled = False  # a step has waited for room in vain, and nothing was dropped since
        self.shared = KeptDraws(log, state.generators)
        self._lacks_sends = False  # what this rank had sent was lost with the process that it replaces
        self.durable: DurableSteps | None = None  # what this rank knows of saves
        self.steps_between_saves = 0  # 0 if that is not a fixed number
        log.on_unfit, log.make_room, log.inside = self._on_unfit, self._make_room, frozenset()
        log.native.configure(options.memory_bytes, options.spill_folder)

    @property
    def is_on(self) -> bool:
        """True if anything is kept."""
        return bool(self._kinds)

    def agree(self, transport: _native.TcpTransport | None) -> None:
        """Decides, on all ranks together, whether anything is kept. A replacement does as the others."""
        if transport is None:
            return
        self._cost.restart()
        is_first = not self._is_decided
        names = self._names_of_parameters()
        told = tell(transport, {"log": self._options.log, "helpers": self._options.helpers,
                                "kept": None if is_first else self._kept(),
                                "boxes": self._boxes() if is_first else [], "names": names, "undo": self._options.undo})
        if any(one["undo"] for one in told):
            check_replicas([one["boxes"] for one in told if one["kept"] is None])
        logs, self.shared.helpers = [one["log"] for one in told], max(one["helpers"] for one in told)
        if self._is_decided or None in logs:
            return
        self._is_decided, self._is_wished, self._is_auto = True, "updates" in logs, set(logs) == {"auto"}
        known = [one["kept"] for one in told if one["kept"] is not None]
        if known:
            kept = known[0]
            self._is_judged, self._has_islands = kept["is judged"], kept["has islands"]
            return self._keep(Choice(kept["kinds"], kept["why not"], kept["islands"]))
        copies = collections.Counter(box for one in told for box in set(one["boxes"]))
        if not (self._is_wished or "messages" in logs or 1 in copies.values()):
            return self._keep(Choice((), dict.fromkeys(_KINDS, "all parameters are on several ranks"), []))
        twins = collections.Counter(one["names"] for one in told)
        why = ""
        if "messages" in logs:
            why = 'log="messages"'
        elif 1 in twins.values():
            why = "a rank has parameters that no other rank has a part of"
            self._warn_of_wish(why, ["messages"])
        self._keep(Choice(("messages",) if why else _KINDS, {"updates": why, "messages": ""}, []))

    def _keep(self, chosen: Choice) -> None:
        self._kinds, self._why_not, self.islands = tuple(chosen.kinds), dict(chosen.why_not), chosen.islands
        self._log.keeps_steps = "messages" in self._kinds and not self._why_not["messages"]
        self._log.inside = frozenset(island_of(self.islands, self._state.rank)) if self.islands else frozenset()
        self.shared.choose(is_kept="messages" in self._kinds)

    def _kept(self) -> dict[str, Any]:
        return {"kinds": list(self._kinds), "why not": self._why_not, "is judged": self._is_judged,
                "islands": self.islands, "has islands": self._has_islands}

    def _warn_of_wish(self, why: str, kinds: Sequence[str]) -> None:
        if self._is_wished and self._state.rank == 0:
            then = "messages are kept instead" if kinds else "all ranks start again if one is lost"
            _log.warning('Recover(log="updates"): %s: %s', why, then)

    def _boxes(self) -> list[bytes]:
        """A digest of each parameter and its box."""
        return [_digest(f"{name}[{piece.box}]") for piece, name in self._state.resting()
                if piece.kind == "parameter"]

    def _names_of_parameters(self) -> bytes:
        return _digest(" ".join(sorted(name for piece, name in self._state.resting()
                                       if piece.kind == "parameter")))

    def resumed(self, step: int) -> None:
        """The training begins behind that step, before the first update."""
        self._update_of = {step: 0}
        self.updates.look_from_here()

    def take_over(self, step: int, update: int) -> None:
        """This process replaces a rank, and makes all updates behind that one, which ended the step, again."""
        self._update_of, self._log.whole_after = {step: update}, update

    def join(self, told: dict[int, Any], update: int) -> None:
        """This process replaces a rank, and has made that update; `told` has what told() says on each survivor."""
        self._update_of = dict(told[min(told)]["update of"])
        self._log.whole_after = update
        self.updates.look_from_here()

    def begin(self, update: int, name: str) -> None:
        """A run of ck.run(name) begins, and is to make that update."""
        if not self.is_on:
            return
        if self._log.whole_after is None:
            self._log.whole_after = update - 1
        self._names[update] = name
        self._log.begin(update)
        self.shared.begin(update)

    def prepare(self, update: int, optimizer: Any, written: Sequence[str]) -> None:
        """At the gate: makes the entry of an update, which pass_on() gives to the buddy."""
        if "updates" in self._kinds:
            began = time.perf_counter()
            self.updates.prepare(update, optimizer, written)
            self.updates.seconds += time.perf_counter() - began
            if self.updates.why_not and len(self._kinds) == 1 and not self._has_warned:
                self._has_warned = True
                _log.warning("rank %d: %s: its updates are not kept any more, so that all ranks start again if it is "
                             "lost", self._state.rank, self.updates.why_not)

    def pass_on(self, gate: BuddyGate, transport: _native.TcpTransport) -> None:
        """At the gate, before this rank is ready. All ranks call it together."""
        if not self._kinds:
            return
        update = gate.committed + 1
        self.shared.pass_on(gate, update)
        if "updates" in self._kinds:
            self._pass_on_update(gate, update)
        if update >= _CHOSEN_AT and not self._has_islands:
            self._choose(transport, self._find_islands(transport))
        elif len(self._kinds) == 1 and self._cost.is_due and not self._is_judged:
            self._judge(transport, self._kinds[0])

    def _pass_on_update(self, gate: BuddyGate, update: int) -> None:
        full = self._log.native.bytes_in_memory + self.updates.size > self._options.memory_bytes
        if full and not self._options.spill_folder:
            self._make_room()
        began = time.perf_counter()
        self.updates.pass_on(gate, update)
        self.updates.seconds += time.perf_counter() - began

    def _find_islands(self, transport: _native.TcpTransport) -> list[Island]:
        """The islands by the calls of all ranks so far. Where there can be none, messages are not kept."""
        told = tell(transport, {"groups": [list(group) for group in self._unfit], "calls": [*self._unfit.values()]})
        islands = join_groups(group for one in told for group in one["groups"])
        if not (why := find_too_large(islands, self._world)):
            return islands
        self._stop_for(f"{next(call for one in told for call in one['calls'])}: {why}")
        self._check_not_refused()
        return []

    def _choose(self, transport: _native.TcpTransport, islands: list[Island]) -> None:
        if len(self._kinds) == 1:
            why_not = self._why_not["messages"]
            if why_not and self._state.rank == 0:
                _log.warning("%s: nothing is kept, so that all ranks start again if one is lost", why_not)
            self._chosen = Choice(() if why_not else self._kinds, self._why_not, islands)
            return
        why = {"updates": self.updates.why_not or self._why_too_long(), "messages": self._why_not["messages"]}
        told = tell(transport, {"why not": why, "bytes": {"updates": self.updates.size, "messages": self._log.size}})
        why = {kind: next((one["why not"][kind] for one in told if one["why not"][kind]), "") for kind in _KINDS}
        sizes = {kind: sum(one["bytes"][kind] for one in told) for kind in _KINDS}
        possible = sorted((kind for kind in _KINDS if not why[kind]), key=lambda kind: sizes[kind])
        if (self._is_wished or islands) and "updates" in possible:
            possible = ["updates"]  # of an island, a loss would end other ranks, too
            why["messages"] = "several ranks would make steps again together"
        for kind in possible[1:]:
            why[kind] = f"{possible[0]} have fewer bytes"
        if self._is_wished and possible[:1] == ["updates"]:
            why["messages"] = 'log="updates"'
        self._chosen = Choice(possible[:1], why, islands if possible[:1] == ["messages"] else [])
        if why["updates"]:
            self._warn_of_wish(why["updates"], possible)

    def _judge(self, transport: _native.TcpTransport, kind: str) -> None:
        """Ends the log on all ranks if it costs too much, or if a rank keeps none any more."""
        room = 1 << 62 if self._options.spill_folder else int(_FULL * self._options.memory_bytes)
        told = tell(transport, {**self._cost.measure(kind), "why not": self._why_not[kind], "room": room,
                                "borders": self._log.borders, "bytes": self._log.size, "messages": self._log.messages})
        why = next((one["why not"] for one in told if one["why not"]), "")
        if excess := find_excess(told, kind) if self._is_auto and not why else "":
            why = excess
            if self._state.rank == 0:
                _log.warning("%s: they are not kept any more, so that all ranks start again if one is lost; expected at "
                             'most %.0f %%, or Recover(log="%s") to accept it', why, 100 * MOST, kind)
        islands = [] if why else self.islands
        if kind == "messages" and not (why or islands) and (islands := plan_islands(told, self.steps_between_saves)):
            if self._state.rank == 0:
                _log.warning("memory= has no room for the messages of %d steps: if one of the ranks %s is lost, all of them "
                             "make steps again together", self.steps_between_saves, " or ".join(map(str, islands)))
        self._chosen = Choice(() if why else self._kinds, {**self._why_not, kind: why}, islands)

    def _why_too_long(self) -> str:
        most, size = self._options.memory_bytes, self.updates.size
        fewest = _FEWEST if self._is_wished else _FEWEST_OF_AUTO
        if self._options.spill_folder or size * fewest <= most:
            return ""
        return f"the gradients of {fewest} updates have {size * fewest} bytes, and memory= has room for {most}"

    def commit(self) -> bool:
        """This rank is committed to the update: what was chosen at its gate counts. True if there are other islands."""
        before, chosen, self._chosen = self.islands, self._chosen, None
        if chosen is not None:
            self._is_judged, self._has_islands = self._has_islands, True
            self._keep(chosen)
            if not self._kinds:
                self._log.native.drop_through(1 << 62)
            if not self._is_judged:
                self._cost.restart()
        self._cost.note_gate()
        return self.islands != before

    def end(self) -> None:
        """The run is over, or has failed."""
        self._chosen = None
        self._log.begin(None)

    def settle(self) -> None:
        """At the gate: all that was kept is in the log. ValueError if the user asked for what is impossible."""
        self._log.settle()
        self._check_not_refused()

    def _check_not_refused(self) -> None:
        if self._refused:
            raise ValueError(f'recover: log="messages": {self._refused}; expected collective calls that give all '
                             'ranks of a group at most 1 MiB, or groups of at most half of the ranks, or log="auto"')

    def stepped(self, step: int, update: int) -> None:
        """A step is done, after that update."""
        if self.is_on:
            self._update_of[step] = update

    def look(self, job: _native.Job) -> None:
        """Behind a step: drops what a durable step has, and asks for another one if there is little room."""
        self._cost.write_event(job)
        self.shared.tell_helpers(is_on=self.is_on and not self._why_not["messages"])
        if not self.is_on:
            return
        self._drop_durable()
        if self._has_asked:
            return
        is_full = self._log.native.bytes_in_memory > _FULL * self._options.memory_bytes
        is_full = is_full and not self._options.spill_folder
        if is_full or self._has_lost_entries():
            self._has_asked = True
            job.ask_to_save("what is kept for a lost rank fills its memory" if is_full else
                            "what was kept for another rank was lost with this one")

    def share(self) -> dict[str, Any]:
        """What this rank sends is not kept from now on, for it does not send all. What its helpers must know."""
        self._log.keeps_steps = False
        return self._kept()

    def help(self, told: dict[str, Any]) -> None:
        """This process helps a replacement, which has told that."""
        self._kinds, self._why_not = tuple(told["kinds"]), told["why not"]
        self._is_decided, self._log.keeps_steps = True, False

    def end_sharing(self, update: int) -> None:
        """All steps up to that update were made again."""
        self._log.keeps_steps = "messages" in self._kinds and not self._why_not["messages"]
        self._log.whole_after, self._lacks_sends = update, True
        self.shared.watch()

    def _has_lost_entries(self) -> bool:
        """True if the process that this one replaces had entries of updates that no durable step has."""
        behind = min(self._update_of.values(), default=0)
        return ("updates" in self._kinds or self._lacks_sends) and (self._log.whole_after or 0) > behind

    def _drop_durable(self) -> bool:
        """Drops what the newest durable step has. True if there was anything."""
        durable = None if self.durable is None else self.durable.newest()
        update = None if durable is None else self._update_of.get(durable)
        if update is None or durable == min(self._update_of):
            return False
        self._log.native.drop_through(update)
        self._update_of = {step: one for step, one in self._update_of.items() if one >= update}
        self._names = {one: name for one, name in self._names.items() if one > update}
        self._has_asked = self._has_stalled = False
        return True

    def _make_room(self) -> bool:
        """A record does not fit: waits a while for a save that is under way. True if there is room then.

        If that was in vain, the next records do not wait.
        """
        until = time.monotonic() + (0.0 if self._has_stalled else _STALL)
        while not self._drop_durable():
            if self.durable is None or not self.durable.has_pending or time.monotonic() > until:
                self._has_stalled = True
                return False
            time.sleep(_POLL)
        return True

    def _on_unfit(self, what: str, members: Sequence[int]) -> None:
        """A step makes a call in a group of these ranks that others cannot answer."""
        if not self._has_islands:
            self._unfit.setdefault(tuple(members), f"a step calls {what}")
        else:
            self._stop_for(f"a step calls {what}, and did not in its first updates")

    def _stop_for(self, call: str) -> None:
        if self._options.log == "messages":
            self._refused = call
        elif "messages" in self._kinds:
            self._stop(call)

    def _stop(self, why: str) -> None:
        """Keeps no messages any more. The other ranks hear of it at the gate that ends the trial."""
        self._why_not["messages"], self._log.keeps_steps = why, False
        self.shared.refuse(why)
        if len(self._kinds) == 1:
            self._log.native.drop_through(1 << 62)

    def seal(self, update: int) -> dict[str, Any]:
        """What a record has of an update beside the values of the rank: what its gradients depend on."""
        if "messages" not in self._kinds:
            return {}
        parameters = [one for optimizer in self._state.optimizers for group in optimizer.param_groups
                      for one in group["params"]]
        return {"seal": seal([one.grad for one in parameters], update), "threads": torch.get_num_threads()}

    def seal_at_end(self, update: int) -> dict[str, Any]:
        """What a record of the end of an update has beside the values of the rank."""
        return self.updates.seal_at_end(update) if "updates" in self._kinds else {}

    def told(self, peer: int) -> dict[str, Any]:
        """What a replacement must know of this log, as plain values; `peer` is the rank whose buddy this one is."""
        whole_after = self._log.whole_after
        return {"why not": self._why_not, "update of": sorted(self._update_of.items()),
                "names": sorted(self._names.items()), "keeps of": peer, "peer said": self.updates.peer_said,
                "whole after": max(self._log.native.hole, 0 if whole_after is None else whole_after)}

    def serve(self, transport: _native.TcpTransport, replaying: Replaying,
              groups: list[Any], rank: int, missing: list[int]) -> None:
        """Sends lost ranks what was for them, of updates in (after, through].

        `groups` are the process groups of this rank. The result of a collective call comes from the
        first member of its group that has survived.
        """
        for lost, (_, after, through) in sorted(replaying.items()):
            mine = [name for name, members in groups if lost in members
                    and min(set(members) - set(missing), default=-1) == rank]
            self._log.native.send_to(transport, _native.WantedCalls(lost, mine, after, through))


def plan_replay(told: dict[int, Any], durable: int | None, target: int) -> tuple[int, int, list[tuple[int, str]]]:
    """Behind which step a replacement begins, after which update, and the updates that it makes again.

    `told` has what Messages.told() says on each survivor. LookupError if the logs do not have it all.
    """
    if why := next((f"rank {rank} keeps no messages: {one['why not']['messages']}"
                    for rank, one in sorted(told.items()) if one["why not"]["messages"]), ""):
        raise LookupError(why)
    step, after = durable_in(told, durable)
    if late := [rank for rank, one in sorted(told.items()) if one["whole after"] > after]:
        raise LookupError(f"rank {late[0]} has not kept all messages since step {step}")
    known = {update: name for one in told.values() for update, name in one["names"]}
    names = [(update, known[update]) for update in range(after + 1, target + 1) if update in known]
    if len(names) != target - after:
        raise LookupError(f"not all updates since step {step} are known")
    return step, after, names


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()
