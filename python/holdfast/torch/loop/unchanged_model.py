"""Tells whether the model is still what it was after a step, and notices one that never changes."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from holdfast.torch.loop.kept_elements import KeptElements
from holdfast.torch.state.change_detection import TensorVersions
from holdfast.torch.state.piece import Piece
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values.dotted_names import name_a_few

_log = logging.getLogger("holdfast")

CHANGED = "the model has changed since then"
_PART = 2000  # an element of each tensor is kept if a step takes so many times as long,
_SHORT_PART = 200  # or so many times where keeping all takes
_SHORT = 50e-6  # so many seconds at most: a step of 100 ms is then slower by less than 0.1 %
_SAMPLE = 8  # the versions of so many tensors are looked at, to cost a step only microseconds
_SAVES = 3  # so many saves must be equal to the one before them in all tensors and objects
_CHANGES = 3  # after so many changes in what the sample does not have, nothing is looked at any more
# Objects that change with the steps, whatever the model does.
_BESIDE = frozenset({"data", "scheduler", "values"})


class LastStep:
    """Tells whether the model is still what it was after the last step.

    After its last step, a training often loads its best weights, or swaps averages in. To save them as
    the last step would be wrong, and silently so. An element of every tensor is kept after the step that is
    known to be the last one, and after each step that took so long that this costs a 2000th part of it at
    most (a 200th part where that is a few microseconds). After a quicker step it is kept of a few tensors, of
    others each time.
    """

    def __init__(self, find_tensors: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        """`find_tensors` returns the parameters and buffers of the model. It is called once."""
        self._find_tensors = find_tensors
        self._step: int | None = None
        self._sample: TensorVersions | None = None
        self._versions: list[int] = []
        self._elements: KeptElements | None = None  # those that were kept last: one of the next two
        self._some: KeptElements | None = None
        self._all: KeptElements | None = None
        self._seconds, self._noted = 0.0, 0.0  # what keeping all takes, and when the step before was noted

    def note(self, step: int, is_last: bool = False) -> None:
        """Notes that the model is now what it is after that step."""
        if self._all is None:
            self._begin()
        assert self._sample is not None and self._some is not None and self._all is not None
        self._step, self._versions = step, self._sample.now()
        now = time.perf_counter()
        part = _SHORT_PART if self._seconds <= _SHORT else _PART
        keeps_all = is_last or now - self._noted > part * self._seconds
        self._noted, self._elements = now, self._all if keeps_all else self._some
        self._elements.keep()

    def _begin(self) -> None:
        tensors = self._find_tensors()
        self._sample, self._some = _sample_of(tensors), KeptElements(tensors)
        self._all = KeptElements(tensors, at_once=len(tensors) or 1)
        self._all.keep()
        self._all.keep()  # from now on it takes what it takes in each step
        began = time.perf_counter()
        self._all.keep()
        self._seconds = time.perf_counter() - began

    def note_update(self) -> None:
        """Notes that an optimizer has changed the model."""
        self._step = None

    def forget(self) -> None:
        """Lets go of all tensors, which may have been replaced."""
        self._step = self._sample = self._elements = self._some = self._all = None

    def changed_since(self, step: int) -> str:
        """What of the model may have been written to since that step; "" if nothing was."""
        if self._step != step or self._sample is None or self._elements is None:
            return CHANGED
        changed = dict.fromkeys(self._sample.changed(self._versions) + self._elements.changed())
        return f"{CHANGED} ({name_a_few(list(changed))})" if changed else ""


def _sample_of(tensors: Mapping[str, torch.Tensor]) -> TensorVersions:
    """At most _SAMPLE of the tensors, at equal distances in their order."""
    # torch does not count writes to tensors that were made in inference mode.
    names = [name for name, tensor in tensors.items() if not tensor.is_inference()]
    distance = -(-len(names) // _SAMPLE) or 1
    return TensorVersions({name: tensors[name] for name in names[::distance]})


class UnchangedModel:
    """Notices a model that never changes while steps go on, and says so once.

    A functional training (torch.func) changes copies of the parameters, and a notebook may have made a new
    model after the Checkpointer: every save then holds the untrained one. Nothing is looked at once an
    optimizer that was given has updated parameters of the model that had gradients. Otherwise the versions
    of a few tensors are compared at saves. Only if they are all the same, all tensors are sealed and
    compared, and so are the objects. No tensor is kept alive: others may replace it.
    """

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
        sample = _sample_of_pieces(pieces)
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


def _sample_of_pieces(pieces: list[Piece]) -> list[tuple[str, int, int]]:
    parameters = [piece for piece in pieces if piece.kind == "parameter"]
    return [(piece.name, piece.tensor.data_ptr(), _version_of(piece.tensor))
            for piece in parameters[::max(1, -(-len(parameters) // _SAMPLE))]]


def _version_of(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
