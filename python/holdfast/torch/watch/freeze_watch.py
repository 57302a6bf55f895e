"""Watches parameters and optimizer slots between two updates, in which nothing writes to them.

    1. step() opens a window (windows.py): it seals a part of their bytes, another part after each
       step.
    2. Before the next update the same bytes are sealed again. A seal that differs is an alarm,
       unless torch has counted a write to the tensor in between.
    3. One word that changed is put back at once, as the seal says what it was.
    4. Every few seconds, and before each save, the ranks compare what they have seen
       (comparison.py): they agree how large the windows are, compare the seals of pieces that
       several of them hold, and vote on what differs (vote.py). A save that finds replicas that
       differ calls for a vote, too.

Only this rank's training thread works here. The windows are as large as holdfast.Watch(share=)
allows (costs.py).
"""

import logging
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch

from holdfast.errors import CorruptError
from holdfast.options import Watch
from holdfast.torch.loop.messages import Messages
from holdfast.torch.loop.optimizer_hooks import replace_closure
from holdfast.torch.loop.plain_parts import NoWatch
from holdfast.torch.loop.saves import Saves
from holdfast.torch.state.piece import Piece
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.watch.alarms import RESTED, Alarm, alarm_of
from holdfast.torch.watch.comparison import Comparison
from holdfast.torch.watch.costs import Costs, Plan
from holdfast.torch.watch.guards import Guards
from holdfast.torch.watch.replica_groups import Grouping, Held, Part
from holdfast.torch.watch.window_order import WindowOrder
from holdfast.torch.watch.windows import OpenWindow, Windows

_BLIND = ("watch: no hook tells of the optimizer's updates (it is no torch optimizer, or a CUDA "
          "graph replays its steps), so nothing is watched")

_NOTHING = ("watch: no parameter or slot can be watched: all are empty, excluded, or on devices of "
            "another kind; expected tensors in host memory or on CUDA devices")

_log = logging.getLogger("holdfast")
_FIRST_COMPARISONS = 3
_KEPT = 16  # so many distances between windows are remembered
_MOST_TOLD = 100  # alarms about one tensor by one guard


@dataclass(frozen=True)
class Watched:
    """What a Checkpointer with `watch=` looks at: `ck.watched`."""

    bytes: int  # of all parameters and slots that this rank holds
    window_bytes: int  # of them that are looked at in one step, on average
    cycle: int  # the number of steps in which all of them are looked at once; 0 if none are
    chance: float  # that a flip at a random time and place is seen between two updates
    share: float  # the part of the training time that it has taken
    left_out: list[str]  # names of parameters and slots that are not watched
    alarms: list[Alarm]

    def __str__(self) -> str:
        if not self.cycle:
            return "watch: no tensor is watched yet"
        steps = "1 step" if self.cycle == 1 else f"{self.cycle} steps"
        return (f"watch: {self.window_bytes:,} of {self.bytes:,} bytes in each step, all in "
                f"{steps}; a flip at a random time and place is seen between two "
                f"updates with a chance of {self.chance:.2g}; {self.share:.2%} of the time")


class FreezeWatch:
    """The watch of one Checkpointer, on one rank."""

    is_on = True

    def __init__(self, options: Watch, state: TrainingState, saves: Saves,
                 messages: Messages) -> None:
        self.alarms: list[Alarm] = []
        self._closed: Watched | None = None  # what was watched, after close()
        self._options, self._state, self._saves = options, state, saves
        self._messages = messages
        self._costs = Costs(options.share, options.compare_every)
        self._held: Held | None = None
        self._grouping: Grouping | None = None
        self._left_out: list[str] = []
        self._all_bytes = 0
        self._covered = 0.0  # byte seconds since counting began
        self._counted_from = 0.0  # when that was, in seconds of training
        self._comparisons = 0
        self._chance = 0.0
        self._told = False
        self._count_told: Counter[tuple[str, str]] = Counter()  # alarms by tensor and guard
        self._windows: Windows | None = None  # None while tensors may have been replaced
        self._order = WindowOrder()
        self._open: OpenWindow | None = None
        self._opened_after: int | None = None  # the call of step() that opened the last window
        # Steps between windows: more than planned if a window waits longer for its update.
        self._apart: deque[int] = deque([1], _KEPT)
        self._step = -1  # the last step
        self._calls = 0  # of step(), whose numbers may have gaps
        self._updates = 0  # calls of step() before which an update was made
        self._has_updated = False  # since the last call
        self.is_damaged = False  # an alarm has stopped training, so the state is not to be saved
        self._compared_after: int | None = None  # the step of the last comparison
        self._next_comparison: int | None = None
        self._guards = Guards(options, state.rank, state.world)
        self._comparison = Comparison(saves, state.rank, options, self._guards)
        self._flagged: dict[Part, Alarm] = {}  # parts that have changed, and are not mended
        state.on_forget.append(self.forget)
        saves.vote_on = self.vote_on

    @property
    def watched(self) -> Watched:
        """What is looked at, and what was found."""
        if self._closed is not None:
            return self._closed
        windows = self._windows
        apart = max(self._order.plan.every, statistics.median_high(self._apart))
        cycle = 0 if windows is None else self._order.count * apart
        elapsed = max(self._costs.elapsed, 1e-9)
        size = 0 if windows is None else windows.bytes // cycle
        spent = self._costs.seconds + self._guards.seconds
        return Watched(self._all_bytes, size, cycle, self._chance, spent / elapsed,
                       list(self._left_out), list(self.alarms))

    # What the Checkpointer calls

    def step(self, step: int, loss: Any, *, is_blind: bool) -> None:
        """Called in each step(), on all ranks. May raise CorruptError.

        `is_blind` says that updates call no hook, so that no window could be closed in time.
        """
        updated, self._has_updated = self._has_updated, False
        self._costs.step(updated=updated)
        self._calls += 1
        self._updates += updated
        self._step, is_blind = step, is_blind or not self._state.optimizers
        self._guards.step(step, loss, is_blind=is_blind)
        if self._next_comparison is None or self._calls >= self._next_comparison:
            self.compare(step)
        if is_blind:
            self._open = None
            self._messages.warn_once(_BLIND)
        elif (self._open is None and self._windows is not None and updated
              and self._updates % self._order.plan.every == 0):
            self._open_window(step, self._windows)
        if self._state.world == 1:
            self._finish(self._guards.take_alarms(wait=False))

    def compare(self, step: int) -> None:
        """Compares with all ranks, unless they have done so after this step. Called before a save, too.

        Raises CorruptError, on all ranks alike, if training must stop.
        """
        if self._compared_after != step:
            self._compared_after = step
            self._compare(step)

    def before_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Looks whether the window has changed. Returns other arguments for step(), or None.

        An optimizer of torch changes nothing before it has called its closure, in which forward
        and backward are. So the window stays open until then.
        """
        if not self._state.owns(optimizer):
            return None
        self._has_updated = True
        if self._open is None and not self._guards.look_at_updates:
            return None
        if type(optimizer).__module__.startswith("torch.optim."):
            changed = replace_closure(args, kwargs, partial(self._look_after, optimizer))
            if changed is not None:
                return changed
        self._look_before_update(optimizer)
        return None

    def restart(self) -> None:
        """Begins anew, with a comparison of all ranks at the next step: a rank was replaced."""
        self.forget()
        self._guards.restart()
        self._comparison.restart()
        self._order, self._grouping = WindowOrder(), None
        self._next_comparison = self._compared_after = None
        self._calls = self._updates = 0
        self.is_damaged = False

    def forget(self) -> None:
        """Lets go of all tensors: they may have been replaced. The next comparison looks again."""
        self._tell([*self._flagged.values()])
        self._flagged = {}
        self._windows = self._held = self._open = self._opened_after = None
        self._guards.close()
        self._comparison.forget()

    def close(self) -> None:
        """Tells what was watched, and lets go of all tensors."""
        self._messages.tell(str(self.watched))
        before = self.watched
        self._tell_last()
        self.forget()
        self._closed = replace(before, alarms=self.alarms)

    def _tell_last(self) -> None:
        """Tells the alarms of the guards that no comparison will tell."""
        try:
            alarms = self._guards.take_alarms(wait=True)
        except RuntimeError as error:  # a device that has failed does not give its figures
            self._messages.warn_once("watch: the last figures of the guards are lost: %s", error)
            return
        self._tell(alarms)

    def vote_on(self, names: set[str]) -> set[str]:
        """Votes on tensors whose replicas a save has found to differ, on all ranks together.

        Returns the names of those that were mended. Raises CorruptError, on all ranks alike, if
        training must stop.
        """
        if not self._options.replicas:
            return set()
        windows = self._windows
        alarms = self._comparison.vote(None if windows is None else windows.groups, self._step,
                                    [] if windows is None else windows.parts_of(names))
        if any(alarm.mended for alarm in alarms):
            self._open = None  # its seals may be those of the damaged bytes
        self._finish(alarms)
        bad = {alarm.tensor for alarm in alarms if not alarm.mended}
        return {alarm.tensor for alarm in alarms if alarm.mended} - bad

    # Windows

    def _open_window(self, step: int, windows: Windows) -> None:
        self._open = opened = windows.open(step, self._order.number)
        self._order = self._order.next()
        self._guards.look(windows, opened)
        self._comparison.note(step, opened)
        if self._opened_after is not None:
            self._apart.append(self._calls - self._opened_after)
        self._opened_after = self._calls

    def _look_after(self, optimizer: torch.optim.Optimizer,
                    closure: Callable[[], Any]) -> Callable[[], Any]:
        def then_look() -> Any:
            result = closure()
            self._look_before_update(optimizer)
            return result

        return then_look

    def _look_before_update(self, optimizer: torch.optim.Optimizer) -> None:
        self._guards.before_update(self._step, optimizer)
        self._close_window()

    def _close_window(self) -> None:
        windows, opened, self._open = self._windows, self._open, None
        if windows is None or opened is None:
            return
        begin, before = time.perf_counter(), opened.sealing
        changed = windows.close(opened)
        self._covered += opened.size * (begin - opened.since)
        all_else = time.perf_counter() - begin - (opened.sealing - before)
        self._costs.window(opened.size, opened.sealing, opened.all_else + all_else)
        for part in changed:
            self._alarm(part, opened.step)
        if self._flagged and self._state.world == 1:
            alarms, self._flagged = [*self._flagged.values()], {}
            self._finish(alarms)

    def _alarm(self, part: Part, step: int) -> None:
        """A part has changed that nothing has written to."""
        assert self._windows is not None
        group, rank = self._windows.groups[part.group], self._state.rank
        name, sealed = group.name_of(part.number), group.window.sealed(part.number)
        if self._options.on_alarm == "mend":
            try:
                changed = group.window.mend(part.number, sealed)
            except CorruptError:
                changed = []
            else:
                alarm = alarm_of(changed, name, step, rank, RESTED, "seal")
                self._tell([alarm])
                self._comparison.untold.append(alarm)
                return
        else:
            changed = group.window.find(part.number, sealed)
        if self._options.on_alarm != "warn":
            self._saves.note_damaged(name)
        self._flagged[part] = alarm_of(changed, name, step, rank, RESTED)

    # Comparisons

    def _compare(self, step: int) -> None:
        begin = time.perf_counter()
        held, groups = self._look(), None if self._windows is None else self._windows.groups
        found = self._comparison.hold(groups, step, (self._costs.plan(), self._order.passed),
                                   self._flagged, held)
        self._flagged = {}
        self._order = self._order.agreed(found.passed)
        self._count_covered()
        if any(alarm.mended == "replicas" for alarm in found.alarms):
            self._open = None  # its seals may be those of the damaged bytes
        self._cut(held, found.grouping, found.plan)
        self._next_comparison = self._calls + found.plan.period
        self._costs.comparison(time.perf_counter() - begin, self._comparison.take_waited())
        self._finish(found.alarms)
        if not self._told and self._costs.elapsed > 0 and self._windows is not None:
            self._told = True
            self._messages.tell(str(self.watched))

    def _cut(self, held: Held, grouping: Grouping, plan: Plan) -> None:
        """Cuts what this rank holds into windows, if it or the plan is another one now.

        In how many is the same on all ranks, also if only one of them has other tensors.
        """
        is_new = held is not self._held or grouping is not self._grouping
        if grouping is not self._grouping or self._order.is_outgrown(plan):
            self._order = self._order.cut(plan, grouping.count_windows(plan.window_bytes))
        if is_new:
            self._open = None
            self._held, self._grouping = held, grouping
            self._windows = Windows(held, grouping, self._state.describe) if held.pieces else None
            self._guards.hook(held)
        if self._windows is not None and self._windows.count != self._order.count:
            self._windows.cut(self._order.count)

    def _count_covered(self) -> None:
        """Computes the chance that a flip would have been seen.

        Counts anew after each of the first comparisons, which find out how large windows may be.
        """
        elapsed = self._costs.elapsed - self._counted_from
        if elapsed > 0:
            self._chance = min(1.0, self._covered / max(self._all_bytes * elapsed, 1e-9))
        self._comparisons += 1
        if self._comparisons <= _FIRST_COMPARISONS:
            self._covered, self._counted_from = 0.0, self._costs.elapsed

    def _look(self) -> Held:
        """Finds the tensors as they are now; the same object if they are those found before."""
        found = self._state.resting()
        chosen = [one for one in found if self._why_not(*one) is None]
        if found and not chosen:
            self._messages.warn_once(_NOTHING)
        if self._held is not None and self._held.is_same(chosen):
            return self._held
        self._left_out = [name for piece, name in found if self._why_not(piece, name) is not None]
        self._all_bytes = sum(piece.tensor.nbytes for piece, _ in found)
        return Held.of(chosen, self._state.rank)

    def _why_not(self, piece: Piece, name: str) -> str | None:
        """Why a tensor is not watched, or None."""
        if piece.tensor.device.type not in ("cpu", "cuda"):
            return "on another device"
        if any(fnmatchcase(name, pattern) for pattern in self._options.exclude):
            return "excluded"
        return None if piece.tensor.numel() else "empty"

    # Alarms

    def _finish(self, alarms: list[Alarm]) -> None:
        """Tells the alarms, which all ranks have, and stops training if it cannot go on."""
        alarms = list(dict.fromkeys(alarms))  # parts of one tensor may have the same alarm
        self._tell(alarms)
        policy = self._options.on_alarm
        grave = [one for one in alarms
                 if policy == "stop" or policy == "mend" and not one.mended and not one.guard]
        if grave:
            self.is_damaged = True
            more = f" (and {len(grave) - 1} more)" if len(grave) > 1 else ""
            raise CorruptError(f"{grave[0]}{more}")

    def _tell(self, alarms: list[Alarm]) -> None:
        """Tells alarms, but not for ever: code that writes through .data may do so in each step."""
        for alarm in alarms:
            if alarm.rank == self._state.rank and alarm.mended:
                self._saves.note_damaged(alarm.tensor)
            kind = alarm.tensor, alarm.guard
            self._count_told[kind] += 1
            if self._count_told[kind] > _MOST_TOLD:
                continue
            self.alarms.append(alarm)
            last = self._count_told[kind] == _MOST_TOLD
            _log.warning("%s%s", alarm, " (no more is told of this tensor)" if last else "")
            if alarm.rank == self._state.rank:
                self._saves.live_job().memory_alarm(alarm.event())


def watch_for(options: Watch | None, state: TrainingState, saves: Saves,
              messages: Messages) -> FreezeWatch | NoWatch:
    """The watch of a Checkpointer with these options."""
    return NoWatch() if options is None else FreezeWatch(options, state, saves, messages)
