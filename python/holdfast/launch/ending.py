"""How a job ends: whether it was asked to, whether its last step is saved, and with which exit code.

The exit code STOPPED says that a job that is started again loses no step. So it is given only if a
rank has said that the last step is durable, or if there was none to save.
"""

import signal
from typing import Any

from holdfast.launch.ranks import Ranks
from holdfast.launch.worker_identity import STOPPED

GAVE_UP = 1
CONTINUES_LATER = "the job ends, and continues from its newest checkpoint when it is started again"


class Ending:
    """The end of one job, as far as it is known."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.is_stopping = False  # a stop signal has come
        self.leaving: dict[str, Any] | None = None  # all save and leave: the code, and why
        self.is_saved = False  # the last step is durable, and all ranks end: one of them has said so

    def code(self) -> int:
        """The exit code of a job whose processes have all ended."""
        if self.leaving is not None:
            return self.code_of_leaving()
        bad = [code for code in self._ranks.codes() if code not in (0, None)]
        others = [code for code in bad if code != STOPPED]
        if not others or (self.is_saved and len(others) < len(bad)):
            return STOPPED if bad else 0
        return others[0] or GAVE_UP

    def code_of_leaving(self) -> int:
        """The exit code if all ranks were told to save and leave."""
        assert self.leaving is not None
        code = int(self.leaving["code"])
        return code if self.is_saved or code != STOPPED else GAVE_UP

    def code_if_unsaved(self) -> int:
        """The exit code of a job that was asked to stop and cannot save."""
        has_steps = self._ranks.has_begun or self._ranks.is_rebuilt
        return GAVE_UP if has_steps and not self.is_saved else STOPPED

    def needs(self, code: int) -> bool:
        """Whether a rank that died with the code must be replaced, so that the others can save.

        It must not after a stop signal if the step is saved, or if the program lets its processes die
        of the signal.
        """
        if not self.is_stopping or self.leaving is not None:
            return True
        has_checkpointer = any(rank.is_open for rank in self._ranks.all)
        is_due_to_signal = code == -signal.SIGTERM and self._ranks.has_begun
        return has_checkpointer and not (self.is_saved or is_due_to_signal)
