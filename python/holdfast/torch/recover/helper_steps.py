"""The steps of a process that helps a replacement: those that it makes again, and no others (helping.py)."""

from collections.abc import Callable
from typing import Any

import torch

from holdfast.launch.worker_identity import FAILED
from holdfast.torch.recover.gated_steps import GatedSteps
from holdfast.torch.recover.helping import end_helper

_ROOM = 1 << 30  # bytes that a process takes of a device beside what torch has reserved


class HelperSteps(GatedSteps):
    """Makes the steps of one helper. It passes no gate, and no rank hears of it."""

    def take_over(self) -> int:
        self._replay = self._membership.help()
        return self._repeated.first_step

    def _make_again(self, update: int, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = super()._make_again(update, name, function, args, kwargs)
        assert self._replay is not None
        if self._replay.is_done:
            end_helper(0)
        return result

    def _pass_gate(self, *, updates: bool, optimizer: Any = None) -> None:
        self._groups.wait_for_calls()
        self._messages.settle()
        self._start.look_at_gate(self._repeated.function)
        self._updates, self._phase = updates, "updated"

    def _end_replay(self) -> None:
        end_helper(FAILED)


def room_for(many: int) -> int:
    """How many processes like this one its device has room for: so many, or fewer on a GPU; 0 for this one alone."""
    if many and torch.cuda.is_available() and torch.cuda.is_initialized():
        free, _ = torch.cuda.mem_get_info()
        many = min(many, 1 + free // (torch.cuda.max_memory_reserved() + _ROOM))
    return many if many > 1 else 0
