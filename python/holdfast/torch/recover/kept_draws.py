"""What the micro-batches of each rank draw, kept by its buddy until a newer step is durable (micro_batches.py)."""

import time
from collections.abc import Callable
from typing import Any

import torch

from holdfast.torch.recover.buddies import BuddyGate
from holdfast.torch.recover.call_log import CallLog
from holdfast.torch.recover.helping import DRAWS, read_draws
from holdfast.torch.recover.micro_batches import Draws, watch


class KeptDraws:
    """The part of one rank."""

    def __init__(self, log: CallLog, generators: dict[str, Any]) -> None:
        self._log, self._generators = log, generators
        self.helpers = 0  # how many processes would share the steps of a lost rank, on all ranks alike
        self.on_helpers: Callable[[int], None] = _nothing  # told how many would share the steps of this rank
        self._draws: Draws | None = None  # if there are to be helpers
        self._told: int | None = None

    def choose(self, *, is_kept: bool) -> None:
        """All ranks have chosen whether messages are kept."""
        self._draws = (self._draws or Draws(self._generators)) if is_kept and self.helpers > 1 else None
        self.watch()

    def watch(self) -> None:
        """Looks at micro-batches from now on."""
        watch(self._draws)

    def begin(self, update: int) -> None:
        """A run begins that is to make that update."""
        if self._draws is not None:
            self._draws.begin(update)

    def refuse(self, why: str) -> None:
        """The micro-batches of this rank cannot be shared from now on."""
        if self._draws is not None:
            self._draws.refuse(why)

    def pass_on(self, gate: BuddyGate, update: int) -> None:
        """Gives the buddy what was drawn. All ranks call it together."""
        if self._draws is None:
            return
        began = time.perf_counter()
        packed = torch.frombuffer(bytearray(self._draws.pack()), dtype=torch.uint8)
        try:
            gate.pass_on(self._log.native, (update, "", DRAWS, gate.rank, gate.rank, 0), self._draws.why_not,
                         [(packed.data_ptr(), packed.nbytes)])
        except OSError:
            if self._log.native.hole != update:
                raise
            # There was no room for it, and the log tells of that.
        self._log.seconds += time.perf_counter() - began

    def tell_helpers(self, *, is_on: bool) -> None:
        """Tells how many processes would share the steps of this rank now."""
        many = self.helpers if is_on and self._draws is not None and not self._draws.why_not else 0
        if many != self._told:
            self._told = many
            self.on_helpers(many)

    def why_alone(self, rank: int, after: int, through: int) -> str:
        """Why a lost rank, which is this one now, is to have no helpers; "" if it may, or if nobody wants them."""
        if self.helpers < 2:
            return ""
        try:
            read_draws(self._log.native, rank, range(after + 1, through + 1))
        except LookupError as error:
            return str(error)
        return ""


def _nothing(_: int) -> None: ...
