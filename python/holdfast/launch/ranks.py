"""The ranks of a job, as the launcher that decides sees them: where each runs, and how far it is.

The number of a rank is that of its worker. At first they are the same; after a change of the
configuration (changes.py), `Ranks.all` has the workers in the order of their ranks.
"""

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.launch.helpers import Helpers
from holdfast.launch.hosts import Host
from holdfast.launch.rank import Rank


class Ranks:
    """All ranks of a job, and the generation that they are part of."""

    def __init__(self, *, can_change: bool) -> None:
        """`can_change` if there may be more workers than ranks."""
        self.all: list[Rank] = []
        self.spares: list[Rank] = []  # workers that wait for a place in the job, or have left it
        self.helpers = Helpers()
        self.configuration = ""  # that of the job, if a change has led to it
        self.can_change = can_change
        self.is_rebuilt = False  # a change has led to it while the processes lived
        self.generation = 0
        self.incarnation = 0  # how often all ranks were started again
        self.has_begun = False  # all ranks have made an update
        self.has_checkpointer = False  # a rank has made a Checkpointer
        self.islands: list[list[int]] = []  # numbers of ranks that are started again together
        self.unsaved: list[str] = []  # what checkpoints of the job do not have
        # Start-up logs of ranks on other hosts, in parts: arguments of the command `log`.
        self.logs: dict[int, tuple[Host, list[dict[str, Any]]]] = {}
        self.decided: dict[str, Any] = {}  # what was decided in this generation
        self._starts = 0
        self._events: list[dict[str, Any]] = []  # that no worker has been given yet

    def place(self, on_hosts: dict[int, int]) -> None:
        """Gives each host its number of ranks, in the order of the hosts."""
        for host in sorted(on_hosts):
            for _ in range(on_hosts[host]):
                self.all.append(Rank(len(self.all), host))

    def number_on(self, host: int) -> int:
        return sum(rank.home == host for rank in self.all)

    def of(self, number: int) -> Rank | None:
        """The worker with that number, whether it is a rank of the job or not."""
        return next((one for one in [*self.all, *self.spares] if one.number == number), None)

    def order_of(self, rank: Rank) -> int:
        """The rank of a worker in the job."""
        return self.all.index(rank)

    def name(self, rank: Rank) -> str:
        """What a message calls a worker."""
        if rank not in self.all:
            return f"worker {rank.number}"
        order = self.order_of(rank)
        return f"rank {order}" if order == rank.number else f"rank {order} (worker {rank.number})"

    def codes(self) -> list[int | None]:
        """Exit codes; None for a rank that lives, or if there are no ranks yet."""
        return [rank.exit_code for rank in self.all] or [None]

    def living(self) -> list[Rank]:
        return [rank for rank in self.all if rank.exit_code is None]

    def missing(self) -> list[Rank]:
        return [rank for rank in self.all if rank.exit_code is not None]

    def hear_unsaved(self, _: Rank, message: dict[str, Any]) -> None:
        """A rank says what no checkpoint has."""
        self.unsaved = message["what"]

    def hear_islands(self, _: Rank, message: dict[str, Any]) -> None:
        """A rank says which ranks make steps again together."""
        self.islands = message["of"]

    def end_islands(self, say: Callable[[str], None]) -> None:
        """Ends the ranks that live, and belong to the island of one that does not."""
        missing = {rank.number for rank in self.missing()}
        shared = {number for island in self.islands if missing & set(island) for number in island}
        for rank in [one for one in self.living() if one.number in shared]:
            say(f"{self.name(rank)} (pid {rank.pid}) ends, too: it makes steps again together with a lost rank")
            rank.abandon("its island has lost a rank")

    def host_of(self, number: int, pid: int) -> Host | None:
        """Where the rank has the process with that id; None if it does not have it any more."""
        found = [rank.host for rank in self.living() if (rank.number, rank.pid) == (number, pid)]
        return found[0] if found else None

    def serials_to_stop(self) -> list[int]:
        """The processes that a stop signal is for: those that have the state, or else all.

        A replacement has no Checkpointer at first, so that the signal would end it. Ranks that have
        the state pass the signal on as soon as it is filled.
        """
        living = self.living()
        return [rank.serial for rank in living if rank.is_whole] or [rank.serial for rank in living]

    def why_plain(self) -> str:
        """Why a lost rank cannot be replaced, if a rank has said so."""
        return next((rank.plain for rank in self.all if rank.plain), "")

    def start(self, rank: Rank, host: Host, job: dict[str, Any]) -> Rank:
        """Starts a process for the rank: a replacement if the others are in mid-training."""
        is_replacement = self.has_begun
        if is_replacement:
            self._move_log(rank.number, host)
        started = self._new(rank, host, is_whole=not is_replacement, has_joined=not is_replacement)
        is_single = len(self.missing()) == 1
        many = self.helpers.count_for(rank, is_single=is_single) if is_replacement and not self.is_rebuilt else 0
        self.all[self.order_of(rank)] = started
        host.steps[rank.number] = rank.step if is_replacement else -1
        self._do_start(started, host, job, is_replacement, helpers=many, alone=self.helpers.why_alone)
        if is_replacement and self.decided:
            started.tell(say="decided", **self.decided)
        for place in range(1, many):
            self._starts += 1
            helper = self.helpers.add(started, place, self._starts)
            self._do_start(helper, host, job, is_replacement, helped=rank.number, helper=place, helpers=many)
        return started

    def start_spare(self, number: int, home: int, host: Host, job: dict[str, Any]) -> None:
        """Starts a worker that waits for a place in the job, on that host."""
        started = self._new(Rank(number, home), host, is_whole=False)
        self.spares = [*(one for one in self.spares if one.number != number), started]
        self._do_start(started, host, job, is_replacement=False)

    def statuses(self) -> dict[int, dict[str, Any]] | None:
        """What the ranks that live and have their state say of their update; None until all have said it."""
        told = {rank.number: rank.status for rank in self.living() if rank.is_whole}
        known = {number: status for number, status in told.items() if status is not None}
        return known if len(known) == len(told) else None

    def tell_decision(self, target: int, courses: Mapping[int, str]) -> None:
        """Tells all what is decided in this generation, also those that start later."""
        self.decided = {"generation": self.generation, "target": target, "courses": courses}
        for rank in self.living():
            rank.tell(say="decided", **self.decided)

    def keep_only(self, members: list[int], configuration: str) -> None:
        """The job has only those ranks from now on, in that configuration."""
        known = {one.number: one for one in [*self.all, *self.spares]}
        self.all, self.configuration = [known[number] for number in members], configuration

    def newest_step(self) -> int:
        """The greatest step that any rank is in."""
        return max((rank.step for rank in self.all), default=-1)

    def _new(self, rank: Rank, host: Host, **state: bool) -> Rank:
        self._starts += 1
        return Rank(rank.number, rank.home, host, self._starts, exit_code=None, **state)

    def _do_start(self, rank: Rank, host: Host, job: dict[str, Any], is_replacement: bool, **helping: Any) -> None:
        there = sorted(one.number for one in [*self.all, *self.spares] if one.home == rank.home)
        local = there.index(helping.get("helped", rank.number))
        identity = {"home": rank.home, "members": [one.number for one in self.all],
                    "hosts": [one.home for one in self.all], "generation": self.generation,
                    "incarnation": self.incarnation, "configuration": self.configuration,
                    "can_change": self.can_change, "is_rebuilt": self.is_rebuilt, **helping}
        host.do({"do": "start", "rank": rank.number, "serial": rank.serial,
                 "is_replacement": is_replacement, "identity": identity,
                 "job": {**job, "local": [local, len(there)]}})

    def keep_log(self, host: Host, part: dict[str, Any]) -> None:
        """Keeps a part of the start-up log of a rank on another host."""
        if part["at"] == 0:
            self.logs[part["rank"]] = host, []
        self.logs[part["rank"]][1].append(part)

    def _move_log(self, rank: int, host: Host) -> None:
        """Gives a host the start-up log of a rank that ran on another one."""
        if rank in self.logs and self.logs[rank][0] is not host:
            parts = self.logs[rank][1]
            for part in parts:
                host.do({"do": "log", **part})
            self.logs[rank] = host, parts

    def next_generation(self) -> None:
        """Begins a generation. A replacement that was not whole yet begins anew."""
        self.generation += 1
        self.decided = {}
        self.helpers.end()
        for rank in self.all:
            rank.status, rank.has_joined, rank.is_cut_off = None, False, False
            if not rank.is_whole and rank.exit_code is None:
                rank.exit_code = -1

    def next_incarnation(self) -> None:
        """All processes have ended, and start again."""
        self.generation += 1
        self.incarnation += 1
        self.decided, self.logs, self.has_begun, self.is_rebuilt = {}, {}, False, False
        self.spares, self.islands = [], []
        self.helpers.done()
        for rank in self.all:
            rank.exit_code = -1

    def have_patience(self) -> None:
        """Has ranks that wait to hear why they are cut off wait on: a host cannot tell it now."""
        for rank in self.living():
            if rank.is_cut_off:
                rank.tell(say="wait")

    def note_running(self, rank: Rank) -> None:
        rank.is_running = True
        self.has_begun = self.has_begun or all(one.is_running for one in self.all)

    # Events of the run: the launcher does not know where the run is, so a worker writes them.

    def emit(self, name: str, **fields: Any) -> None:
        self._events.append({"name": name, "fields": fields})

    def flush_events(self) -> None:
        """Gives the events to the first rank that can write them."""
        writer = next((rank for rank in self.living() if rank.is_open), None)
        if writer is not None:
            events, self._events = self._events, []
            for event in events:
                writer.tell(say="event", **event)


def end_hang(ranks: list[Rank], most: float) -> Rank | None:
    """Ends the ranks that one has waited for in a collective call for too long, as they are in none.

    Returns that rank if all others are in calls, too.
    """
    first = next((rank for rank in ranks if (rank.waits or 0.0) > most), None)
    others = [rank for rank in ranks if rank.waits is None]
    if first is None:
        return None
    for other in others:
        other.kill(f"it is not in the collective call that rank {first.number} has waited in for {most:g} s")
    return None if others else first
