"""Notices a loop that reads batches ahead of its steps, as a prefetcher does.

The position of a loader counts every batch that was handed out. A batch that the loop has read and not
trained with yet is left out after a resume. Such a loop is seen by the first step of each pass, which comes
after more batches than all others.
"""

from holdfast.torch.data.passes import Pass

_CALLS = 5  # so many steps are looked at,
_CALLS_OF_SEVERAL = 8  # or so many of several micro-batches, whose number may differ from step to step

_TEXT = ("data: the loop reads {ahead} ahead of its steps (the first step of a pass came after {first} batches, "
         "each other one after {other}), and a resume leaves out what was read and not trained; expected that a "
         "step reads its own batches (a DataLoader with num_workers= reads ahead by itself)")


class EarlyReads:
    """How many batches the first steps of a process have read."""

    def __init__(self) -> None:
        self._calls, self._is_over = 0, False
        self._pass: Pass | None = None  # that of the step before
        self._read = 0  # how many batches it had handed out by then
        self._first: set[int] = set()
        self._others: set[int] = set()

    def note(self, one: Pass) -> str:
        """Notes a step whose batches are from that pass. Returns a warning, or ""."""
        if self._is_over:
            return ""
        self._calls += 1
        is_first = one is not self._pass
        count = one.handed_out - (0 if is_first else self._read)
        self._pass, self._read = one, one.handed_out
        if one.is_open:  # a loop that reads ahead has met the end of the data before its last step
            (self._first if is_first else self._others).add(count)
        needed = _CALLS if max(self._others, default=2) == 1 else _CALLS_OF_SEVERAL
        if self._calls < needed:
            return ""
        self._is_over, self._pass = True, None
        if len(self._first) != 1 or len(self._others) != 1:
            return ""
        first, other = *self._first, *self._others
        ahead = "a batch" if first - other == 1 else f"{first - other} batches"
        return _TEXT.format(ahead=ahead, first=first, other=other) if first > other > 0 else ""
