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
from holdfast.torch.watch.replica_groups import Part, PieceGroup

_MOST_PARTS = 256  # a vote replaces at most so many parts of a rank by those of another one

Gather = Callable[[Any], list[Any]]


@dataclass(frozen=True)
class Verdict:
    """What a vote has found about one part."""

    part: Part
    right: bytes | None  # the seal that the part should have; None if that is not known
    source: int = -1  # the first rank that has the part with that seal


class ReplicaVote:
    """One vote, on this rank.

    `groups` are the groups of pieces that this rank is in. `ready` says, by rank, whether a rank
    has the pieces of its groups; one that has let go of them has no vote. `flagged` has, by rank,
    the parts that have changed between two updates.
    """

    def __init__(self, groups: Mapping[int, PieceGroup], rank: int, step: int,
                 ready: Sequence[bool], flagged: Sequence[set[str]]) -> None:
        self._groups, self._rank, self._step = groups, rank, step
        self._ready, self._flagged = ready, flagged

    def run(self, gather: Gather, parts: Sequence[Part], found: Mapping[Part, Alarm], *,
            mend: bool) -> list[Alarm]:
        """Votes on these parts. `found` are this rank's alarms about parts that are flagged.

        Returns the alarms of all ranks, the same on each.
        """
        for number in {part.group for part in parts}:
            self._groups[number].wait()
        seals = gather({str(part): self._window(part).seal(part.number).hex() for part in parts})
        verdicts = [self._judge(part, seals) for part in parts]
        alarms: list[Alarm] = []
        failed: list[Verdict] = []
        for verdict in verdicts:
            self._settle(verdict, seals, found, mend, alarms, failed)
        alarms += self._replace_parts(gather, failed, found)
        answers = gather([alarm.packed() for alarm in alarms])
        return [Alarm.unpacked(one) for answer in answers for one in answer]

    def _window(self, part: Part) -> _native.FreezeWindow:
        return self._groups[part.group].window

    def _holders(self, part: Part) -> list[int]:
        return [one for one in self._groups[part.group].ranks if self._ready[one]]

    def _judge(self, part: Part, seals: Sequence[Mapping[str, str]]) -> Verdict:
        voters = [one for one in self._holders(part) if str(part) not in self._flagged[one]]
        values = Counter(seals[one][str(part)] for one in voters)
        if not values:
            return Verdict(part, None)
        value, count = values.most_common(1)[0]
        if 2 * count <= len(voters):
            return Verdict(part, None)
        source = next(one for one in voters if seals[one][str(part)] == value)
        return Verdict(part, bytes.fromhex(value), source)

    def _settle(self, verdict: Verdict, seals: Sequence[Mapping[str, str]],
                found: Mapping[Part, Alarm], mend: bool, alarms: list[Alarm],
                failed: list[Verdict]) -> None:
        """Adds this rank's alarm about a part, or adds the part to those that failed."""
        part, own = verdict.part, seals[self._rank][str(verdict.part)]
        if verdict.right is None:
            alarms += self._undecided(part, seals, found)
        elif verdict.right.hex() != own:
            if not mend:
                alarms.append(found.get(part) or self._alarm(
                    part, self._window(part).find(part.number, verdict.right), DIFFERS))
                return
            try:
                changed = self._window(part).mend(part.number, verdict.right)
            except CorruptError:
                failed.append(verdict)
            else:
                alarms.append(self._mended(part, changed, found))
        elif part in found:  # it is again what the others have
            alarms.append(replace(found[part], cause=GONE, mended="itself"))

    def _undecided(self, part: Part, seals: Sequence[Mapping[str, str]],
                   found: Mapping[Part, Alarm]) -> list[Alarm]:
        holders = self._holders(part)
        values = [seals[one][str(part)] for one in holders]
        if len(set(values)) == 1:
            if part not in found:
                return []
            alike = len(holders) > 1
            return [replace(found[part], cause=ALIKE if alike else RESTED)]
        # The first rank that differs from the first of all speaks for the group.
        speaker = next(one for one, value in zip(holders, values, strict=True)
                       if value != values[0])
        if self._rank != speaker:
            return []
        ranks = " and ".join(f"rank {one}" for one in (holders[0], speaker))
        changed = self._window(part).find(part.number, bytes.fromhex(values[0]))
        return [self._alarm(part, changed, UNDECIDED.format(ranks))]

    def _replace_parts(self, gather: Gather, failed: list[Verdict],
                       found: Mapping[Part, Alarm]) -> list[Alarm]:
        """Gets bytes of other ranks for the parts of which more than one word differs."""
        wanted = gather([(str(one.part), one.source) for one in failed[:_MOST_PARTS]])
        if not any(wanted):
            return []
        mine = {text for asked in wanted for text, source in asked if source == self._rank}
        sent = gather({text: self._read(Part.parse(text)) for text in sorted(mine)})
        alarms = []
        for one in failed[:_MOST_PARTS]:
            data = base64.b64decode(sent[one.source][str(one.part)])
            changed = self._window(one.part).write(one.part.number, data)
            alarms.append(self._mended(one.part, changed, found))
        alarms += [self._alarm(one.part, [], DIFFERS) for one in failed[_MOST_PARTS:]]
        return alarms

    def _read(self, part: Part) -> str:
        return base64.b64encode(self._window(part).read(part.number)).decode()

    def _mended(self, part: Part, changed: Sequence[_native.ChangedElement],
                found: Mapping[Part, Alarm]) -> Alarm:
        cause = RESTED if part in found else DIFFERS
        return replace(self._alarm(part, changed, cause), mended="replicas")

    def _alarm(self, part: Part, changed: Sequence[_native.ChangedElement], cause: str) -> Alarm:
        return alarm_of(changed, self._groups[part.group].name_of(part.number), self._step,
                        self._rank, cause)
