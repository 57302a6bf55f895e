"""Decides where a training begins: resume(step=) and resume(initial=) apply only once.

A script that asks for resume(step=400) asks for it again whenever it is started again. So every
checkpoint says which choices led to it, and a choice that has led to the newest checkpoint is not
made again.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from os import PathLike
from typing import Any

from holdfast import open
from holdfast.checkpoint import absolute_path
from holdfast.errors import Error
from holdfast.torch.state.training_state import BRANCH, TrainingState
from holdfast.whole_number import whole_number

_log = logging.getLogger("holdfast")


@dataclass
class Branch:
    """The choices that led to a checkpoint."""

    initial: str = ""  # the weights that the run began with
    steps: list[int] = field(default_factory=list)  # steps that it went back to, the last one last

    @classmethod
    def of(cls, objects: Any) -> "Branch":
        """The choices that the objects of a checkpoint tell of."""
        saved = objects.get(BRANCH) if isinstance(objects, Mapping) else None
        return cls(**saved) if saved else cls()

    def to_save(self) -> dict[str, Any]:
        """The choices as a checkpoint keeps them; empty if nobody has chosen anything."""
        return {name: value for name, value in asdict(self).items() if value}


class Start:
    """One call of resume(). All ranks make it together."""

    def __init__(self, run: str, state: TrainingState, step: int | None,
                 initial: str | PathLike[str] | None,
                 left_objects: Callable[[], Any] = lambda: None) -> None:
        """`left_objects` returns the objects of a step that this host has in its memory."""
        if step is not None and initial is not None:
            raise ValueError(f"step={step} and initial={initial!r}; expected one of them")
        step = None if step is None else whole_number("step", step)
        self.run = run
        self._state = state
        self._asked = step
        self._initial = "" if initial is None else absolute_path(initial)
        self._left_objects = left_objects
        self.step = None if step is None or self._has_led_to_newest(step) else step
        self.may_begin = step is None  # else a step was asked for, and must be there
        self.sentence = ""  # where the training begins, for the user

    def _has_led_to_newest(self, step: int) -> bool:
        newest: Branch | None = None
        try:
            if (left := self._left_objects()) is not None:
                newest = Branch.of(left)
            elif self._state.rank == 0:
                newest = Branch.of(open(self.run).objects)
        except Error:  # there is none that is whole: restoring the step says what is wrong
            newest = None
        return any(one is not None and step in one.steps
                   for one in self._state.all_ranks(newest))

    def goes_back_after_all(self, objects: Any) -> bool:
        """True if the step that was asked for must be restored after the newest checkpoint was.

        The newest one that a host has a part of may be lost with another host, and then what is
        restored need not descend from the step. The same on all ranks, as the objects are.
        """
        if self._asked is None or self.step is not None or self._asked in Branch.of(objects).steps:
            return False
        self.step = self._asked
        return True

    def begin(self, *, strict: bool) -> None:
        """Begins a run that has no checkpoint."""
        if not self._initial:
            self.sentence = f"{self.run}: no checkpoint yet, begins with step 0"
            return
        self._state.load_weights(self._initial, strict=strict)
        self._state.branch = Branch(self._initial).to_save()
        self.sentence = (f"{self.run}: no checkpoint yet, begins with the weights of "
                         f"{self._initial}")

    def resumed(self, step: int, objects: Any) -> None:
        """Notes that a checkpoint is restored."""
        branch = Branch.of(objects)
        text = f"{self.run}: resumed after step {step}{self._state.data.position_text()}"
        if self.step is not None:
            branch.steps.append(self.step)
            text += ", as asked; newer steps are not used"
        elif self._asked is not None:
            text += f", which descends from step {self._asked}"
        self._state.branch = branch.to_save()
        if self._initial and branch.initial == self._initial:
            text += f"; the run began with {self._initial}"
        elif self._initial:
            began = f"began with {branch.initial}" if branch.initial else "began without weights"
            _log.warning("resume: the run %s, and its newest checkpoint is taken; expected another "
                         "folder to begin with %s", began, self._initial)
        self.sentence = text
