"""Changes of the configuration of a job whose processes live: which workers are its ranks, in which order.

The launcher decides who takes part, the workers move the state (torch/elastic/change.py):

    wanted     rank 0 asks for a configuration. Workers that are missing are started; they come as far
               as ck.resume(), and wait there. Then rank 0 hears that it can go on, and has all ranks
               stop after the same step.
    appointed  a rank has stopped there. When all have, a generation begins: every worker that holds
               a part of the state, or shall hold one, hears of its members. They may choose others of
               those that take part, or another order, with which fewer bytes move.
    changed    a worker has all that it shall have. When all say so, that generation is the job; until
               then the old state is kept.  <- the commit point
    unchanged  a worker has failed, and so has the attempt. The next attempt leads back.

An attempt that leads back is a change like any other, from the same old state to the old configuration.
If a worker that holds a part of the state dies, the attempt leads to what `sizes` of the program says for
the workers that are left. So does one that begins when a rank is lost in mid-training and no process can
take its place: its host is gone, and no other has come. If a part of the state is nowhere any more, all
ranks start again from the newest checkpoint.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.launch.rank import Rank
from holdfast.launch.ranks import Ranks
from holdfast.launch.recoveries import say
from holdfast.launch.room import Room


@dataclass
class Request:
    """What rank 0 has asked for."""

    id: str
    to: str  # the configuration
    members: list[int]  # the workers that shall be ranks, in the order of their ranks
    avoid: set[int]  # workers that shall have no place
    avoid_hosts: set[int]  # hosts on which no worker shall have a place
    is_only_planned: bool  # nothing is to change
    is_told: bool = False  # rank 0 has heard that all of them are there
    is_begun: bool = False
    came: float = field(default_factory=time.monotonic)


@dataclass
class Attempt:
    """A generation that is being made."""

    to: str
    members: list[int]
    holders: list[Rank]  # the ranks before, which hold the state
    old: str  # the configuration before
    leads_back: bool
    why: str  # why it leads back
    participants: list[int]  # the workers that take part, those that hold the state first
    after_loss: bool = False  # no process takes the place of a rank that was lost in mid-training
    changed: set[int] = field(default_factory=set)
    began: float = field(default_factory=time.monotonic)


class Changes:
    """The request and the attempt that are under way, if any."""

    def __init__(self, ranks: Ranks, room: Room, restart: Callable[[str], None],
                 committed: Callable[[Attempt], None]) -> None:
        """`restart` starts all ranks again. `committed` is called when a generation is the job."""
        self._ranks, self._room = ranks, room
        self._restart, self._committed = restart, committed
        self._may_grow = False  # a host has come, and the job may go on with more workers
        self._told: tuple[int, ...] = ()  # what rank 0 has heard of spares: its process, and their number
        self._request: Request | None = None
        self._attempt: Attempt | None = None
        self._appointed: set[int] = set()
        self._sizes: dict[int, str] = {}  # the configuration for a number of workers
        self._program = ""  # the configuration that the program itself has

    def is_going_on(self, most: float) -> bool:
        """True while workers carry out an attempt. One that takes longer than `most` seconds has failed,
        and so has a request whose workers are not there by then."""
        attempt, request = self._attempt, self._request
        if request is not None and not request.is_told and time.monotonic() - request.came > most:
            self.drop(f"not all workers of {request.to} were there after {most:g} s")
        if attempt is not None and time.monotonic() - attempt.began > most:
            self._give_up(attempt, f"the change to {attempt.to} was not complete after {most:g} s")
        return attempt is not None

    @property
    def is_attempted(self) -> bool:
        """True while workers carry out an attempt."""
        return self._attempt is not None

    def hear(self, rank: Rank, message: dict[str, Any]) -> None:
        """A message of a worker about a change: its `what` is the name of one of the next methods."""
        getattr(self, message.pop("what"))(rank, **message)

    # What workers say

    def configured(self, _: Rank, text: str, sizes: dict[str, str]) -> None:
        """The configuration of the job, and those for other numbers of workers."""
        self._program, self._sizes = text, {int(number): one for number, one in sizes.items()}

    def wanted(self, rank: Rank, id: str, to: str, workers: int, avoid: list[int], avoid_hosts: list[int],
               is_only_planned: bool) -> None:
        """Rank 0 asks for a change."""
        request = Request(id, to, [], set(avoid), set(avoid_hosts), is_only_planned)
        request.avoid |= {one.number for one in self._known if one.home in request.avoid_hosts}
        request.members, why = self._choose(workers, request)
        if self._request is not None or self._attempt is not None:
            why = "another change is under way"
        elif any(one.exit_code is not None for one in self._ranks.all):
            why = "a rank was lost, and is not replaced yet"
        elif not why:
            self._request = request
            if missing := [one for one in request.members if self._ranks.of(one) is None
                           and not self._room.start(one, request.avoid_hosts)]:
                why, self._request = f"worker {missing[0]} cannot be started: its host is not there", None
        if why:
            return rank.tell(say="cannot_change", id=id, why=why)
        self._tell_if_ready()

    def withdrawn(self, rank: Rank, id: str) -> None:
        """A request is not wanted any more; rank 0 has not begun to stop for it."""
        if self._request is not None and self._request.id == id:
            self.drop("it was taken back")

    def waits(self, rank: Rank) -> None:
        """A worker can become a rank at once."""
        rank.is_waiting = True
        self._tell_if_ready()

    def appointed(self, rank: Rank, generation: int) -> None:
        """A rank has stopped after the step of the change."""
        numbers = [one.number for one in self._ranks.all]
        if generation == self._ranks.generation:  # else a rank was lost meanwhile, and it does not wait here
            self._appointed.add(rank.number)
        if not self._appointed.issuperset(numbers):
            return
        request, self._appointed = self._request, set()
        if request is None or not request.is_told:  # the one that they stop for was given up just then
            return self._begin(self._now, numbers, "the change that was asked for is given up")
        request.is_begun = True
        self._begin(request.to, request.members)

    def changed(self, rank: Rank, generation: int, members: list[int]) -> None:
        """A worker has all that it shall have. All come to the same members."""
        attempt = self._attempt
        if attempt is None or generation != self._ranks.generation:
            return
        attempt.members = members
        attempt.changed.add(rank.number)
        if attempt.changed.issuperset(attempt.participants):
            self._commit(attempt)

    def unchanged(self, rank: Rank, generation: int, why: str) -> None:
        """The attempt has failed on a worker."""
        attempt = self._attempt
        if attempt is None or generation != self._ranks.generation:
            return
        if attempt.leads_back:
            return self._give_up(attempt, f"{self._ranks.name(rank)}: {why}")
        is_planned = self._request is not None and self._request.is_only_planned
        self._begin(attempt.old, [one.number for one in attempt.holders],
                    f"the change to {attempt.to} was only planned" if is_planned else
                    f"the change to {attempt.to} has failed: {self._ranks.name(rank)}: {why}")

    def ended(self, rank: Rank, how: str) -> bool:
        """A worker has ended. False if that is nothing to a change: the job itself sees to it."""
        if rank in self._ranks.spares:
            self._ranks.spares.remove(rank)
            self._replace_spare(rank, how)
        attempt = self._attempt
        if attempt is None or rank.number not in attempt.participants:
            return rank not in self._ranks.all
        left = [one for one in attempt.holders if one.exit_code is None]
        self._begin_with(attempt, left, f"{self._ranks.name(rank)} (pid {rank.pid}) died during the "
                                        f"change to {attempt.to}: {how}")
        return True

    def _replace_spare(self, rank: Rank, how: str) -> None:
        """A worker that was no rank has ended: one that the request needs is started, once it has left."""
        request = self._request
        if request is None or self._attempt is not None or rank.number not in request.members:
            return
        if rank.exit_code != 0 or not self._room.start(rank.number, request.avoid_hosts):
            say(f"worker {rank.number} (pid {rank.pid}) has ended before it had a place in the job: {how}")
            self.drop(f"worker {rank.number} has ended: {how}")

    def drop(self, why: str = "") -> None:
        """The request is given up, if it has not begun; without a reason, because a rank was lost."""
        request, self._appointed = self._request, self._appointed if why else set()
        if request is not None and not request.is_begun:
            self._request = None
            self._ranks.all[0].tell(say="cannot_change", id=request.id, why=why or "a rank was lost")

    def forget(self) -> None:
        """All ranks start again, so that nothing is under way. The new rank 0 tells whoever has asked."""
        self._request = self._attempt = None
        self._appointed = set()

    # Without being asked

    def fewer(self, why: str) -> bool:
        """Ranks are lost for good: those that are left go on with what `sizes` has for them.

        False if it has nothing, or if they do not all know yet behind which step they are.
        """
        for one in self._ranks.living():
            if not one.is_whole:
                one.abandon("the job goes on with fewer ranks")
        left = [one.number for one in self._ranks.living()]
        fitting = self._fitting(len(left))
        if fitting == 0 or not self._ranks.decided:
            return False
        self._begin(self._sizes[fitting], left[:fitting], why, after_loss=True)
        return True

    def host_came(self) -> None:
        """There may be room for more workers."""
        self._may_grow = True

    def grow(self) -> None:
        """Called often: has rank 0 ask for more workers, if a host has come that has room for them."""
        ranks = self._ranks
        self._tell_spares()
        is_idle = self._request is None and self._attempt is None and ranks.has_begun
        if not (self._may_grow and is_idle and set(ranks.codes()) == {None}):
            return
        self._may_grow = False
        fitting = self._fitting(len(ranks.all) + self._unstarted())
        if fitting > len(ranks.all):
            ranks.all[0].tell(say="wish", to=self._sizes[fitting])

    def _unstarted(self) -> int:
        """How many workers could be started."""
        return min(len(self._unused(set())), self._room.free(set()))

    def _tell_spares(self) -> None:
        """Tells rank 0 how many workers could get a place in the job: those that wait, or could be started."""
        if not self._ranks.can_change or not self._ranks.has_begun:
            return
        first, waiting = self._ranks.all[0], [one for one in self._ranks.spares if one.exit_code is None]
        told = first.number, first.serial, len(waiting) + self._unstarted()
        if told != self._told and first.exit_code is None:
            self._told = told
            first.tell(say="spares", count=told[-1])

    def _fitting(self, workers: int) -> int:
        """How many of so many workers the job can have; 0 if `sizes` has nothing."""
        return max((number for number in self._sizes if number <= workers), default=0)

    # What becomes of it

    @property
    def _known(self) -> list[Rank]:
        return [*self._ranks.all, *self._ranks.spares]

    def _unused(self, avoid: set[int]) -> list[int]:
        """The numbers that no worker has."""
        there = [one.number for one in self._known]
        return [one for one in range(self._room.most) if one not in there and one not in avoid]

    def _choose(self, workers: int, wanted: Request) -> tuple[list[int], str]:
        """The workers that shall be ranks, or why there are not enough."""
        able = [one.number for one in self._known if one.number not in wanted.avoid]
        unused, free = self._unused(wanted.avoid), self._room.free(wanted.avoid_hosts)
        most = len(able) + min(len(unused), free)
        if most < workers:
            avoided = sum(one.number in wanted.avoid for one in self._known)
            what = "more hosts" if free < len(unused) else f"holdfast launch --most {workers + avoided}"
            return [], (f"{workers} workers are wanted, and there are at most {most}; expected a smaller "
                        f"configuration, or {what}")
        return [*able, *unused][:workers], ""

    def _tell_if_ready(self) -> None:
        request = self._request
        if request is None or request.is_told:
            return
        found = [self._ranks.of(one) for one in request.members]
        if all(one is not None and (one in self._ranks.all or one.is_waiting) for one in found):
            request.is_told = True
            self._ranks.all[0].tell(say="can_change", id=request.id, members=request.members)

    def _begin(self, to: str, members: list[int], why: str = "", *, after_loss: bool = False) -> None:
        """Begins an attempt: the generation of those members. `why` says why it leads back."""
        if why:
            say(f"{why}; the job goes on as {to}")
        before = self._attempt
        holders = self._ranks.all if before is None else before.holders
        old = self._now if before is None else before.old
        holders = [one for one in holders if one.exit_code is None]
        numbers = [one.number for one in holders]
        participants = numbers + [one for one in members if one not in numbers]
        request = self._request
        avoid = set() if request is None else request.avoid
        self._attempt = attempt = Attempt(to, members, holders, old, bool(why), why, participants,
                                          after_loss)
        self._ranks.generation += 1
        self._ranks.decided = {}
        known = {one.number: one for one in [*self._ranks.all, *self._ranks.spares]}
        waiting = [one.number for one in known.values() if one.exit_code is None] \
            if before is not None else attempt.participants
        for number in waiting:  # a worker that was to join hears that it is not needed
            known[number].is_waiting = False
            known[number].tell(
                say="change", generation=self._ranks.generation, to=to, members=members, why=why,
                request="" if request is None else request.id, after_loss=after_loss,
                is_only_planned=not why and request is not None and request.is_only_planned,
                able=[one for one in participants if one not in avoid or one in members],
                homes={one: known[one].home for one in participants},
                is_local=len({known[one].home for one in participants}) == 1,
                participants=participants, holders=numbers)

    def _begin_with(self, attempt: Attempt, left: list[Rank], why: str) -> None:
        """The next attempt after a death, with the ranks of before that are left."""
        if len(left) == len(attempt.holders):
            return self._begin(attempt.old, [one.number for one in left], why)
        fitting = self._fitting(len(left))
        if fitting == 0:
            return self._give_up(attempt, f"{why}; `sizes` of holdfast.Elastic has no configuration for "
                                          f"{len(left)} workers")
        self._begin(self._sizes[fitting], [one.number for one in left[:fitting]], why,
                    after_loss=attempt.after_loss)

    def _give_up(self, attempt: Attempt, why: str) -> None:
        """All ranks start again from the newest checkpoint."""
        self._attempt = None
        if attempt.after_loss:  # no process takes the places of the others
            self._ranks.keep_only(attempt.members, attempt.to)
        self._restart(why)

    def _commit(self, attempt: Attempt) -> None:
        """The generation is the job from now on."""
        ranks, self._attempt = self._ranks, None
        known = {one.number: one for one in [*ranks.all, *ranks.spares]}
        ranks.all = [known.pop(number) for number in attempt.members]
        ranks.spares = [one for one in known.values() if one.exit_code is None]
        ranks.configuration, ranks.is_rebuilt, ranks.has_begun = attempt.to, True, False
        for rank in ranks.all:
            rank.is_running = rank.is_waiting = rank.is_cut_off = False
            rank.is_whole = rank.is_open = rank.has_joined = True
            rank.forget_wait()
        request, self._request = self._request, None
        self._committed(attempt)
        for number in attempt.participants:
            member = ranks.of(number)
            if member is not None:
                member.tell(say="change_committed", generation=ranks.generation)
        if request is not None and not attempt.leads_back:
            say(f"{attempt.old} -> {attempt.to} on workers {' '.join(map(str, attempt.members))}")

    @property
    def _now(self) -> str:
        return self._ranks.configuration or self._program
