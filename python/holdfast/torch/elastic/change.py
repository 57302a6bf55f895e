"""One change of the configuration, as one worker makes it (launch/changes.py has the launcher's part).

    1. All ranks have stopped after the same step, and say so.
    2. The launcher begins a generation. Each worker closes the job of the old one, and sets its process
       groups aside. The old model, its groups and its optimizer states stay as they are until 7.
    3. All that take part connect to each other, and tell what they hold.
    4. The members of the generation make process groups and a mesh, and build the model for it without
       memory of its own; the optimizers get its parameters, and the job is opened for it. If fewer bytes
       move with other workers in the places, or in another order, this is done once more with those.
    5. Every byte moves from where it is to where it belongs (change_layout). What stays where it is keeps its
       memory, which the new tensors get (kept_memory.py). All tensors are sealed
       before and after, and the seals must be equal. If memory does not suffice for the old and the new
       state together, this happens in parts, and the old tensors of a part are let go (late_memory.py).
    6. Plain values are loaded: options of groups, schedulers, the position in the data.
    7. Each worker says that it is done. When the launcher has heard that of all, the generation is the
       job.   <- the commit point
    8. The old state is let go. A worker that is no rank any more ends.

What fails before 7, on any worker, leads to another attempt with the same old state. If all ranks of
before live, it leads back: they connect the old groups again and take the old model, which nobody has
touched. Otherwise it is made from 3 on, for a configuration of those that are left. What fails in that,
too, makes all ranks start again from the newest checkpoint; so does a failure behind the first part.
"""

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast import _native
from holdfast.errors import Interrupted, UnavailableError
from holdfast.resize.parallel import Parallel
from holdfast.torch.elastic.carried_state import CarriedState, bytes_of, join_told, merged_groups
from holdfast.torch.elastic.late_memory import LateMemory, is_tight, parts_of, room_for, stand_ins
from holdfast.torch.recover.connect_ranks import connect_workers
from holdfast.torch.recover.crash_points import reach
from holdfast.torch.recover.peers import tell
from holdfast.torch.recover.worker_side import WorkerSide, wait_for_end
from holdfast.torch.state.capture import current_stream
from holdfast.torch.state.piece import Piece

_log = logging.getLogger("holdfast")

_PATIENCE = 600.0  # seconds that workers wait for each other in an attempt
_WORTH_IT = 0.01  # other places are taken if so much of all that is needed need not move then


@dataclass
class Moved:
    """What has moved, in all parts."""

    moved: int = 0  # bytes between workers
    bound: int = 0  # the least that any plan could move
    seals: int = 0  # tensors that were sealed before and after

    def add(self, made: _native.Exchanged) -> None:
        """Adds a part."""
        self.moved, self.bound, self.seals = (self.moved + made.moved, self.bound + made.bound,
                                              self.seals + made.seals)


class Actor(Protocol):
    """What a change has done in its process."""

    def set_aside(self) -> None: ...

    def go_back(self, prefix: str, is_stale: Callable[[], bool]) -> None: ...

    def rebuild(self, parallel: Parallel, late: LateMemory) -> None: ...

    def open(self, optimizer_groups: list[dict[str, int]], held: Collection[str]) -> Any: ...

    def undo(self, *, together: bool = False) -> None: ...


class Change:
    """A change under way."""

    def __init__(self, side: WorkerSide, member: Actor, carried: CarriedState, *,
                 in_parts: bool | None) -> None:
        self._side, self._link, self._groups = side, side.link, side.groups
        self._member, self._carried = member, carried
        self._transport: _native.TcpTransport | None = None
        self._in_parts = in_parts  # whether the state moves in parts; None: if it must
        self._is_freed = False  # it has begun to, so that the old one is not whole any more
        self._late = LateMemory()  # of the new tensors
        self._describe: Callable[[list[tuple[Piece, str]]], list[_native.Piece]] = list  # to the engine
        self.seconds: dict[str, float] = {}  # of each phase
        self._last = time.perf_counter()
        self.moved: Moved | None = None
        self.planned: dict[str, Any] | None = None  # what the change would be, if only that was asked for
        self.why = ""  # why it has led back
        self.wanted = ""  # the configuration that was asked for
        self.step = -1  # the step behind which it is made
        self.has_gone_back = False  # the configuration is the one of before

    def make(self, decided: dict[str, Any]) -> dict[str, Any] | None:
        """Makes attempts until one is committed, and returns what the launcher said of it.

        None if this worker has no part in it any more, because an attempt has failed.
        """
        self._link.on_change = self._interrupt
        try:
            while self._link.slot in decided["participants"]:
                generation, self.why = decided["generation"], decided["why"] or self.why
                made = self._try(decided)
                if made is not None and self._link.await_commit(generation):
                    self._reach("committed")
                    return made
                self._member.undo()
                newer = self._link.await_change(generation)
                if newer is None:  # not a change, but all ranks start again
                    wait_for_end()
                decided = newer
            return None
        finally:
            self._close()
            self._link.on_change = _nothing

    def _try(self, decided: dict[str, Any]) -> dict[str, Any] | None:
        """Makes one attempt, and returns it with its places. None if it has failed; the launcher has
        heard why."""
        try:
            made = self._attempt(decided)
        except (Exception, Interrupted) as error:
            _log.debug("an attempt to change the configuration", exc_info=True)
            if self._link.announced == decided["generation"]:
                self._link.say("change", what="unchanged", generation=decided["generation"],
                               why=_in_a_line(error))
            return None
        finally:
            self._groups.may_repeat = False
            self._close()
        self._link.say("change", what="changed", generation=decided["generation"], members=made["members"])
        return made

    def _attempt(self, decided: dict[str, Any]) -> dict[str, Any]:
        self._last = time.perf_counter()
        if self._is_freed:
            raise UnavailableError("the state was moved in parts, so that no rank has that of before any more")
        if self._carried.is_of(decided["to"], decided["members"]) and not decided["is_only_planned"]:
            self.has_gone_back = True
            self._go_back(decided)
            return decided
        self._member.set_aside()
        self._reach("left")
        self._transport = connect_workers(self._link, decided)
        old, own = self._carried.give(decided["holders"])
        if len(decided["participants"]) > len(decided["holders"]):  # some join
            own = own and {**own, "shapes": self._carried.tell_shapes()}
        told = tell(self._transport, own)
        self._carried.learn_shapes(told)
        self._reach("met")
        new, finish = self._take_place(decided, told)
        self._check(decided)
        if (placed := self._place(decided, old, self._describe(stand_ins(new)))) is not None:
            if self._link.slot in decided["members"]:
                self._member.undo(together=True)
            decided = placed
            self._member.set_aside()
            new, finish = self._take_place(decided, told)
        if decided["is_only_planned"]:
            raise UnavailableError("only a plan was asked for")
        self._check(decided)
        self._move(bytes_of(told), own["tensors"] if own else [], old, new)
        self._reach("copied")
        finish()
        self._check(decided)
        self._reach("loaded")
        return decided

    def _move(self, tensors: dict[str, int], held: list[Any], old: list[_native.Piece],
              new: list[tuple[Piece, str]]) -> None:
        """Moves all bytes, in parts if memory does not suffice for the old and the new state."""
        assert self._transport is not None
        new = self._carried.give_memory(new, self._late)
        told = tell(self._transport, {**room_for(self._late), "in_parts": self._in_parts})
        wanted = [one["in_parts"] for one in told]
        in_parts = True in wanted or (False not in wanted and is_tight(told))
        self.moved = Moved()
        for names in parts_of(tensors) if in_parts else [set(tensors)]:
            mine = [one for one in new if one[1] in names]
            self._late.give([piece.tensor for piece, _ in mine])
            made = _native.change_layout(
                self._transport, _native.Pieces([one for one, wire in zip(old, held, strict=True)
                                                 if wire[0] in names]),
                _native.Pieces(self._describe(mine)), _PATIENCE, True, current_stream())
            self.moved.add(made)
            if in_parts:
                self._is_freed = True
                self._carried.free(names)
        self._late.give()

    def _place(self, decided: dict[str, Any], old: list[_native.Piece],
               new: list[_native.Piece]) -> dict[str, Any] | None:
        """The attempt with other places, if clearly fewer bytes move then; None if not."""
        assert self._transport is not None
        numbers = decided["participants"]
        found = _native.place_ranks(
            self._transport, _native.Pieces(old), _native.Pieces(new),
            [numbers.index(one) for one in decided["members"]],
            [numbers.index(one) for one in decided["able"]], Parallel.parse(decided["to"]).tp, _PATIENCE)
        is_better = found.moved_as_told - found.moved > _WORTH_IT * found.needed
        members = [numbers[rank] for rank in found.ranks] if is_better else decided["members"]
        if decided["is_only_planned"]:
            self.wanted = decided["to"]
            self.planned = {"workers": members, "needed": found.needed,
                            "moved": found.moved if is_better else found.moved_as_told}
            return None
        self._reach("placed")
        return {**decided, "members": members, "is_placed": True} if is_better else None

    def _take_place(self, decided: dict[str, Any], told: list[Any]) -> Any:
        """The new pieces of this process, and what is to be called when they are filled."""
        self._link.take_place(decided)
        if self._link.slot not in decided["members"]:
            return [], _nothing
        before = None if self._carried.told is None else self._carried.told["rank"]
        parallel = Parallel.parse(decided["to"])
        self._groups.begin_anew(self._prefix(decided), lambda: self._link.is_stale(decided["generation"]))
        self._groups.may_repeat = True  # a call that fails is void, and the attempt fails behind it
        self._late = LateMemory()
        self._member.rebuild(parallel, self._late)
        self._check(decided)
        self._reach("built")
        with self._groups.unrecorded():
            resume = self._member.open(merged_groups(told), bytes_of(told))
            found = join_told(told, parallel, self._link.rank, before)
            self.step, new = found.step, resume.allocate(found, self._late.of_new_tensors())
            self._describe = resume.describe
        self._check(decided)
        self._reach("opened")

        def finish() -> None:
            with self._groups.unrecorded():
                resume.finish(found)

        return new, finish

    def _go_back(self, decided: dict[str, Any]) -> None:
        """All ranks of before are there: they go on with what they had."""
        self._link.take_place(decided)
        self._member.go_back(self._prefix(decided), lambda: self._link.is_stale(decided["generation"]))
        assert self._carried.told is not None
        self.step = self._carried.told["step"]
        self._check(decided)

    def _prefix(self, decided: dict[str, Any]) -> str:
        placed = ".placed" if decided.get("is_placed") else ""
        return f"{self._link.incarnation}.{decided['generation']}{placed}"

    def _check(self, decided: dict[str, Any]) -> None:
        """UnavailableError if the attempt cannot succeed any more."""
        if self._groups.failure is not None:
            raise self._groups.failure
        if self._link.is_stale(decided["generation"]):
            raise UnavailableError("a worker was lost during a change")

    def _interrupt(self) -> None:
        """Called by another thread: the attempt has failed elsewhere, so that nothing waits for it."""
        transport = self._transport  # the thread that trains may forget it at any time
        if transport is not None:
            self._side.interrupt(UnavailableError("a change has failed on another worker"))
            transport.close()

    def _close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def _reach(self, phase: str) -> None:
        """Notes how long a phase took; a test may end the process here."""
        now = time.perf_counter()
        self.seconds[phase], self._last = now - self._last, now
        reach(f"change {phase}")


def _in_a_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def _nothing() -> None: ...
