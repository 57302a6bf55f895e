"""Where the ranks of a job exchange what their watches have seen: a few small messages.

    1. Each rank tells what it holds, what it has seen since the last comparison, and how large a
       window it can afford.
    2. Ranks that hold the same pieces vote on parts that differ (vote.py).
    3. If a rank holds other pieces than before, all ranks find out again which ranks hold the same
       pieces (replica_groups.py).
"""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import reduce
from typing import Any

from holdfast.options import Watch
from holdfast.torch.loop.saves import Saves
from holdfast.torch.watch.alarms import GONE, Alarm, alarm_of
from holdfast.torch.watch.costs import Plan
from holdfast.torch.watch.guards import Guards
from holdfast.torch.watch.replica_groups import Grouping, Held, Part, PieceGroup, digest_of_lists
from holdfast.torch.watch.vote import ReplicaVote
from holdfast.torch.watch.windows import OpenWindow, Seen

_SEAL = 32  # hexadecimal digits of the seal of a part
_MOST_WINDOWS = 64  # whose seals are compared at a comparison, if they differed and are equal again
Groups = Mapping[int, PieceGroup]  # of this rank, by number
Answers = Sequence[Mapping[str, Any]]  # of all ranks


@dataclass(frozen=True)
class Outcome:
    """The outcome of a comparison."""

    alarms: list[Alarm]  # the same on all ranks
    plan: Plan  # what all ranks do until the next comparison
    passed: int  # how many windows (window_order.py) the rank has opened that has opened most
    grouping: Grouping


class Comparison:
    """The comparisons of one rank with the others."""

    def __init__(self, saves: Saves, rank: int, options: Watch, guards: Guards) -> None:
        self.untold: list[Alarm] = []  # this rank's alarms that the others do not know
        self._saves, self._rank, self._options, self._guards = saves, rank, options, guards
        self._waited = 0.0  # seconds
        self._seen: dict[str, Seen] = {}  # by step
        self._seals: dict[str, dict[str, bytes]] = {}  # by step and group
        self._grouping = Grouping()

    def note(self, step: int, opened: OpenWindow) -> None:
        """Notes the window that was opened after a step, to be compared at the next comparison."""
        if opened.seen:
            self._seen[str(step)], self._seals[str(step)] = opened.seen, opened.seals

    def forget(self) -> None:
        """Forgets what would be compared: the tensors may be others now."""
        self._seen, self._seals = {}, {}

    def restart(self) -> None:
        """Forgets the other ranks, too."""
        self.forget()
        self._grouping = Grouping()

    def hold(self, groups: Groups | None, step: int, afforded: tuple[Plan, int],
             flagged: Mapping[Part, Alarm], held: Held) -> Outcome:
        """Compares with all ranks. `held` is what this rank holds now. `afforded` is what it can afford,
        and how many windows it has opened.

        `groups` is None if this rank has let go of its tensors since the last comparison.
        """
        plan, passed = afforded
        own = {"held": [held.listed, held.bytes], "grouping": self._grouping.digest,
               "compares": self._options.replicas, "ready": groups is not None,
               "plan": astuple(plan), "passed": passed, "seen": self._seen,
               "flagged": sorted(map(str, flagged)), "guards": self._guards.message(),
               "alarms": [one.packed() for one in self.untold]}
        self._seen, self.untold = {}, []
        seals, self._seals = self._seals, {}
        ranks = self._gather(own)
        alarms = [Alarm.unpacked(one) for rank, answer in enumerate(ranks) if rank != self._rank
                  for one in answer["alarms"]]
        agreed = reduce(Plan.agreed, [Plan(*answer["plan"]) for answer in ranks])
        suspects = _suspects(ranks)
        if suspects:
            vote = ReplicaVote(groups or {}, self._rank, step, [one["ready"] for one in ranks],
                               [set(one["flagged"]) for one in ranks])
            mine = sorted(part for part in suspects if part.group in (groups or {}))
            voted = self._run(vote, mine, flagged)
            alarms += voted or self._tell_gone(groups or {}, ranks, seals)
        alarms += self._guards.hear([one["guards"] for one in ranks], self._gather)
        self._regroup(ranks, held)
        return Outcome(alarms, agreed, max(one["passed"] for one in ranks), self._grouping)

    def _regroup(self, ranks: Answers, held: Held) -> None:
        """Finds out which ranks hold the same pieces, if a rank has other pieces than before.

        Ranks with the same list of pieces send it once.
        """
        listed, largest = [one["held"][0] for one in ranks], max(one["held"][1] for one in ranks)
        compares = all(one["compares"] for one in ranks)
        digest = digest_of_lists(listed, largest, compares)
        if all(one["grouping"] == digest for one in ranks):
            return
        if not compares:
            self._grouping = Grouping.alone(self._rank, len(ranks), held.keys, digest, largest)
            return
        firsts = [listed.index(one) for one in listed]
        sent: list[list[str]] = [held.keys]
        if any(firsts):
            sent = self._gather(held.keys if firsts[self._rank] == self._rank else [])
        self._grouping = Grouping.of([sent[first] for first in firsts], digest, largest)

    def _tell_gone(self, groups: Groups, ranks: Answers,
                   seals: Mapping[str, Mapping[str, bytes]]) -> list[Alarm]:
        """The alarms about windows that differed when they were opened, and are equal now."""
        windows, seen = sorted(_differing(ranks))[:_MOST_WINDOWS], ranks[self._rank]["seen"]
        told = self._gather({f"{step} {group} {begin} {end}": seals[step][group].hex()
                             for step, group, begin, end in windows
                             if seen.get(step, {}).get(group, [])[:2] == [begin, end]})
        gone = []
        for key, own in told[self._rank].items():
            step, group, first, _ = key.split()
            parts = _unusual_parts(own, [one[key] for one in told if key in one])
            names = dict.fromkeys(groups[int(group)].name_of(int(first) + part) for part in parts)
            gone += [alarm_of([], name, int(step), self._rank, GONE, "itself") for name in names]
        answers = self._gather([one.packed() for one in gone])
        return [Alarm.unpacked(one) for answer in answers for one in answer]

    def vote(self, groups: Groups | None, step: int, parts: Sequence[Part]) -> list[Alarm]:
        """Votes on these parts; every rank calls it, also one that watches nothing."""
        ready = self._gather(groups is not None)
        vote = ReplicaVote(groups or {}, self._rank, step, ready, [set() for _ in ready])
        return self._run(vote, parts, {})

    def _run(self, vote: ReplicaVote, parts: Sequence[Part],
             found: Mapping[Part, Alarm]) -> list[Alarm]:
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


def _differing(ranks: Answers) -> set[tuple[str, str, int, int]]:
    """The windows whose digests differ among ranks: step, group, the first part, the end.

    Only equal windows are compared: a rank may have opened fewer since the last comparison.
    """
    digests: dict[tuple[str, str, int, int], str] = {}
    found = set()
    for one in ranks:
        for step, ranges in one["seen"].items():
            for group, (begin, end, digest) in ranges.items():
                window = step, group, begin, end
                if digests.setdefault(window, digest) != digest:
                    found.add(window)
    return found


def _suspects(ranks: Answers) -> set[Part]:
    """The parts that ranks must vote on, the same on all ranks.

    They are those that changed between two updates, and all parts of windows whose digests differ
    among ranks that opened them after the same step.
    """
    parts = {Part.parse(text) for one in ranks for text in one["flagged"]}
    for _, group, begin, end in _differing(ranks):
        parts |= {Part(int(group), part) for part in range(begin, end)}
    return parts


def _unusual_parts(own: str, of_ranks: Sequence[str]) -> list[int]:
    """The parts of a window whose seal is not the one that most ranks have.

    Each rank has the seals of all parts as one text.
    """
    found = []
    for part, at in enumerate(range(0, len(own), _SEAL)):
        seals = Counter(one[at:at + _SEAL] for one in of_ranks)
        if own[at:at + _SEAL] != seals.most_common(1)[0][0]:
            found.append(part)
    return found
