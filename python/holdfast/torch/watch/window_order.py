"""Says which of the windows is opened next.

Windows are opened one after the other, so that all bytes are looked at in a cycle. The next one comes
only after one that was opened: none is while another one is still open, as between the steps
of accumulated gradients. If the ranks agree on another size of the windows, the cycle goes on at
the place in the bytes where it was.

Ranks open windows after the same steps, so the same one comes next. If one rank has opened fewer,
such as one that had let go of its tensors, it goes on where the others are after the next comparison.
"""

from dataclasses import dataclass, field, replace
from typing import Self

from holdfast.torch.watch.costs import Plan

# What sealing takes is measured and differs a little each time. Windows are cut again if they
# could be so many times larger, or must be so many times smaller: then they would cost more than
# their share, of which a plan uses four fifths.
_LARGER, _SMALLER = 1.5, 1.25


@dataclass(frozen=True)
class WindowOrder:
    """The number of windows, and which of them comes next."""

    count: int = 1
    plan: Plan = field(default_factory=Plan)  # to which they were cut
    passed: int = 0  # windows, counted from the first one that was opened

    @property
    def number(self) -> int:
        """The window that is opened next."""
        return self.passed % self.count

    def next(self) -> Self:
        """The order after a window was opened."""
        return replace(self, passed=self.passed + 1)

    def agreed(self, passed: int) -> Self:
        """The order after so many windows, on which the ranks have agreed."""
        return replace(self, passed=passed)

    def is_outgrown(self, plan: Plan) -> bool:
        """True if another plan asks for other windows."""
        now, then = self.plan.window_bytes, plan.window_bytes
        return (plan.every != self.plan.every or then > _LARGER * now or now > _SMALLER * then)

    def cut(self, plan: Plan, count: int) -> Self:
        """The order after the bytes were cut into so many windows."""
        return type(self)(count, plan, self.number * count // self.count)
