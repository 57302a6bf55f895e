"""Tells whether a step that was lost is worth another try."""

import time
from dataclasses import dataclass

from holdfast.launch.recoveries import words_of

_MOST = 4  # a step that was lost so often is not tried again
_MOMENT = 20.0  # seconds; a rank waits up to 10 s to hear why another one did not answer


@dataclass
class Loss:
    """The death of a rank."""

    rank: int
    step: int  # -1 before its first step
    code: int
    why: str = ""
    is_final: bool = False  # the program has failed in a way that a second try does not change
    left: str = ""  # how it has left, if it ended as if all was well while others waited for it

    @property
    def is_unavailable(self) -> bool:
        """True if the program has raised UnavailableError."""
        return self.why.startswith("UnavailableError")

    @property
    def where(self) -> str:
        return f"in step {self.step}" if self.step >= 0 else "before its first step"


class Losses:
    """All deaths so far."""

    def __init__(self) -> None:
        self._last: Loss | None = None
        self._last_at = 0.0  # when that was
        self._times = 0  # that the step of the last loss was lost

    def why_no_more(self, loss: Loss, has_begun: bool) -> str | None:
        """Why the step is not tried again: it would only be lost again. None if it is tried."""
        if self._is_consequence(loss):
            return None
        before, self._last, self._last_at = self._last, loss, time.monotonic()
        is_same_step = before is not None and before.step == loss.step
        self._times = self._times + 1 if is_same_step else 1
        how = words_of(loss.code, loss.why)
        if not has_begun and loss.is_final:
            return f"the program has failed before the first update of all ranks: {how}"
        is_same_end = is_same_step and before is not None and before.code == loss.code
        most = 2 if is_same_end and (loss.code > 0 or loss.step < 0) else _MOST
        if self._times < most:
            return None
        where = f"step {loss.step}" if loss.step >= 0 else "the start"
        return f"{where} was lost {self._times} times, the last time by {how}"

    def _is_consequence(self, loss: Loss) -> bool:
        """True if the rank has ended only because another one was lost a moment ago."""
        return (self._last is not None and not self._last.is_unavailable and loss.is_unavailable
                and time.monotonic() - self._last_at < _MOMENT)
