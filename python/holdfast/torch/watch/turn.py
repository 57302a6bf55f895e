"""Whose turn it is: which of the windows is opened after a step.

Windows are opened one after the other, so that all bytes are looked at in a cycle. If the ranks
agree on another size of the windows, the cycle goes on at the place in the bytes where it was. All
ranks have the same turn, because they cut at the same meetings, to the same plan.
"""

from dataclasses import dataclass, field
from typing import Self

from holdfast.torch.watch.costs import Plan

# What sealing takes is measured and differs a little each time. Windows are cut again if they
# could be so many times larger, or must be so many times smaller: then they would cost more than
# their share, of which a plan uses four fifths.
_LARGER, _SMALLER = 1.5, 1.25


@dataclass(frozen=True)
class Turn:
    """The number of windows, and which of them comes next."""

    count: int = 1
    plan: Plan = field(default_factory=Plan)  # to which they were cut
    step: int = 0  # of that meeting
    first: int = 0  # the window that is opened first from that step on

    def number(self, step: int) -> int:
        """The window that is opened after that step, or after the next one that opens any."""
        opened = -(-step // self.plan.every) - -(-self.step // self.plan.every)
        return (self.first + opened) % self.count

    def is_outgrown(self, plan: Plan) -> bool:
        """True if another plan asks for other windows."""
        now, then = self.plan.window_bytes, plan.window_bytes
        return (plan.every != self.plan.every or then > _LARGER * now or now > _SMALLER * then)

    def cut(self, step: int, plan: Plan, count: int) -> Self:
        """The turn after the bytes were cut into so many windows, at the meeting of that step."""
        return type(self)(count, plan, step, self.number(step) * count // self.count)
