"""Watches parameters and optimizer slots between two updates, in which nothing writes to them.

    1. step() opens a window: it seals a part of their bytes, another part after each step.
    2. Before the next update the same bytes are sealed again. A seal that differs is an alarm,
       unless torch has counted a write to the tensor in between.
    3. One word that changed is put back at once, as the seal says what it was.
    4. Every few seconds, and before each save, the ranks meet (meeting.py): they agree how large
       the windows are, compare their seals, and vote on what differs (vote.py).

Only this rank's training thread works here. The windows are as large as holdfast.Watch(share=)
allows (costs.py).
"""

import logging
import operator
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import torch

from holdfast import _native
from holdfast.errors import CorruptError
from holdfast.options import Watch
from holdfast.torch.loop.messages import Messages
from holdfast.torch.loop.optimizer_hooks import replace_closure
from holdfast.torch.loop.saves import Saves
from holdfast.torch.state.piece import Piece
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values.boxes import local_of
from holdfast.torch.watch.alarms import RESTED, Alarm, alarm_of
from holdfast.torch.watch.costs import Costs, Plan
from holdfast.torch.watch.meeting import Meeting, fingerprint_of

_BLIND = ("watch: no hook tells of the optimizer's updates (it is no torch optimizer, or a CUDA "
          "graph replays its steps), so nothing is watched")

_NOTHING = ("watch: no parameter or slot can be watched: all are on devices, empty or excluded; "
            "expected tensors in host memory")

_log = logging.getLogger("holdfast")
_FIRST_MEETINGS = 3
_MOST_TOLD = 100  # alarms about one tensor
_version_of = operator.attrgetter("_version")


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


@dataclass
class _Open:
    """The window that is open."""

    step: int
    first: int  # the first of its pieces
    versions: list[int]  # those that torch counted of its pieces
    size: int
    sealing: float  # seconds
    all_else: float
    since: float = field(default_factory=time.perf_counter)


class FreezeWatch:
    """The watch of one Checkpointer, on one rank."""

    def __init__(self, options: Watch, state: TrainingState, saves: Saves,
                 messages: Messages) -> None:
        self.alarms: list[Alarm] = []
        self._closed: Watched | None = None  # what was watched, after close()
        self._options, self._state, self._saves = options, state, saves
        self._messages = messages
        self._costs, self._plan = Costs(options.share, options.compare_every), Plan()
        self._pieces: list[Piece] = []
        self._names: list[str] = []
        self._left_out: list[str] = []
        self._all_bytes = 0
        self._covered = 0.0  # byte seconds since counting began
        self._counted_from = 0.0  # when that was, in seconds of training
        self._meetings = 0
        self._chance = 0.0
        self._told = False
        self._count_told: Counter[str] = Counter()  # alarms of each tensor
        self._window: _native.FreezeWindow | None = None
        self._starts: list[int] = []
        self._open: _Open | None = None
        self._step = -1  # the last step
        self._met_after: int | None = None  # the step of the last meeting
        self._next_meeting: int | None = None
        self._meeting = Meeting(saves, state.rank, options)
        self._flagged: dict[int, Alarm] = {}  # by part: changed, and not mended
        state.on_forget.append(self.forget)
        saves.vote_on = self.vote_on

    @property
    def watched(self) -> Watched:
        """What is looked at, and what was found."""
        if self._closed is not None:
            return self._closed
        cycle = max(len(self._starts) - 1, 0) * self._plan.every
        elapsed = max(self._costs.elapsed, 1e-9)
        size = 0 if self._window is None or not cycle else self._window.bytes // cycle
        return Watched(self._all_bytes, size, cycle, self._chance, self._costs.seconds / elapsed,
                       list(self._left_out), list(self.alarms))

    # What the Checkpointer calls

    def step(self, step: int, *, is_blind: bool) -> None:
        """Called in each step(), on all ranks. May raise CorruptError.

        `is_blind` says that updates call no hook, so that no window could be closed in time.
        """
        self._costs.step()
        self._step, is_blind = step, is_blind or not self._state.optimizers
        if self._next_meeting is None or step >= self._next_meeting:
            self.meet(step)
        if is_blind:
            self._open = None
            self._messages.warn_once(_BLIND)
        elif self._open is None and step % self._plan.every == 0 and len(self._starts) > 1:
            self._open_window(step)

    def meet(self, step: int) -> None:
        """Meets all ranks, unless they have met after this step. Called before a save, too.

        Raises CorruptError, on all ranks alike, if training must stop.
        """
        if self._met_after != step:
            self._met_after = step
            self._meet(step)

    def before_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Looks whether the window has changed. Returns other arguments for step(), or None.

        An optimizer of torch changes nothing before it has called its closure, in which forward
        and backward are. So the window stays open until then.
        """
        if self._open is None or not self._state.owns(optimizer):
            return None
        if type(optimizer).__module__.startswith("torch.optim."):
            changed = replace_closure(args, kwargs, self._close_after)
            if changed is not None:
                return changed
        self._close_window()
        return None

    def restart(self) -> None:
        """Begins anew, with a meeting of all ranks at the next step: a rank was replaced."""
        self.forget()
        self._plan, self._next_meeting, self._met_after = Plan(), None, None

    def forget(self) -> None:
        """Lets go of all tensors: they may have been replaced. The next meeting looks again."""
        self._tell([*self._flagged.values()])
        self._flagged = {}
        self._window, self._open, self._starts = None, None, []
        self._pieces, self._names = [], []
        self._meeting.forget()

    def close(self) -> None:
        """Tells what was watched, and lets go of all tensors."""
        self._messages.tell(str(self.watched))
        before = self.watched
        self.forget()
        self._closed = replace(before, alarms=self.alarms)

    def vote_on(self, names: set[str]) -> set[str]:
        """Mends tensors whose replicas differ, on all ranks together. Returns those mended."""
        if self._options.on_alarm != "mend" or not self._options.replicas:
            return set()
        parts = [part for k, name in enumerate(self._names) if name in names
                 for part in range(*self._window.parts_of(k))] if self._window else []
        alarms = self._meeting.vote(self._window, self._names, self._step, parts)
        self._tell(alarms)
        if any(alarm.mended for alarm in alarms):
            self._open = None  # its seals may be those of the damaged bytes
        bad = {alarm.tensor for alarm in alarms if not alarm.mended}
        return {alarm.tensor for alarm in alarms if alarm.mended} - bad

    # Windows

    def _open_window(self, step: int) -> None:
        assert self._window is not None
        begin = time.perf_counter()
        number = step // self._plan.every % (len(self._starts) - 1)
        first, last = self._starts[number], self._starts[number + 1]
        before = time.perf_counter()
        piece, end, digest = self._window.open(first, last)
        after = time.perf_counter()
        versions = list(map(_version_of, (one.tensor for one in self._pieces[piece:end])))
        self._meeting.note(step, first, last, digest)
        size = self._window.size(first, last)
        self._open = _Open(step, piece, versions, size, after - before, 0.0)
        self._open.all_else = self._open.since - begin - self._open.sealing

    def _close_after(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def then_close() -> Any:
            result = closure()
            self._close_window()
            return result

        return then_close

    def _close_window(self) -> None:
        window, opened, self._open = self._window, self._open, None
        if window is None or opened is None:
            return
        begin = time.perf_counter()
        changed = window.close()
        sealed = time.perf_counter()
        for part in changed:
            k = window.piece_of(part)
            if self._is_written(self._pieces[k], opened.versions[k - opened.first]):
                opened.size -= window.size(part, part + 1)
            else:
                self._alarm(part, opened.step)
        self._covered += opened.size * (begin - opened.since)
        self._costs.window(opened.size, opened.sealing + sealed - begin,
                           opened.all_else + time.perf_counter() - sealed)
        if self._flagged and self._state.world == 1:
            self._finish([*self._flagged.values()])

    def _is_written(self, piece: Piece, version: int) -> bool:
        """True if torch has counted a write to the tensor, or it has other memory now."""
        outer = piece.tensor if piece.outer is None else local_of(piece.outer)
        return (piece.tensor._version != version or outer._version != version
                or outer.data_ptr() != piece.tensor.data_ptr())

    def _alarm(self, part: int, step: int) -> None:
        """A part has changed that nothing has written to."""
        assert self._window is not None
        name, rank = self._names[self._window.piece_of(part)], self._state.rank
        sealed = self._window.sealed(part)
        if self._options.on_alarm == "mend":
            try:
                changed = self._window.mend(part, sealed)
            except CorruptError:
                changed = []
            else:
                alarm = alarm_of(changed, name, step, rank, RESTED, "seal")
                self._tell([alarm])
                self._meeting.untold.append(alarm)
                return
        else:
            changed = self._window.find(part, sealed)
        self._flagged[part] = alarm_of(changed, name, step, rank, RESTED)

    # Meetings

    def _meet(self, step: int) -> None:
        begin = time.perf_counter()
        alarms, plan = self._meeting.hold(self._window, self._names, step, self._costs.plan(),
                                          self._flagged)
        self._flagged = {}
        self._count_covered()
        if any(alarm.mended == "replicas" for alarm in alarms):
            self._open = None  # its seals may be those of the damaged bytes
        looked_again = self._look()
        if plan != self._plan or looked_again:
            self._plan = plan
            self._starts = [] if self._window is None else self._window.cut(plan.window_bytes)
        self._next_meeting = step + plan.period
        self._costs.meeting(time.perf_counter() - begin, self._meeting.take_waited())
        self._finish(alarms)
        if not self._told and self._costs.elapsed > 0 and self._window is not None:
            self._told = True
            self._messages.tell(str(self.watched))

    def _count_covered(self) -> None:
        """Computes the chance that a flip would have been seen.

        Counts anew after each of the first meetings, which find out how large windows may be.
        """
        elapsed = self._costs.elapsed - self._counted_from
        if elapsed > 0:
            self._chance = min(1.0, self._covered / max(self._all_bytes * elapsed, 1e-9))
        self._meetings += 1
        if self._meetings <= _FIRST_MEETINGS:
            self._covered, self._counted_from = 0.0, self._costs.elapsed

    def _look(self) -> bool:
        """Finds the tensors as they are now. False if they are the same as before."""
        found = self._state.resting()
        chosen = [one for one in found if self._why_not(*one) is None]
        pieces = [piece for piece, _ in chosen]
        if found and not chosen:
            self._left_out = [name for _, name in found]
            self._messages.warn_once(_NOTHING)
        if len(pieces) == len(self._pieces) and all(map(operator.is_, pieces, self._pieces)):
            return False
        self._open = None
        self._pieces, self._names = pieces, [name for _, name in chosen]
        self._left_out = [name for piece, name in found if self._why_not(piece, name) is not None]
        self._all_bytes = sum(piece.tensor.nbytes for piece, _ in found)
        self._window = _native.FreezeWindow(_native.Pieces(self._state.describe(chosen)))
        self._meeting.fingerprint = fingerprint_of(chosen)
        return True

    def _why_not(self, piece: Piece, name: str) -> str | None:
        """Why a tensor is not watched, or None."""
        if piece.tensor.device.type != "cpu":
            return "on a device"
        if any(fnmatchcase(name, pattern) for pattern in self._options.exclude):
            return "excluded"
        return None if piece.tensor.numel() else "empty"

    # Alarms

    def _finish(self, alarms: list[Alarm]) -> None:
        """Tells the alarms, which all ranks have, and stops training if it cannot go on."""
        self._flagged = {}
        alarms = list(dict.fromkeys(alarms))  # parts of one tensor may have the same alarm
        self._tell(alarms)
        policy = self._options.on_alarm
        grave = [one for one in alarms if policy == "stop" or policy == "mend" and not one.mended]
        if grave:
            more = f" (and {len(grave) - 1} more)" if len(grave) > 1 else ""
            raise CorruptError(f"{grave[0]}{more}")

    def _tell(self, alarms: list[Alarm]) -> None:
        """Tells alarms, but not for ever: code that writes through .data may do so in each step."""
        for alarm in alarms:
            if alarm.rank == self._state.rank and alarm.mended:
                self._saves.note_mended(alarm.tensor)
            self._count_told[alarm.tensor] += 1
            if self._count_told[alarm.tensor] > _MOST_TOLD:
                continue
            self.alarms.append(alarm)
            last = self._count_told[alarm.tensor] == _MOST_TOLD
            _log.warning("%s%s", alarm, " (no more is told of this tensor)" if last else "")
            if alarm.rank == self._state.rank:
                self._saves.live_job().memory_alarm(alarm.event())


class NoWatch:
    """Has the calls of FreezeWatch, and watches nothing."""

    watched = None

    def step(self, step: int, *, is_blind: bool) -> None: ...

    def meet(self, step: int) -> None: ...

    def before_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any: ...

    def restart(self) -> None: ...

    def close(self) -> None: ...


def watch_for(options: Watch | None, state: TrainingState, saves: Saves,
              messages: Messages) -> FreezeWatch | NoWatch:
    """The watch of a Checkpointer with these options."""
    return NoWatch() if options is None else FreezeWatch(options, state, saves, messages)
