"""What the watch reports: which bits of which tensor changed on which rank, and why."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from holdfast import _native

# The causes, as the comparison of seals tells them apart. A seal shows that bytes have changed
# between two updates; replicas that differ without that have changed at another time.
RESTED = ("it changed between two updates without a write that torch counts: a fault of this "
          "rank's memory, or code that writes through .data or NumPy")
ALIKE = ("it changed between two updates on all ranks alike, without a write that torch counts: "
         "code that writes through .data or NumPy")
DIFFERS = ("the other ranks agree on another value: a fault in an update of this rank, or in its "
           "memory outside of the part that was watched, or code that writes to it on this rank "
           "alone")
UNDECIDED = ("{} hold different values, and no majority says which is right: a fault of one of "
             "them; if they are meant to differ, expected holdfast.Watch(replicas=False)")
GONE = ("it was not what the other ranks had, and is equal again: what it did meanwhile may have "
        "reached all ranks")

# What a guard has seen is unusual, and may have a cause that is no fault.
DISPERSED = ("a fault in the backward pass of this rank, or a batch that is unlike those of the "
             "other ranks")
SPIKED = ("a fault in a pass or an update, or a learning rate or a batch that makes training "
          "unstable")
OUT_OF_RANGE = "a fault in an update or in this rank's memory, or a training that diverges"

_FIGURES = {"dispersion": "the norm of its gradient, the largest part of it in {},",
            "spike": "the {}", "range": "{}"}
_ENDS = {"seal": "; mended by its seal", "replicas": "; mended from the other replicas",
         "itself": "; nothing is left to mend", "": ""}


@dataclass(frozen=True)
class Alarm:
    """One finding. All ranks get it."""

    step: int  # the last step before it was seen
    rank: int  # the rank whose bytes changed
    tensor: str
    index: tuple[int, ...] | None  # of the element; None if more than one word has changed
    bits: str  # "bit 30"; "" if more than one word has changed
    before: str  # the value as it was, or as most replicas have it
    after: str
    cause: str
    mended: str = ""  # by "seal", by "replicas", by "itself", or "" if it was not mended
    guard: str = ""  # "dispersion", "spike" or "range" if a guard saw it; "" if bits were seen

    @property
    def what(self) -> str:
        """Which element of which tensor, and its values."""
        if self.guard:
            element = "" if self.index is None else f" {list(self.index)}"
            figure = _FIGURES[self.guard].format(self.tensor + element)
            return f"{figure} is {self.after}; expected {self.before}"
        if self.index is None:
            return f"{self.tensor}: is not what it was, in more than one word"
        return (f"{self.tensor} {list(self.index)} {self.bits} is {self.after}; expected "
                f"{self.before}")

    def __str__(self) -> str:
        return (f"after step {self.step}, rank {self.rank}: {self.what}: {self.cause}"
                f"{_ENDS[self.mended]}")

    def event(self) -> dict[str, Any]:
        """The fields of the event memory_alarm."""
        element = "" if self.index is None else str(list(self.index))
        fields = {**asdict(self), "element": element}
        del fields["index"]
        return fields

    def packed(self) -> dict[str, Any]:
        """The alarm as plain values, for other ranks."""
        return asdict(self)

    @classmethod
    def unpacked(cls, values: dict[str, Any]) -> Self:
        """The reverse of packed()."""
        index = values["index"]
        return cls(**{**values, "index": None if index is None else tuple(index)})


def alarm_of(changed: Sequence[_native.ChangedElement], tensor: str, step: int, rank: int,
             cause: str, mended: str = "") -> Alarm:
    """The alarm about the elements that changed in a part of that tensor.

    If they are several, the first one is named: a word may have two elements of two bytes.
    """
    if not changed:
        return Alarm(step, rank, tensor, None, "", "", "", cause, mended)
    one = changed[0]
    return Alarm(step, rank, tensor, tuple(one.index), one.bits, one.before, one.after, cause,
                 mended)
