"""The room that the hosts of a job have for more workers."""

from collections.abc import Set
from typing import Any

from holdfast.launch.hosts import Host, Hosts
from holdfast.launch.options import Options
from holdfast.launch.ranks import Ranks


class Room:
    """Starts workers where there is room. A host has room for as many as it had ranks at first; workers
    that --most adds to these may be on any host."""

    def __init__(self, ranks: Ranks, options: Options, job: dict[str, Any]) -> None:
        """`job` is what every worker must know of the job."""
        self.hosts: Hosts | None = None  # once they are known
        self.most = options.most
        self._anywhere = options.most - options.ranks * options.hosts
        self._ranks, self._job = ranks, job

    def free(self, avoid: Set[int]) -> int:
        """How many more workers can run on other hosts than those."""
        found = self._other_than(avoid)
        spares = sum(one.ranks for one in self._all.spares)
        return max(0, self._anywhere + spares + sum(one.ranks - self._used(home) for home, one in found.items()))

    def start(self, number: int, avoid: Set[int]) -> bool:
        """Starts a worker that waits for a place in the job. False if there is no host for it."""
        found = self._other_than(avoid)
        if not any(self._used(home) < one.ranks for home, one in found.items()) \
                and (spare := self._all.take_spare()) is not None:
            found = {spare.number or 0: spare}
        if not found:
            return False
        home = min(found, key=lambda one: (self._used(one) >= found[one].ranks, self._used(one)))
        self._ranks.start_spare(number, home, found[home], self._job)
        return True

    @property
    def _all(self) -> Hosts:
        assert self.hosts is not None
        return self.hosts

    def _other_than(self, avoid: Set[int]) -> dict[int, Host]:
        return {home: one for home, one in self._all.living.items() if home not in avoid}

    def _used(self, home: int) -> int:
        """How many workers run there."""
        return sum(one.home == home and one.exit_code is None for one in [*self._ranks.all, *self._ranks.spares])
