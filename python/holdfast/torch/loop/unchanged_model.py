"""Notices a model that never changes while steps go on, and says so once.

A functional training (torch.func) changes copies of the parameters, and a notebook may have made a new
model after the Checkpointer: every save then holds the untrained one. Nothing is looked at once an
optimizer that was given has updated parameters of the model that had gradients. Otherwise the versions
of a few tensors are compared at saves. Only if they are all the same, all tensors are sealed and
compared, and so are the objects.
"""

import logging
from typing import Any

import torch

from holdfast.torch.state.piece import Piece
from holdfast.torch.state.training_state import TrainingState

_log = logging.getLogger("holdfast")

_SAMPLE = 8  # so many tensors are looked at at each save
_SAVES = 3  # so many saves must be equal to the one before them in all tensors and objects
_CHANGES = 3  # after so many changes in what the sample does not have, nothing is looked at any more
# Objects that change with the steps, whatever the model does.
_BESIDE = frozenset({"data", "scheduler", "values"})


class UnchangedModel:
    """What the saves so far have in common. It keeps no tensor alive: others may replace it."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._is_over = False  # it was said, or the model was seen to change
        self._sample: list[tuple[str, int, int]] = []  # name, address and version of a few tensors
        self._first = 0  # the step of the first save that the sample is unchanged since
        self._all: Any = None  # all tensors and objects, at the second save of such a row
        self._equal = 0  # how many saves have been equal to that since
        self._changes = 0

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Called before the update of an optimizer that was given.

        torch counts no version for the updates that most optimizers make to DTensors.
        """
        if not self._is_over:
            self._is_over = self._state.owns(optimizer) and any(
                p.grad is not None for group in optimizer.param_groups for p in group["params"])

    def saved(self, step: int, with_gradients: bool) -> None:
        """Notes a save. Gradients that wait show that an update is still to come."""
        if self._is_over:
            return
        pieces = self._state.pieces()
        sample = _sample_of(pieces)
        if with_gradients or sample != self._sample:
            self._begin(step, sample)
        elif self._all is None:
            self._all = self._look()
        elif self._all != self._look():
            self._changes += 1
            self._is_over = self._changes >= _CHANGES
            self._begin(step, sample)
        else:
            self._equal += 1
            if self._equal >= _SAVES and step - self._first > _SAVES:
                self._say(step - self._first, pieces)

    def _begin(self, step: int, sample: list[tuple[str, int, int]]) -> None:
        """Begins a row of saves with this one."""
        self._sample, self._first, self._all, self._equal = sample, step, None, 0

    def _look(self) -> Any:
        """The seals of all tensors, and the objects, except for what changes in any case."""
        captured = self._state.capture()
        things = {key: repr(tree) for key, tree in captured.objects.get("things", {}).items()
                  if key not in _BESIDE}
        return things, [seal for seal in captured.pieces.seals()
                        if seal[0].partition(".")[0] not in _BESIDE]

    def _say(self, steps: int, pieces: list[Piece]) -> None:
        self._is_over = True
        trained = [piece for piece in pieces if piece.kind == "parameter"
                   and piece.outer is not None and piece.outer.requires_grad]
        if trained:
            _log.warning("the model that the Checkpointer was given has not changed in %d steps, so "
                         "that every save holds the same; expected the module that is trained (a new "
                         "Checkpointer if it was made anew, and parameters that are copied back into "
                         "it if a function trains copies of them)", steps)


def _sample_of(pieces: list[Piece]) -> list[tuple[str, int, int]]:
    parameters = [piece for piece in pieces if piece.kind == "parameter"]
    return [(piece.name, piece.tensor.data_ptr(), _version_of(piece.tensor))
            for piece in parameters[::max(1, -(-len(parameters) // _SAMPLE))]]


def _version_of(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
