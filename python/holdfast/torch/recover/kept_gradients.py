"""The gradients that a step begins with.

Most trainings drop them before they make others, by zero_grad() at the beginning or the end of a step,
and need no copy. Some keep them, and add to them. So when a step begins with gradients, some of
the parameters tell, by a hook in the backward pass, whether theirs are still there. They are asked again
if a gradient is the same tensor at the gate of a later step as at its beginning, and was written to.

A training that drops them in its steps may begin to keep them. Where that could not be seen otherwise, hooks tell
whether anything has written to old gradients before new ones come: in all steps if they are zeroed in place, and in
a step that is made again, because it may be the first that keeps them. Survivors have them then, a replacement not.
"""

import functools
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from holdfast.torch.recover.buffers_before_step import local_of
from holdfast.torch.state.gradients import gathered

_log = logging.getLogger("holdfast")

_ASKED = 4  # parameters that are asked
MOST_BYTES = 64 << 20  # of gradients that are kept for a replacement


class KeptGradients:
    """The gradients at the beginning of the newest step."""

    def __init__(self, parameters: Callable[[], Mapping[str, torch.Tensor]], models: list[Any],
                 known: dict[str, bool], *, speaks: bool) -> None:
        """`known` says whether steps add to gradients of earlier steps ("are kept"), and whether the
        newest step may ("is unsure"). `speaks` is true on the one rank that tells what was found."""
        self._find_parameters, self._known, self._speaks = parameters, known, speaks
        self._models = models
        self._parameters: list[torch.Tensor] = []
        # Some of the parameters, with the gradients that the step has begun with and their versions.
        self._begun_with: list[tuple[torch.Tensor, torch.Tensor, tuple[int, int]]] = []
        self._zeroes = False  # gradients are the same tensors in all steps, and steps make them zero
        self._is_answered = False
        self._is_in_doubt = False  # the step is made again with the gradients that it has begun with
        self._hooks: list[Any] = []
        self._copies: list[torch.Tensor | None] = []

    def forget(self) -> None:
        """Parameters may have been replaced."""
        self._parameters, self._begun_with = [], []

    def keep(self) -> None:
        """Copies the gradients, if steps add to them or it is not known yet."""
        self._parameters = self._parameters or list(self._find_parameters().values())
        with_gradients = (one for one in self._parameters if one.grad is not None)
        self._begun_with = [(one, one.grad, _versions(one.grad))
                            for one in itertools.islice(with_gradients, _ASKED)]
        if self._zeroes or self._is_in_doubt:
            self._watch()
        elif not (self._is_answered or self._known["are kept"]):
            self._ask()
        self._copies = []
        if self._known["are kept"] or self._known["is unsure"]:
            self._copies = [None if one.grad is None else local_of(one.grad).clone()
                            for one in self._parameters]

    def _ask(self) -> None:
        asked = [one for one in self._parameters if one.grad is not None and one.requires_grad
                 and one.grad.layout is torch.strided and bool(local_of(one.grad).any())]
        self._set_hooks([(one, functools.partial(_is_not_zero, one)) for one in asked[:_ASKED]])
        self._known["is unsure"] = bool(asked)

    def _watch(self) -> None:
        """As _ask(), without a look at values, for which a GPU would have to be waited for."""
        self._set_hooks([(one, functools.partial(_is_untouched, one, then, versions))
                         for one, then, versions in self._begun_with if one.requires_grad])

    def _set_hooks(self, questions: list[tuple[torch.Tensor, Callable[[], bool]]]) -> None:
        self._remove_hooks()
        made = gathered(self._models) if any(isinstance(one, DTensor) for one, _ in questions) else {}
        self._hooks = [made.get(id(one), one).register_hook(_Question(self.answer, is_there))
                       for one, is_there in questions]

    def answer(self, is_there: bool) -> None:
        """Notes whether a parameter had an old gradient when a new one came."""
        self._is_answered = True
        self._known["are kept"] |= is_there
        self._zeroes = self._zeroes and not is_there

    def look(self, function: str) -> None:
        """At the gate of a step: ends what _ask() began."""
        are_same = self._are_added_to()
        self._begun_with, self._is_in_doubt = [], False
        if not self._hooks:
            if are_same and not (self._known["are kept"] or self._zeroes):
                self._is_answered, self._known["is unsure"] = False, True
            return
        self._remove_hooks()
        self._known["is unsure"] = are_same and not self._is_answered
        self._zeroes = are_same and self._is_answered and not self._known["are kept"]
        size = sum(one.grad.nbytes for one in self._parameters if one.grad is not None)
        if self._known["are kept"] and self._speaks and size > MOST_BYTES:
            _log.warning("ck.run(%s) adds to gradients of earlier steps, and their %d MiB are too many "
                         "to be kept for a replacement: all ranks start again from a checkpoint if "
                         "a rank dies; expected zero_grad() in each step", function, size >> 20)

    def lacks_copies(self) -> bool:
        """True if the step has written to gradients that it began with, and that nobody knew it keeps."""
        return not (self._copies or self._zeroes) and self._are_added_to()

    def _are_added_to(self) -> bool:
        return any(one.grad is then and _versions(then) != before for one, then, before in self._begun_with)

    def may_stay(self) -> bool:
        """True if the gradients may stay as they are when the step is made again: it has dropped them so far."""
        self._is_in_doubt = bool(self._begun_with) and self._is_answered \
            and not (self._known["are kept"] or self._copies)
        return self._is_in_doubt

    def restore(self) -> None:
        """Puts the gradients back, if there are copies."""
        self._remove_hooks()
        for one, copy in zip(self._parameters, self._copies, strict=False):
            if copy is None:
                one.grad = None
                continue
            if one.grad is None:
                one.grad = torch.empty_like(one.detach(), dtype=copy.dtype)
            with torch.no_grad():
                local_of(one.grad).copy_(copy)

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _versions(gradient: torch.Tensor) -> tuple[int, int]:
    return gradient._version, local_of(gradient)._version


class _Question:
    """A hook of a parameter: asks, before its first new gradient is added, whether an old one is there."""

    def __init__(self, answer: Callable[[bool], None], is_there: Callable[[], bool]) -> None:
        self._answer, self._is_there = answer, is_there
        self._was_asked = False

    def __call__(self, _: torch.Tensor) -> None:
        if not self._was_asked:
            self._was_asked = True
            self._answer(self._is_there())


def _is_not_zero(parameter: torch.Tensor) -> bool:
    return parameter.grad is not None and bool(local_of(parameter.grad).any())


def _is_untouched(parameter: torch.Tensor, then: torch.Tensor, versions: tuple[int, int]) -> bool:
    return parameter.grad is then and _versions(then) == versions
