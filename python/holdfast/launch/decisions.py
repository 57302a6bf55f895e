"""After a rank was lost: which update the survivors go on after, and what each of them does.

With the gate (holdfast/recovery/decide.h) nothing has to be taken back. With undo=True ranks make updates
without a gate, and tell of which updates they have records of other ranks. Then the newest update counts that
every survivor has made, and for which there is a record of each lost rank: survivors that have made one more
take it back.
"""

from collections.abc import Mapping
from typing import Any

from holdfast import _native


class Decision:
    """As the decision of _native.decide()."""

    def __init__(self, target: int, courses: dict[int, str], refused: str = "") -> None:
        self.target, self.courses, self.refused = target, courses, refused


def decide(told: Mapping[int, Mapping[str, Any]], floor: int) -> Any:
    """What is decided; `told` is by rank. `floor` is the update of the decision before, or 0."""
    if any("records" in one for one in told.values()):
        return _decide_undo(told)
    return _native.decide([(rank, one["committed"], one["ready"], one["begun"]) for rank, one in told.items()],
                          floor)


def outcome_of(courses: Mapping[int, str]) -> str:
    """What a recovery is called in which ranks do that."""
    return next((course for course in ("undo", "forward", "back") if course in courses.values()), "go on")


def _decide_undo(told: Mapping[int, Mapping[str, Any]]) -> Decision:
    known: dict[int, int] = {}  # of lost ranks
    for one in told.values():
        for peer, update in one["records"]:
            if peer not in told:
                known[peer] = max(update, known.get(peer, 0))
    target = min([one["committed"] for one in told.values()] + list(known.values()))
    for rank, one in told.items():
        if one["committed"] > target + 1:
            return Decision(target, {}, f"rank {rank} has made update {one['committed']}, and others have made "
                            f"update {target}; expected at most one more, which can be taken back")
    return Decision(target, {rank: "undo" if one["committed"] > target else "back" if one["begun"] else "go on"
                             for rank, one in told.items()})
