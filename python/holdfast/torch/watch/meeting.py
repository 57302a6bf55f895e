"""Where the ranks of a job exchange what their watches have seen: a few small messages."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from functools import reduce
from typing import Any

from holdfast import _native
from holdfast.options import Watch
from holdfast.torch.loop.saves import Saves
from holdfast.torch.state.piece import Piece
from holdfast.torch.watch.alarms import GONE, Alarm, alarm_of
from holdfast.torch.watch.costs import Plan
from holdfast.torch.watch.vote import ReplicaVote


def fingerprint_of(pieces: Sequence[tuple[Piece, str]]) -> str:
    """Equal on two ranks if they hold the same boxes of the same tensors, in the same order."""
    lines = [f"{name} {piece.shape} {piece.box} {piece.tensor.dtype}" for piece, name in pieces]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class Meeting:
    """The meetings of one rank with the others."""

    def __init__(self, saves: Saves, rank: int, options: Watch) -> None:
        self.fingerprint = ""  # "" while nothing is watched
        self.untold: list[Alarm] = []  # this rank's alarms that the others do not know
        self._saves, self._rank, self._options = saves, rank, options
        self._waited = 0.0  # seconds
        self._seen: dict[str, tuple[int, int, str]] = {}  # by step: first, last part, digest

    def note(self, step: int, first: int, last: int, digest: str) -> None:
        """Notes the window that was opened after a step, to be compared at the next meeting."""
        self._seen[str(step)] = first, last, digest

    def forget(self) -> None:
        """Forgets what would be compared: the tensors may be others now."""
        self._seen, self.fingerprint = {}, ""

    def hold(self, window: _native.FreezeWindow | None, names: Sequence[str], step: int, plan: Plan,
             flagged: Mapping[int, Alarm]) -> tuple[list[Alarm], Plan]:
        """Meets all ranks. Returns the alarms, the same on all ranks, and the plan of all."""
        # Without a comparison of replicas each rank is alone, also in a vote.
        alone = "" if self._options.replicas else f" of rank {self._rank}"
        own = {"fingerprint": self.fingerprint + alone, "plan": astuple(plan),
               "seen": self._seen if self._options.replicas else {},
               "flagged": sorted(flagged), "alarms": [one.packed() for one in self.untold]}
        self._seen, self.untold = {}, []
        ranks = self._gather(own)
        alarms = [Alarm.unpacked(one) for rank, answer in enumerate(ranks) if rank != self._rank
                  for one in answer["alarms"]]
        agreed = reduce(Plan.agreed, [Plan(*answer["plan"]) for answer in ranks])
        suspects = [_suspects(ranks, rank) for rank in range(len(ranks))]
        if any(suspects):
            vote = ReplicaVote(window, names, self._rank, step,
                               [answer["fingerprint"] for answer in ranks],
                               [answer["flagged"] for answer in ranks])
            voted = self._run(vote, suspects[self._rank], flagged)
            alarms += voted or self._tell_gone(window, names, ranks)
        return alarms, agreed

    def _tell_gone(self, window: _native.FreezeWindow | None, names: Sequence[str],
                   ranks: Sequence[Mapping[str, Any]]) -> list[Alarm]:
        """The alarms about windows that differed when they were opened, and are equal now."""
        group = [one for one in ranks if one["fingerprint"] == ranks[self._rank]["fingerprint"]]
        gone = []
        for step, (first, _, digest) in ranks[self._rank]["seen"].items():
            digests = Counter(one["seen"][step][2] for one in group if step in one["seen"])
            if window is not None and digest != digests.most_common(1)[0][0]:
                name = names[window.piece_of(first)]
                gone.append(alarm_of([], name, int(step), self._rank, GONE, "itself"))
        answers = self._gather([one.packed() for one in gone])
        return [Alarm.unpacked(one) for answer in answers for one in answer]

    def vote(self, window: _native.FreezeWindow | None, names: Sequence[str], step: int,
             parts: Sequence[int]) -> list[Alarm]:
        """Votes on these parts; every rank calls it, also one that watches nothing."""
        prints = self._gather(self.fingerprint if parts else f"nothing on rank {self._rank}")
        vote = ReplicaVote(window, names, self._rank, step, prints, [[] for _ in prints])
        return self._run(vote, parts, {})

    def _run(self, vote: ReplicaVote, parts: Sequence[int],
             found: Mapping[int, Alarm]) -> list[Alarm]:
        return vote.run(self._gather, parts, found, mend=self._options.on_alarm == "mend")

    def take_waited(self) -> float:
        """Seconds that this rank has waited for others since the last call."""
        waited, self._waited = self._waited, 0.0
        return waited

    def _gather(self, value: Any) -> list[Any]:
        message = json.dumps(value).encode()
        begin = time.perf_counter()
        answers = self._saves.live_job().gather(message)
        self._waited += time.perf_counter() - begin
        return [json.loads(answer) for answer in answers]


def _suspects(ranks: Sequence[Mapping[str, Any]], rank: int) -> list[int]:
    """The parts that the group of this rank must vote on.

    They are those that changed between two updates, and all parts of windows whose digests differ
    among ranks that opened them after the same step.
    """
    group = [one for one in ranks if one["fingerprint"] == ranks[rank]["fingerprint"]]
    parts = {part for one in group for part in one["flagged"]}
    first: dict[str, tuple[int, int, str]] = {}
    for one in group:
        for step, (begin, end, digest) in one["seen"].items():
            if first.setdefault(step, (begin, end, digest))[2] != digest:
                parts |= set(range(begin, end))
    return sorted(parts)
