"""How large the windows may be: measures what sealing costs, and keeps it below its share."""

import math
import statistics
import time
from collections import deque
from dataclasses import dataclass

_FIRST_BYTES = 256 << 10  # the window until something is measured
_LEAST_BYTES = 4 << 10
_KEPT = 64  # so many steps and windows are remembered
_MARGIN = 0.8  # so much of the share is used: a window may take longer than those before it
# A window is worth opening if its seals take at least so many times what all else takes.
_WORTH = 4.0
# A window that is opened only once in several steps takes at most this part of one of them, or the
# share of one, if that is more.
_LONGEST_WINDOW = 0.25
_COMPARISON_PART = 0.1  # so much of the share may be used by comparisons of the ranks
_LONGEST = 16  # comparisons are at most so many times farther apart than asked for


@dataclass(frozen=True)
class Plan:
    """What all ranks do until their next comparison."""

    every: int = 1  # a window is opened after each so many updates
    window_bytes: int = _FIRST_BYTES
    period: int = 4  # the number of steps until the next comparison

    def agreed(self, other: "Plan") -> "Plan":
        """The plan that costs neither of two ranks more than its own."""
        return Plan(max(self.every, other.every), min(self.window_bytes, other.window_bytes),
                    max(self.period, other.period))


class Costs:
    """The times of steps, windows and comparisons of this rank."""

    def __init__(self, share: float, apart: float) -> None:
        """`share` of the time may be used; ranks compare every `apart` seconds, or more seldom."""
        self._share, self._apart = share, apart
        self._last_step: float | None = None
        self._steps: deque[float] = deque(maxlen=_KEPT)
        self._last_update: float | None = None
        self._updates: deque[float] = deque(maxlen=_KEPT)  # seconds from one update to the next
        self._windows: deque[tuple[int, float, float]] = deque(maxlen=_KEPT)
        self._comparisons: deque[float] = deque(maxlen=8)
        self.seconds = 0.0  # spent on windows and comparisons in all
        self.elapsed = 0.0  # from the first step to the last one

    def step(self, *, updated: bool = True) -> None:
        """Called at each step. `updated` is False while gradients are accumulated."""
        now = time.perf_counter()
        if self._last_step is not None:
            self._steps.append(now - self._last_step)
            self.elapsed += now - self._last_step
        self._last_step = now
        if updated:
            if self._last_update is not None:
                self._updates.append(now - self._last_update)
            self._last_update = now

    def window(self, size: int, sealing: float, all_else: float) -> None:
        """Notes what a window of so many bytes has cost, opened and closed."""
        self._windows.append((size, sealing, all_else))
        self.seconds += sealing + all_else

    def comparison(self, seconds: float, waited: float) -> None:
        """Notes how long a comparison took, and how much of it was spent waiting for other ranks."""
        self._comparisons.append(seconds)
        self.seconds += seconds - waited

    def plan(self) -> Plan:
        """What this rank can afford.

        A window is open from one update to the next, however many steps accumulate gradients in
        between. So it may take its share of all of them.
        """
        if not self._steps or not self._windows:
            return Plan()
        step = statistics.median(self._steps)
        update = max(step, statistics.median(self._updates)) if self._updates else step
        allowed = _MARGIN * self._share
        budget = max(allowed * update, 1e-9)
        fixed = statistics.median(rest for _, _, rest in self._windows)
        sealed = sum(size for size, _, _ in self._windows)
        rate = sealed / max(sum(seconds for _, seconds, _ in self._windows), 1e-9)
        every = max(1, math.ceil((1 + _WORTH) * fixed / budget))
        window_bytes = int((every * budget - fixed) * rate)
        if every * update > step:
            longest = max(_LONGEST_WINDOW, allowed) * step
            window_bytes = min(window_bytes, int(longest * rate))
        comparison = statistics.median(self._comparisons) if self._comparisons else 0.0
        # A comparison also waits for late ranks, which need not be a cost: so there is a bound.
        apart = self._apart / step
        comparison_part = max(_COMPARISON_PART * allowed * step, 1e-9)
        period = min(max(apart, comparison / comparison_part), _LONGEST * apart)
        return Plan(every, max(window_bytes, _LEAST_BYTES), max(4, int(period)))
