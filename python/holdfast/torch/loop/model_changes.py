"""Knows whether the model is still what it was after a step, and which optimizers have changed it."""

import weakref

import torch

from holdfast.torch.loop.end_of_training import CHANGED, LastStep
from holdfast.torch.loop.update_boundaries import UpdateBoundaries
from holdfast.torch.state.training_state import TrainingState


class ModelChanges:
    """The changes since the last step."""

    def __init__(self, state: TrainingState, boundaries: UpdateBoundaries) -> None:
        self._state, self._boundaries = state, boundaries
        self._last_step = LastStep(state.model_tensors)
        forget = weakref.WeakMethod(self._last_step.forget)  # it refers to the state, which is freed
        state.on_forget.append(lambda: (call := forget()) and call())
        self.by_unknown = False  # an optimizer that was not given has updated the model

    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Called after every update of an optimizer of this process."""
        self._last_step.note_update()
        if self._boundaries.note_update(optimizer):
            self.by_unknown = False  # it was an optimizer inside this one
        elif not (self.by_unknown or self._boundaries.has_stepped):
            self.by_unknown = self._state.owns(optimizer)

    def note(self, step: int) -> None:
        """Notes that the model is now what it is after that step."""
        self._last_step.note(step)

    def note_whole(self, step: int) -> None:
        """Notes the same where a lost rank has prevented the end of step(): no gradients wait."""
        self._boundaries.note_whole_step()
        self.note(step)

    def changed_since(self, step: int) -> str:
        """Why the model may be another than right after that step; "" if it is not."""
        return CHANGED if self.by_unknown else self._last_step.changed_since(step)
