"""Saves the last step of a training when it is closed, or says why not."""

import logging
import sys
from collections.abc import Callable
from typing import Any

from holdfast import _native
from holdfast.torch.loop.model_changes import ModelChanges
from holdfast.torch.loop.saves import Saves
from holdfast.torch.loop.step_numbers import DAMAGED, StepNumbers

RANK_WAIT = 5.0  # close() waits so long for the other ranks to call it, too

_log = logging.getLogger("holdfast")


class EndOfTraining:
    """What close() does about a last step that no checkpoint has."""

    def __init__(self, saves: Saves, steps: StepNumbers, changes: ModelChanges, watch: Any,
                 check_not_broken: Callable[[], None]) -> None:
        self._saves, self._steps, self._changes, self._watch = saves, steps, changes, watch
        self._check_not_broken = check_not_broken

    def save(self, save: Callable[[int], None], wanted: bool, never_saves: bool,
             timeout: float | None) -> None:
        """Saves the last step, and again with each rank's own values if replicas turn out to differ."""
        if (step := self._steps.unsaved) is not None:
            self._save_or_tell(save, step, wanted, never_saves)
        if not is_exception_on_its_way() and self._saves.is_torn(timeout):
            self._save_or_tell(save, self._steps.saved_last, wanted, False)

    def _save_or_tell(self, save: Callable[[int], None], step: int, wanted: bool,
                      never_saves: bool) -> None:
        why = _why_no_end(wanted, never_saves, self._changes.changed_since(step),
                          self._watch.is_damaged)
        why = _agree_on_end(why, self._saves.live_job(), self._check_not_broken)
        if why is None:
            save(step)
        else:
            _log.warning("%s", self._steps.unsaved_warning(why))


def is_exception_on_its_way() -> bool:
    """True in an `except` or `finally` that an exception has led to."""
    return sys.exc_info()[1] is not None


def _agree_on_end(why: str | None, job: _native.Job, check_not_broken: Callable[[], None]
                 ) -> str | None:
    """Why no rank saves the last step, None if all do; `why` is what this rank knows against it."""
    # A rank that an exception has led here does not ask the others: they may be anywhere.
    if is_exception_on_its_way() or job.all_agree(why is None, RANK_WAIT):
        return why
    check_not_broken()
    return why or "not all ranks came to close() in time, or one of them does not save it"


def _why_no_end(wanted: bool, never_saves: bool, changed: str, is_damaged: bool) -> str | None:
    """Why close() does not save the last step; None if it does, as far as this rank knows."""
    reasons = {
        DAMAGED: is_damaged,
        "close(save=False) was asked for": not wanted,
        'every="never" leaves saving to save()': never_saves,
        "an exception has ended the training": is_exception_on_its_way(),
        changed: bool(changed),
    }
    return next((why for why, holds in reasons.items() if holds), None)
