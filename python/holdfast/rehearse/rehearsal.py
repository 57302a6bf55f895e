"""Carries a rehearsal out: which lives a training gets, and what follows from their records.

    1. Undisturbed, so many steps. From its records the kills are chosen.
    2. Undisturbed again. What differs here is not deterministic by itself.
    3. Killed, resumed, killed again, ...; the last life goes on to the end. Every life is compared
       with the first one, step by step and rank by rank.
    4. Under `holdfast launch` also: one rank is killed alone, and the others go on.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.rehearse.differences import (
    Difference,
    difference_of_resumed,
    differing_values,
    first_difference,
)
from holdfast.rehearse.life import Failed, Life, Start, live
from holdfast.rehearse.plan import AFTER_SAVE, AFTER_UPDATE, BEFORE_UPDATE, Kill, Plan
from holdfast.rehearse.process_tree import start as start_process
from holdfast.rehearse.records import LifeRecords, RankRecords

NOTHING = 4  # the exit code if there is nothing to rehearse
_TO_ITS_END = 1 << 62  # calls of the last step: a life ends by itself, or in a step more than there should be
_FEWEST = 3  # steps: one to save, one to be killed in, one to compare


@dataclass
class Killed:
    """One kill, and how the life after it compares with the undisturbed one."""

    kill: Kill
    step: int | None  # the step in which the life was killed
    alone: int | None = None  # the rank that was killed alone
    resumed_after: int | None = None
    compared_to: int | None = None  # the last step that was compared
    difference: Difference | None = None
    cause: Difference | None = None  # what a resume brought back differently


@dataclass
class Outcome:
    """What a rehearsal has found."""

    steps: int
    seconds: float
    by_itself: Difference | None = None  # in which two undisturbed runs differ
    never_changes: bool = False  # no tensor of the undisturbed run has changed from step to step
    ended_early: bool = False  # the command has ended by itself before so many steps
    left_out: list[str] = field(default_factory=list)  # values that two undisturbed runs differ in
    kills: list[Killed] = field(default_factory=list)
    not_met: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unsaved: list[str] = field(default_factory=list)  # sentences about what is not saved

    @property
    def is_exact(self) -> bool:
        return not (self.by_itself or self.never_changes or self.first or self.unsaved)

    def note(self, records: LifeRecords) -> None:
        """Takes over what a life has warned of, and what it knew not to be saved."""
        self.unsaved = list(dict.fromkeys([*self.unsaved, *records.unsaved]))
        told = {*self.unsaved, *(f"resume: {line}" for line in self.unsaved)}
        self.warnings = [text for text in dict.fromkeys([*self.warnings, *records.warnings])
                         if text not in told]

    @property
    def first(self) -> Killed | None:
        """The first kill after which something differs."""
        return next((one for one in self.kills if one.difference), None)


class Rehearsal:
    """One call of `holdfast rehearse`. `tell` shows progress."""

    def __init__(self, command: Sequence[str], folder: Path, steps: int, at: Sequence[int] = (),
                 tell: Callable[[str], None] = lambda text: None,
                 start: Start = start_process) -> None:
        self._command, self._folder, self._steps, self._at = command, folder, steps, list(at)
        self._tell, self._start = tell, start

    def run(self) -> Outcome:
        """Failed if the command cannot be rehearsed."""
        golden = self._life("undisturbed", "undisturbed", Plan(1, os.getpid(), self._steps))
        _check_usable(golden)
        records = golden.records
        outcome = Outcome(len(records.numbers), golden.seconds, never_changes=_never_changes(records),
                          ended_early=golden.code is not None and
                          len(records.numbers) < self._steps)
        again = self._life("again", "undisturbed again", self._plan(1, records))
        again.check_not_failed("undisturbed again")
        outcome.note(records)
        outcome.note(again.records)
        outcome.left_out = sorted(differing_values(records, again.records))
        ignored = set(outcome.left_out)
        outcome.by_itself = first_difference(records, again.records, ignored)
        self._kill_all(records, outcome, ignored)
        self._kill_one(records, outcome, ignored)
        if not outcome.kills:
            raise Failed("no step could be saved and followed by another one; expected more --steps",
                         NOTHING)
        outcome.not_met += _not_met(records, outcome.kills)
        return outcome

    def _life(self, name: str, what: str, plan: Plan) -> Life:
        def tell(count: int) -> None:
            self._tell(f"{what}: step {count} of {plan.steps}")

        return live(self._command, self._folder / name, plan, tell, self._start)

    def _plan(self, life: int, golden: LifeRecords, kill: Kill | None = None,
              alone: int | None = None) -> Plan:
        numbers = golden.numbers
        return Plan(life, os.getpid(), len(numbers), numbers[-1], golden.calls_of_last, golden.part,
                    kill, alone)

    def _kill_all(self, golden: LifeRecords, outcome: Outcome, ignored: set[str]) -> None:
        """Kills all processes, life after life, and compares each life with the undisturbed one."""
        kills, before = choose_kills(golden, self._at), None
        for life, kill in enumerate([*kills, None], 1):
            what = f"killed {len(outcome.kills)} times" if outcome.kills else "to be killed"
            plan = self._plan(life, golden, kill)
            if kill is None and outcome.ended_early:
                plan = replace(plan, calls=_TO_ITS_END)
            lived = self._life("killed", what, plan)
            outcome.note(lived.records)
            if outcome.kills:
                _compare(golden, lived, outcome, ignored, before)
            if kill is None or outcome.first is not None:
                return
            _check_killed(lived, kill)
            if not lived.records.was_killed:
                outcome.not_met.append(f"a kill after step {kill.after}, which could not be saved "
                                       "before the last step (more --steps)")
                return
            outcome.kills.append(_killed(lived.records, kill, golden.numbers))
            before = lived.records

    def _kill_one(self, golden: LifeRecords, outcome: Outcome, ignored: set[str]) -> None:
        """Under `holdfast launch`, kills one rank alone."""
        opened = golden.ranks[0].opened[-1] if 0 in golden.ranks else {}
        if not opened.get("launched") or opened["world"] < 2 or outcome.first is not None:
            return
        numbers, last = golden.numbers, opened["world"] - 1
        kill = Kill(numbers[len(numbers) // 2 - 1], BEFORE_UPDATE)
        lived = self._life("alone", "one rank killed", self._plan(1, golden, kill, last))
        lived.check_not_failed(f"rank {last} killed")
        outcome.note(lived.records)
        outcome.kills.append(Killed(kill, kill.after + 1, alone=last))
        _compare(golden, lived, outcome, ignored)


def choose_kills(golden: LifeRecords, at: Sequence[int]) -> list[Kill]:
    """Chooses the kills: in the steps `at`, or in two steps and at the end of an epoch."""
    numbers = golden.numbers
    if not any(one.opened and one.steps for one in golden.ranks.values()):
        return []
    only_saves = all(record["by"] == "save" for one in golden.ranks.values()
                     for record in one.steps.values())
    places = [_index_of(step, numbers) for step in at] or _usual_places(golden)
    kinds = [AFTER_SAVE] * 2 if only_saves else [BEFORE_UPDATE, AFTER_UPDATE]
    return [Kill(numbers[place - 1], kinds[k % 2]) for k, place in enumerate(sorted(set(places)))]


def _usual_places(golden: LifeRecords) -> list[int]:
    """Two steps and the end of an epoch; if it can be, one of them is in the epoch behind that end."""
    count = len(golden.numbers)
    first, second = max(1, 2 * count // 5), max(2, 13 * count // 20)
    places = {first, second}
    if (end := end_of_epoch(golden)) is not None:
        behind = golden.numbers.index(end) + 1
        if second <= behind and behind + 2 < count:
            places = {first, behind + 2}
        places.add(behind)
    return [place for place in places if place < count]


def end_of_epoch(golden: LifeRecords) -> int | None:
    """The last step of the first epoch that has ended, if a later step was made."""
    steps = list(golden.ranks[min(golden.ranks)].steps.values())
    for before, record in zip(steps, steps[1:]):
        if None not in (before.get("epoch"), record.get("epoch")) and \
                before["epoch"] != record["epoch"]:
            last = before if record["ends_with_for"] else record
            return last["step"] if last is not steps[-1] else None
    return None


def _index_of(step: int, numbers: list[int]) -> int:
    if step not in numbers[1:]:
        raise Failed(f"--at {step}: not one of the steps {numbers[1]} to {numbers[-1]}; expected a "
                     "step that is made after another one", code=2)
    return numbers.index(step)


def _check_usable(golden: Life) -> None:
    """Failed if the command has made no steps that could be compared."""
    golden.check_not_failed("undisturbed")
    if not golden.records.has_checkpointer:
        raise Failed("the command has made no holdfast.Checkpointer; expected a training that is "
                     "saved by one", NOTHING)
    count = len(golden.records.numbers)
    if count < _FEWEST:
        made = f"{count} {'step' if count == 1 else 'steps'} by ck.step() or ck.save()"
        raise Failed(f"the command has made {made}; expected {_FEWEST} or more", NOTHING)


def _check_killed(lived: Life, kill: Kill) -> None:
    """Failed if the life has not come to the place where it was to be killed."""
    lived.check_not_failed(f"on the way to a kill after step {kill.after}")
    if lived.code is not None:
        raise Failed(f"the command has ended by itself before step {kill.after} was saved, and in "
                     "the undisturbed run it has not")


def _killed(lived: LifeRecords, kill: Kill, numbers: Sequence[int]) -> Killed:
    """The kill as it came: without an optimizer that is seen, one is killed behind the update."""
    waits = next(one.waits for one in lived.all_records if one.waits)
    step = next((number for number in numbers if number >= waits["step"]), waits["step"])
    return Killed(replace(kill, where=waits["where"]), step)


def _compare(golden: LifeRecords, lived: Life, outcome: Outcome, ignored: set[str],
             before: LifeRecords | None = None) -> None:
    """Compares a life that came after the newest kill; `before` is the life that was killed."""
    killed, records = outcome.kills[-1], lived.records
    lived.check_not_failed(f"started again after the kill in step {killed.step}")
    resumed = [one.resumed["start"] - 1 for one in records.ranks.values() if one.resumed]
    killed.resumed_after = min(resumed, default=None)
    killed.compared_to = max(records.numbers, default=None)
    upto = killed.compared_to if records.was_killed else golden.numbers[-1]
    if outcome.ended_early and killed.alone is None and not records.was_killed:
        upto = None  # nor may it make more steps than the undisturbed one
    killed.cause = _not_resumed(killed) or (before and difference_of_resumed(before, records))
    if outcome.by_itself is None and (killed.cause is None or killed.cause.what != "resume"):
        killed.difference = first_difference(golden, records, ignored, upto)
    if killed.difference is not None and killed.cause is None and before is not None:
        killed.cause = difference_of_resumed(before, records, with_tensors=True)
    killed.difference = killed.difference or killed.cause


def _never_changes(golden: LifeRecords) -> bool:
    """True if every step of every rank has left all tensors as they were."""
    return all(record["tensors"] == next(iter(one.steps.values()))["tensors"]
               for one in golden.ranks.values() for record in one.steps.values())


def _not_resumed(killed: Killed) -> Difference | None:
    """A life that begins anew may have the same bits, and yet all work before the kill is lost."""
    after, saved = killed.resumed_after, killed.kill.after
    if killed.alone is not None or (after is not None and after >= saved):
        return None
    went_on = "began anew" if after is None or after < 0 else f"went on after step {after}"
    return Difference(saved, 0, "resume", went_on)


def _not_met(golden: LifeRecords, kills: Sequence[Killed]) -> list[str]:
    """What a training may have, and this rehearsal has not met."""
    ranks = list(golden.ranks.values())
    opened = [record for one in ranks for record in one.opened]
    saved = {one.kill.after for one in kills}
    missing = []
    if (end := end_of_epoch(golden)) is None or end not in saved:
        lengths = [one["epoch_length"] for one in opened if one["epoch_length"]]
        needed = lengths[0] + 3 if lengths else 0
        more = f" (--steps {needed} reaches one)" if needed > len(golden.numbers) else ""
        missing.append(f"an epoch's end{more}")
    if not any(record["validated"] for one in ranks for record in one.steps.values()):
        missing.append("a validation")
    if not any(record["loss"] for one in ranks for record in one.steps.values()):
        missing.append("the losses (ck.step(step, loss=loss) tells them)")
    if not any(one["workers"] for one in opened):
        missing.append("workers of a loader")
    return missing + _other_checkpointers(golden)


def _other_checkpointers(golden: LifeRecords) -> list[str]:
    """Says what is left out where a script has several Checkpointers."""
    if not golden.others:
        return []
    first, last = _calls(golden.ranks)
    beside = [one for one in map(_calls, golden.others.values()) if one[0] < last and one[1] > first]
    if beside:
        return [f"{len(beside) + 1} Checkpointers that save after different steps (one with all "
                "models as a dict saves them together)"]
    return ["kills in the steps of other Checkpointers"]


def _calls(ranks: dict[int, RankRecords]) -> tuple[int, int]:
    """The place of its first and its last step among those of all Checkpointers."""
    places = [record["call"] for one in ranks.values() for record in one.steps.values()]
    return min(places), max(places)
