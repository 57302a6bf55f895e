"""Compares parts of tensors that ranks hold alike, and mends a rank that differs from most.

All ranks make the same calls together; each call of `gather` is a message of every rank to all.

    1. Each rank tells the seals that its suspect parts have now.
    2. A rank whose seal is not that of the majority mends the part, if one word of it differs.
       Ranks whose own seals have shown that the part changed have no vote.
    3. Where more differs, the first rank of the majority sends the bytes of the part.
    4. All ranks tell what they have found, so that all know the same.
"""

import base64
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast import _native
from holdfast.errors import CorruptError
from holdfast.torch.watch.alarms import ALIKE, DIFFERS, GONE, RESTED, UNDECIDED, Alarm, alarm_of

_MOST_PARTS = 256  # of a rank are replaced by bytes of another one in a vote

Gather = Callable[[Any], list[Any]]


@dataclass(frozen=True)
class Verdict:
    """What a vote has found about one part."""

    part: int
    right: bytes | None  # the seal that the part should have; None if that is not known
    source: int = -1  # the first rank that has the part with that seal


class ReplicaVote:
    """One vote, on this rank.

    `fingerprints` says, by rank, what each rank holds: ranks with equal ones hold the same boxes of
    the same tensors. `flagged` lists, by rank, the parts that have changed between two updates. A
    rank without a window takes part with no parts of its own.
    """

    def __init__(self, window: _native.FreezeWindow | None, names: Sequence[str], rank: int,
                 step: int, fingerprints: Sequence[str],
                 flagged: Sequence[Sequence[int]]) -> None:
        self._window: Any = window
        self._names, self._rank, self._step = names, rank, step
        self._group = [one for one, mark in enumerate(fingerprints) if mark == fingerprints[rank]]
        self._flagged = [set(parts) for parts in flagged]

    def run(self, gather: Gather, parts: Sequence[int], found: Mapping[int, Alarm], *,
            mend: bool) -> list[Alarm]:
        """Votes on these parts. `found` are this rank's alarms about parts that are flagged.

        Returns the alarms of all ranks, the same on each.
        """
        seals = gather({str(part): self._window.seal(part).hex() for part in parts})
        verdicts = [self._judge(part, seals) for part in parts]
        alarms: list[Alarm] = []
        failed: list[Verdict] = []
        for verdict in verdicts:
            self._settle(verdict, seals, found, mend, alarms, failed)
        alarms += self._replace_parts(gather, failed, found)
        answers = gather([alarm.packed() for alarm in alarms])
        return [Alarm.unpacked(one) for answer in answers for one in answer]

    def _judge(self, part: int, seals: Sequence[Mapping[str, str]]) -> Verdict:
        voters = [one for one in self._group if part not in self._flagged[one]]
        values = Counter(seals[one][str(part)] for one in voters)
        if not values:
            return Verdict(part, None)
        value, count = values.most_common(1)[0]
        if 2 * count <= len(voters):
            return Verdict(part, None)
        source = next(one for one in voters if seals[one][str(part)] == value)
        return Verdict(part, bytes.fromhex(value), source)

    def _settle(self, verdict: Verdict, seals: Sequence[Mapping[str, str]],
                found: Mapping[int, Alarm], mend: bool, alarms: list[Alarm],
                failed: list[Verdict]) -> None:
        """Adds this rank's alarm about a part, or adds the part to those that failed."""
        part, own = verdict.part, seals[self._rank][str(verdict.part)]
        if verdict.right is None:
            alarms += self._undecided(part, seals, found)
        elif verdict.right.hex() != own:
            if not mend:
                alarms.append(found.get(part) or self._alarm(
                    part, self._window.find(part, verdict.right), DIFFERS))
                return
            try:
                changed = self._window.mend(part, verdict.right)
            except CorruptError:
                failed.append(verdict)
            else:
                alarms.append(self._mended(part, changed, found))
        elif part in found:  # it is again what the others have
            alarms.append(replace(found[part], cause=GONE, mended="itself"))

    def _undecided(self, part: int, seals: Sequence[Mapping[str, str]],
                   found: Mapping[int, Alarm]) -> list[Alarm]:
        values = [seals[one][str(part)] for one in self._group]
        if len(set(values)) == 1:
            if part not in found:
                return []
            alike = len(self._group) > 1
            return [replace(found[part], cause=ALIKE if alike else RESTED)]
        # The first rank that differs from the first of all speaks for the group.
        speaker = next(one for one, value in zip(self._group, values, strict=True)
                       if value != values[0])
        if self._rank != speaker:
            return []
        ranks = " and ".join(f"rank {one}" for one in (self._group[0], speaker))
        changed = self._window.find(part, bytes.fromhex(values[0]))
        return [self._alarm(part, changed, UNDECIDED.format(ranks))]

    def _replace_parts(self, gather: Gather, failed: list[Verdict],
                       found: Mapping[int, Alarm]) -> list[Alarm]:
        """Gets bytes of other ranks for the parts of which more than one word differs."""
        wanted = gather([(one.part, one.source) for one in failed[:_MOST_PARTS]])
        if not any(wanted):
            return []
        mine = {part for asked in wanted for part, source in asked if source == self._rank}
        sent = gather({str(part): base64.b64encode(self._window.read(part)).decode()
                       for part in sorted(mine)})
        alarms = []
        for one in failed[:_MOST_PARTS]:
            data = base64.b64decode(sent[one.source][str(one.part)])
            alarms.append(self._mended(one.part, self._window.write(one.part, data), found))
        alarms += [self._alarm(one.part, [], DIFFERS) for one in failed[_MOST_PARTS:]]
        return alarms

    def _mended(self, part: int, changed: Sequence[_native.ChangedElement],
                found: Mapping[int, Alarm]) -> Alarm:
        cause = RESTED if part in found else DIFFERS
        return replace(self._alarm(part, changed, cause), mended="replicas")

    def _alarm(self, part: int, changed: Sequence[_native.ChangedElement], cause: str) -> Alarm:
        return alarm_of(changed, self._names[self._window.piece_of(part)], self._step, self._rank,
                        cause)
