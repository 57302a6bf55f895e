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
the workers that are left. If a part of the state is nowhere any more, all ranks start again from the
newest checkpoint.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.launch.ranks import Rank, Ranks
from holdfast.launch.recoveries import say


@dataclass
class Request:
    """What rank 0 has asked for."""

    id: str
    to: str  # the configuration
    members: list[int]  # the workers that shall be ranks, in the order of their ranks
    avoid: set[int]  # workers that shall have no place
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
    changed: set[int] = field(default_factory=set)
    began: float = field(default_factory=time.monotonic)


class Changes:
    """The request and the attempt that are under way, if any."""

    def __init__(self, ranks: Ranks, most: int, start: Callable[[int], bool],
                 restart: Callable[[str], None], committed: Callable[[], None]) -> None:
        """`start` starts a worker with that number that waits for a place; False if it cannot.

        `restart` starts all ranks again. `committed` is called when a generation is the job.
        """
        self._ranks, self._most = ranks, most
        self._start, self._restart, self._committed = start, restart, committed
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
            self._attempt = None
            self._restart(f"the change to {attempt.to} was not complete after {most:g} s")
        return attempt is not None

    def hear(self, rank: Rank, message: dict[str, Any]) -> None:
        """A message of a worker about a change: its `what` is the name of one of the next methods."""
        getattr(self, message.pop("what"))(rank, **message)

    # What workers say

    def configured(self, _: Rank, text: str, sizes: dict[str, str]) -> None:
        """The configuration of the job, and those for other numbers of workers."""
        self._program, self._sizes = text, {int(number): one for number, one in sizes.items()}

    def wanted(self, rank: Rank, id: str, to: str, workers: int, avoid: list[int],
               is_only_planned: bool) -> None:
        """Rank 0 asks for a change."""
        members, why = self._choose(workers, set(avoid))
        if self._request is not None or self._attempt is not None:
            why = "another change is under way"
        elif not why:
            self._request = Request(id, to, members, set(avoid), is_only_planned)
            if missing := [one for one in members if self._ranks.of(one) is None
                           and not self._start(one)]:
                why, self._request = f"worker {missing[0]} cannot be started: its host is not there", None
        if why:
            return rank.tell(say="cannot_change", id=id, why=why)
        self._tell_if_ready()

    def waits(self, rank: Rank) -> None:
        """A worker can become a rank at once."""
        rank.is_waiting = True
        self._tell_if_ready()

    def appointed(self, rank: Rank) -> None:
        """A rank has stopped after the step of the change."""
        self._appointed.add(rank.number)
        request = self._request
        if request is not None and self._appointed.issuperset(one.number for one in self._ranks.all):
            request.is_begun, self._appointed = True, set()
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
            self._attempt = None
            return self._restart(f"{self._ranks.name(rank)}: {why}")
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
        if rank.exit_code != 0 or not self._start(rank.number):
            say(f"worker {rank.number} (pid {rank.pid}) has ended before it had a place in the job: {how}")
            self.drop(f"worker {rank.number} has ended: {how}")

    def drop(self, why: str = "") -> None:
        """The request is given up, if it has not begun: a rank was lost."""
        request, self._appointed = self._request, set()
        if request is not None and not request.is_begun:
            self._request = None
            self._ranks.all[0].tell(say="cannot_change", id=request.id, why=why or "a rank was lost")

    def forget(self) -> None:
        """All ranks start again, so that nothing is under way. The new rank 0 tells whoever has asked."""
        self._request = self._attempt = None
        self._appointed = set()

    # What becomes of it

    def _choose(self, workers: int, avoid: set[int]) -> tuple[list[int], str]:
        """The workers that shall be ranks, or why there are not enough."""
        there = [one.number for one in [*self._ranks.all, *self._ranks.spares]]
        known = [*there, *(one for one in range(self._most) if one not in there)]
        able = [one for one in known if one not in avoid]
        if len(able) < workers:
            return [], (f"{workers} workers are wanted, and there are at most {len(able)}; expected a "
                        "smaller configuration, or holdfast launch --most "
                        f"{workers + len(avoid & set(known))}")
        return able[:workers], ""

    def _tell_if_ready(self) -> None:
        request = self._request
        if request is None or request.is_told:
            return
        found = [self._ranks.of(one) for one in request.members]
        if all(one is not None and (one in self._ranks.all or one.is_waiting) for one in found):
            request.is_told = True
            self._ranks.all[0].tell(say="can_change", id=request.id, members=request.members)

    def _begin(self, to: str, members: list[int], why: str = "") -> None:
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
        self._attempt = attempt = Attempt(to, members, holders, old, bool(why), why, participants)
        self._ranks.generation += 1
        self._ranks.decided = {}
        known = {one.number: one for one in [*self._ranks.all, *self._ranks.spares]}
        waiting = [one.number for one in known.values() if one.exit_code is None] \
            if before is not None else attempt.participants
        for number in waiting:  # a worker that was to join hears that it is not needed
            known[number].is_waiting = False
            known[number].tell(
                say="change", generation=self._ranks.generation, to=to, members=members, why=why,
                request="" if request is None else request.id,
                is_only_planned=not why and request is not None and request.is_only_planned,
                able=[one for one in participants if one not in avoid or one in members],
                homes={one: known[one].home for one in participants},
                is_local=len({known[one].home for one in participants}) == 1,
                participants=participants, holders=numbers)

    def _begin_with(self, attempt: Attempt, left: list[Rank], why: str) -> None:
        """The next attempt after a death, with the ranks of before that are left."""
        if len(left) == len(attempt.holders):
            return self._begin(attempt.old, [one.number for one in left], why)
        fitting = max((number for number in self._sizes if number <= len(left)), default=0)
        if fitting == 0:
            self._attempt = None
            return self._restart(f"{why}; `sizes` of holdfast.Elastic has no configuration for "
                                 f"{len(left)} workers")
        self._begin(self._sizes[fitting], [one.number for one in left[:fitting]], why)

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
        self._committed()
        for number in attempt.participants:
            member = ranks.of(number)
            if member is not None:
                member.tell(say="change_committed", generation=ranks.generation)
        if request is not None and not attempt.leads_back:
            say(f"{attempt.old} -> {attempt.to} on workers {' '.join(map(str, attempt.members))}")

    @property
    def _now(self) -> str:
        return self._ranks.configuration or self._program
