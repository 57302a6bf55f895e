"""Which calls of steps are kept for the replacement of a lost rank, until when, and how it gets them.

Every rank keeps what it sends in a step, and the results of collective calls (call_log.py). The rank that
replaces a lost one can then make the steps behind the newest durable one again, alone (replay.py):

  1. Updates up to that of a durable step are dropped. All survivors know a durable step if one of them
     does (DurableSteps.agree), so none has dropped what a replacement needs.
  2. After a death, the survivors tell which updates they have, under which names ck.run() made them, and
     after which update each step was done. The replacement says from where on it wants their messages.
  3. They send them, and wait until it has come to where they are.

With log="auto", nothing is kept if another rank has every parameter, too, if a step makes collective calls
whose results are large, or if keeping costs too much of a step.
"""

import collections
import hashlib
import logging
import time
import zlib
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from holdfast import _native
from holdfast.options import Recover
from holdfast.torch.loop.durable_steps import DurableSteps
from holdfast.torch.recover.call_log import CallLog
from holdfast.torch.recover.peers import Replaying, tell
from holdfast.torch.recover.undo import check_replicas
from holdfast.torch.state.training_state import TrainingState

_log = logging.getLogger("holdfast")

_TRIAL = 20  # steps after which the cost is looked at
_MOST_COST, _LEAST_COST = 0.02, 0.001  # of a step; and seconds a step that are never too many
_FULL = 0.8  # of the memory, from which on a save is asked for
_STALL, _POLL = 5.0, 0.01  # seconds: the longest wait for room, and between two looks
_SEALED, _SEALED_ELEMENTS = 16, 64  # gradients in a seal, and elements of each


class Messages:
    """The part of one rank."""

    def __init__(self, log: CallLog, options: Recover, state: TrainingState) -> None:
        self._log, self._options, self._state = log, options, state
        self.why_not = "log=None" if options.log is None else "nothing was agreed on yet"
        self._is_decided = False  # whether calls are kept
        self._refused = ""  # what the user asked for, and is not possible
        self._update_of: dict[int, int] = {}  # the update after which each step was done
        self._names: dict[int, str] = {}  # under which ck.run() has made each update
        self._has_asked = False  # for a save, because the memory fills up
        self._trial: tuple[int, float] | None = None  # steps so far, and when they began
        self.durable: DurableSteps | None = None  # what this rank knows of saves
        log.on_unfit, log.make_room = self._on_unfit, self._make_room
        log.native.configure(options.memory_bytes, options.spill_folder)

    @property
    def is_on(self) -> bool:
        """True if the calls of steps are kept."""
        return not self.why_not

    def agree(self, transport: _native.TcpTransport | None) -> None:
        """Decides, on all ranks together, whether calls of steps are kept. A replacement does as the others."""
        if transport is None:
            return
        told = tell(transport, {"log": self._options.log, "is on": self.is_on if self._is_decided else None,
                                "boxes": [] if self._is_decided else self._boxes(), "undo": self._options.undo})
        if any(one["undo"] for one in told):
            check_replicas([one["boxes"] for one in told if one["is on"] is None])
        if self._is_decided or self._options.log is None:
            return
        self._is_decided = True
        known = [one["is on"] for one in told if one["is on"] is not None]
        copies = collections.Counter(box for one in told for box in set(one["boxes"]))
        is_wanted = any(one["log"] == "messages" for one in told) or 1 in copies.values()
        is_on = any(known) if known else is_wanted
        self.why_not = "" if is_on else "all parameters are on several ranks"
        self._log.keeps_steps = self.is_on

    def _boxes(self) -> list[bytes]:
        """A digest of each parameter and its box."""
        return [hashlib.blake2b(f"{name}[{piece.box}]".encode(), digest_size=8).digest()
                for piece, name in self._state.resting() if piece.kind == "parameter"]

    def resumed(self, step: int) -> None:
        """The training begins behind that step, before the first update."""
        self._update_of = {step: 0}

    def take_over(self, step: int, update: int) -> None:
        """This process replaces a rank, and makes all updates behind that one, which ended the step, again."""
        self._update_of, self._log.whole_after = {step: update}, update

    def begin(self, update: int, name: str) -> None:
        """A run of ck.run(name) begins, and is to make that update."""
        if not self.is_on:
            return
        if self._log.whole_after is None:
            self._log.whole_after = update - 1
        self._names[update] = name
        self._log.begin(update)

    def end(self) -> None:
        """The run is over, or has failed."""
        self._log.begin(None)

    def settle(self) -> None:
        """At the gate: all that was kept is in the log. ValueError if the user asked for what is impossible."""
        self._log.settle()
        if self._refused:
            raise ValueError(f'recover: log="messages": {self._refused}; expected steps whose collective '
                             'calls give all ranks at most 1 MiB, or log="auto"')

    def stepped(self, step: int, update: int) -> None:
        """A step is done, after that update."""
        if self.is_on:
            self._update_of[step] = update

    def look(self, job: _native.Job) -> None:
        """Behind a step: drops what a durable step has, and asks for another one if there is little room."""
        if not self.is_on:
            return
        self._look_at_cost(job)
        self._drop_durable()
        is_full = self._log.native.bytes_in_memory > _FULL * self._options.memory_bytes
        if is_full and not (self._has_asked or self._options.spill_folder):
            self._has_asked = True
            job.ask_to_save("the messages that are kept for a lost rank fill their memory")

    def _drop_durable(self) -> bool:
        """Drops what the newest durable step has. True if there was anything."""
        durable = None if self.durable is None else self.durable.newest()
        update = None if durable is None else self._update_of.get(durable)
        if update is None or durable == min(self._update_of):
            return False
        self._log.native.drop_through(update)
        self._update_of = {step: one for step, one in self._update_of.items() if one >= update}
        self._names = {one: name for one, name in self._names.items() if one > update}
        self._has_asked = False
        return True

    def _make_room(self) -> bool:
        """A record does not fit: waits a while for a save that is under way. True if there is room then."""
        until = time.monotonic() + _STALL
        while not self._drop_durable():
            if self.durable is None or not self.durable.has_pending or time.monotonic() > until:
                return False
            time.sleep(_POLL)
        return True

    def _look_at_cost(self, job: _native.Job) -> None:
        """After some steps: tells what the log costs, and ends it if that is too much."""
        if self._trial is None:
            self._trial, self._log.seconds, self._log.waited = (0, time.perf_counter()), 0.0, 0.0
            return
        steps, began = self._trial
        self._trial = steps + 1, began
        if steps + 1 != _TRIAL:
            return
        took, cost = (time.perf_counter() - began) / _TRIAL, self._log.seconds / _TRIAL
        job.messages_kept({"steps": _TRIAL, "seconds": cost, "step_seconds": took,
                           "own_seconds": max(0.0, took - self._log.waited / _TRIAL),
                           "borders": " ".join(f"{border} {size}" for border, size
                                               in sorted(self._log.borders.items()))})
        if self._options.log == "auto" and cost > max(_LEAST_COST, _MOST_COST * took):
            self._stop(f"to keep messages takes {cost / took:.1%} of a step")
            _log.warning("rank %d: %s: they are not kept any more, so that all ranks start again if this "
                         "rank or a neighbour is lost; expected at most %.0f %%, or "
                         'Recover(log="messages") to accept it', self._state.rank, self.why_not,
                         100 * _MOST_COST)

    def _on_unfit(self, what: str) -> None:
        if self._options.log == "messages":
            self._refused = what
        elif self.is_on:
            self._stop(f"a step calls {what}")

    def _stop(self, why: str) -> None:
        self.why_not, self._log.keeps_steps = why, False
        self._log.native.drop_through((1 << 62))

    def seal(self, update: int) -> dict[str, Any]:
        """What a record has of an update beside the values of the rank: what its gradients depend on."""
        if not self.is_on:
            return {}
        parameters = [one for optimizer in self._state.optimizers for group in optimizer.param_groups
                      for one in group["params"]]
        chosen = [parameters[(update * _SEALED + k) % len(parameters)]
                  for k in range(min(_SEALED, len(parameters)))]
        parts = [_sample(one.grad) for one in chosen if one.grad is not None]
        data = torch.cat(parts).cpu().numpy().tobytes() if parts else b""
        return {"seal": zlib.crc32(data), "threads": torch.get_num_threads()}

    def told(self) -> dict[str, Any]:
        """What a replacement must know of this log, as plain values."""
        whole_after = self._log.whole_after
        return {"why not": self.why_not, "update of": sorted(self._update_of.items()),
                "names": sorted(self._names.items()),
                "whole after": max(self._log.native.hole, 0 if whole_after is None else whole_after)}

    def serve(self, transport: _native.TcpTransport, replaying: Replaying,
              groups: list[Any], rank: int, missing: list[int]) -> None:
        """Sends lost ranks what was for them, of updates in (after, through], and waits for them.

        `groups` are the process groups of this rank. The result of a collective call comes from the
        first member of its group that has survived.
        """
        for lost, (after, through) in sorted(replaying.items()):
            mine = [name for name, members in groups if lost in members
                    and min(set(members) - set(missing), default=-1) == rank]
            self._log.native.send_to(transport, _native.WantedCalls(lost, mine, after, through))
        if replaying:
            tell(transport, {}, patience=None)


def plan_replay(told: dict[int, Any], durable: int | None, target: int) -> tuple[int, int, list[tuple[int, str]]]:
    """Behind which step a replacement begins, after which update, and the updates that it makes again.

    `told` has what Messages.told() says on each survivor. LookupError if the logs do not have it all.
    """
    if why := next((f"rank {rank} keeps no messages: {one['why not']}"
                    for rank, one in sorted(told.items()) if one["why not"]), ""):
        raise LookupError(why)
    step = -1 if durable is None else durable
    after = next((dict(one["update of"])[step] for one in told.values() if step in dict(one["update of"])), None)
    if after is None:
        raise LookupError("the newest checkpoint is older than the messages that are kept")
    if late := [rank for rank, one in sorted(told.items()) if one["whole after"] > after]:
        raise LookupError(f"rank {late[0]} has not kept all messages since step {step}")
    known = {update: name for one in told.values() for update, name in one["names"]}
    names = [(update, known[update]) for update in range(after + 1, target + 1) if update in known]
    if len(names) != target - after:
        raise LookupError(f"not all updates since step {step} are known")
    return step, after, names


def _sample(gradient: torch.Tensor) -> torch.Tensor:
    """Some elements of a gradient, as bytes."""
    local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
    flat = local.detach().reshape(-1)
    flat = flat[::max(1, flat.numel() // _SEALED_ELEMENTS)][:_SEALED_ELEMENTS]
    return flat.contiguous().view(torch.uint8)
