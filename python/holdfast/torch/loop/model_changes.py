"""Knows what has changed the model: which optimizers, a program that undoes a resume, or training itself."""

import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from holdfast.torch.loop.epoch_numbers import begins_again
from holdfast.torch.loop.forgotten_loaders import ForgottenLoaders
from holdfast.torch.loop.forgotten_tensors import SAVES, ForgottenTensors
from holdfast.torch.loop.kept_elements import KeptElements
from holdfast.torch.loop.messages import NO_HOOK, UNKNOWN_OPTIMIZER
from holdfast.torch.loop.step_place import StepPlace
from holdfast.torch.loop.unchanged_model import CHANGED, LastStep, UnchangedModel
from holdfast.torch.loop.unknown_state import UnknownState
from holdfast.torch.loop.update_boundaries import UpdateBoundaries
from holdfast.torch.state.change_detection import with_version
from holdfast.torch.state.optimizer_states import with_inner
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.values.dotted_names import name_a_few

_log = logging.getLogger("holdfast")

_BEGIN = 2  # the call of step() that keeps what the first save compares: the first one may still make things
_FIRST = 8  # after so many calls of step(), the order of a training's calls is known
_LOOKS = 2  # updates before which it is looked for parameters that training itself writes to
_TEXT = ("parameters were written to between resume() and the first update ({names}): the training does not go "
         "on with what was saved; expected all that loads or changes weights before ck.resume()")


class ModelChanges:
    """The changes since the last step."""

    def __init__(self, state: TrainingState, boundaries: UpdateBoundaries,
                 objects: Mapping[str, Any]) -> None:
        """`objects` are those that the Checkpointer was given beside the model and `optimizer`."""
        self._state, self._boundaries = state, boundaries
        optimizers = [inner for one in state.optimizers for inner in with_inner(one)]
        self._unknown = UnknownState([*state.optimizers, *objects.values()], optimizers,
                                     boundaries, state.model_tensors)
        self._loaders = ForgottenLoaders(state, boundaries, self._unknown.saves)
        self._tensors = ForgottenTensors(state, objects.values())
        self._place = StepPlace(state.optimizers, state.models, objects)
        self._unchanged = UnchangedModel(state)
        self._frozen = FrozenWrites(state)
        self._calls = 0  # of step(), since the start or a resume
        self._saves = 0  # how many have begun
        self._is_plain = False  # the program itself makes the steps, each of them once
        self._resumed_in: Any = None  # the epoch of the loader when resume() returned
        self._epochs: dict[str, str] = {}  # what begins_again() has said
        self._undone = UndoneResume(state)
        self._depth = 0  # steps of optimizers that were given and have begun
        self._last_step = LastStep(state.model_tensors)
        self.note = self._last_step.note  # notes that the model is now what it is after a step
        forget = weakref.WeakMethod(self._last_step.forget)  # it refers to the state, which is freed
        state.on_forget.append(lambda: (call := forget()) and call())
        self.by_unknown = False  # an optimizer that was not given has updated the model

    def find_unknown(self) -> dict[str, str]:
        """Sentences about optimizers, schedulers and scalers that take part and were not given."""
        self._unknown.look()
        return self._unknown.found

    def find_unsaved(self) -> dict[str, str]:
        """The same, and sentences about loaders and tensors that were not given and epochs that begin again."""
        if self._is_plain:
            self._tensors.look()
        return {**self.find_unknown(), **self._loaders.sentences, **self._tensors.sentences, **self._epochs}

    def digest_unsaved_tensors(self) -> dict[str, str]:
        """What the program has beside the model of tensors like those of it: kinds and digests, by path."""
        return {f"tensors.{path}": text for path, text in self._tensors.digests().items()}

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Called before every update of an optimizer of this process."""
        if self._boundaries.knows(optimizer):
            self._depth += 1
            if self._undone.kept is not None and (text := self._undone.before_update()):
                _log.warning("%s", text)
            if self._calls < _FIRST:
                self._unknown.before_update()
                self._place.before_update()
                self._frozen.before_update()
                self._unchanged.before_update(optimizer)

    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Called after every update of an optimizer of this process."""
        self._last_step.note_update()
        self._state.data.note_update()
        if self._boundaries.note_update(optimizer):
            self._depth -= 1
            self.by_unknown = False  # it was an optimizer inside this one
            return
        if self._depth <= 0:
            self._unknown.note_update(optimizer)
        if not (self.by_unknown or self._boundaries.stepped):
            self.by_unknown = self._state.owns(optimizer)

    def restart(self, *, is_restored: bool) -> None:
        """Called at the end of a resume; `is_restored` if it has changed everything."""
        self._calls = 0
        if is_restored:
            self._undone.restart()
        self._resumed_in = getattr(self._state.data.first, "epoch", None)
        self._place.restart()
        self._frozen.restart()

    def next_call(self, warn: Callable[[str], None], is_plain: bool) -> None:
        """Begins the next call of step(). Warns of updates by others, and of a wrong place of it.

        `is_plain` says that the program itself makes the steps, each of them once.
        """
        self._boundaries.next_call()
        self._depth = 0  # an exception may have ended an update
        if self.by_unknown:
            warn(UNKNOWN_OPTIMIZER)
        self._calls += 1
        self._is_plain = is_plain
        if self._undone.written:
            self._undone.next_call()
        if self._calls <= _FIRST or self._loaders.has_news:
            for text in self._look(is_plain):
                warn(text)

    def _look(self, is_plain: bool) -> list[str]:
        """Looks at what is around the training. Returns what there is to warn of, again and again."""
        texts = self._loaders.tell(is_plain=is_plain)
        if is_plain and self._calls == _BEGIN:
            self._tensors.begin()
        if self._calls == 1 and is_plain and (text := begins_again(self._resumed_in,
                                                                              self._state.data.first)):
            self._epochs["epoch"] = text
            texts.append(text)
        if self._calls <= _FIRST:
            self._unknown.look_for_schedulers()
            texts += filter(None, [self._place.next_call(self._state.data.first)])
        return texts

    def after_save(self, step: int, with_gradients: bool, warn: Callable[[str], None]) -> bool:
        """Called when a save has begun. True if no hook may tell of the next update.

        Warns of that, of a model that never changes, and of what takes part and was not given.
        """
        self._unchanged.saved(step, with_gradients)
        self._saves += 1
        if self._is_plain and self._saves in SAVES:
            self._tensors.look()
        for text in {**self.find_unknown(), **self._tensors.sentences}.values():
            warn(text)
        if self._boundaries.updates_unseen:
            warn(NO_HOOK)
        return self._boundaries.updates_unseen or not self._boundaries.has_reported

    def note_whole(self, step: int) -> None:
        """Notes the same where a lost rank has prevented the end of step(): no gradients wait."""
        self._boundaries.note_whole_step()
        self.note(step)

    def changed_since(self, step: int) -> str:
        """Why the model may be another than right after that step; "" if it is not."""
        return CHANGED if self.by_unknown else self._last_step.changed_since(step)


class UndoneResume:
    """Notices a program that undoes a resume: it loads weights between ck.resume() and the first update.

    A training may itself write to its parameters in front of each update (weights that are clipped at the top
    of the loop, a step of SAM). So what was found before the first update is said only if nothing was written
    between the first ck.step() and the second update.
    """

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self.kept: KeptElements | None = None  # while something is to be compared before the next update
        self.written: list[str] = []  # before the first update

    def restart(self) -> None:
        """Called when a resume has changed everything."""
        self.written = []
        self._keep()

    def before_update(self) -> str:
        """Called before an update if `kept` is not None. Returns a warning or ""."""
        kept, self.kept = self.kept, None
        assert kept is not None
        changed, written = kept.changed(), self.written
        if not written:
            self.written = changed
            return ""
        self.written = []
        return "" if changed else _TEXT.format(names=name_a_few(written))

    def next_call(self) -> None:
        """Called in ck.step() if `written` is not empty."""
        self._keep()

    def _keep(self) -> None:
        parameters = self._state.parameters()
        self.kept = KeptElements(parameters, at_once=len(parameters) or 1)
        self.kept.keep()


class FrozenWrites:
    """Finds parameters that need no gradient and that training itself writes to: a momentum encoder.

    A save copies parameters beside the next forward, because only an update writes to them. An encoder
    that follows another one is written to in the forward, so that its copy would be torn. What was written
    to before the first update is copied by save() itself; before the second one it is looked at again,
    because weights may just have been loaded.
    """

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self.restart()

    def restart(self) -> None:
        """Called when a resume has written to everything."""
        self._looks = 0
        self._seen = self._versions()
        self._found: set[str] = set()

    def before_update(self) -> None:
        """Called before an update."""
        if self._looks == _LOOKS:
            return
        self._looks += 1
        before, now = self._seen, self._versions()
        written = {one for one, version in now.items() if before.get(one, version) != version}
        found = {name for piece, name in self._state.resting() if id(piece.outer) in written
                 } if written else set()
        self._state.copy_at_once(found - self._found, not_more=self._found - found)
        self._seen, self._found = now if self._looks < _LOOKS else {}, found

    def _versions(self) -> dict[int, int]:
        return {id(one): with_version(one)._version for model in self._state.models
                if isinstance(model, torch.nn.Module)
                for one in model.parameters() if not one.requires_grad}
