"""Compares the records of two lives of one training, and names what differs first."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from holdfast.rehearse.records import LifeRecords, RankRecords, Record

# Values that another life has by right: which choices led to it, and how its loader has come to its
# position. The position itself shows in the batches.
_OF_A_LIFE = ("branch", "rank.data draws", "things.data", "rank.things.data")
_GENERATORS = "rank.generators"
TENSORS = "tensors."  # what paths of tensors begin with that are found and not saved
# A trainer takes these up only when it begins to train.
_OF_A_TRAINER = ("things.trainer", "rank.things.trainer", "trainer.")
_POSITION = ".combined_loader."  # of the loaders of Lightning
# What paths of values begin with, and what is said instead of the whole path; "": the rest of it.
_NAMES = {f"{_GENERATORS}.python": "Python's random generator",
          f"{_GENERATORS}.numpy": "NumPy's random generator",
          f"{_GENERATORS}.torch": "torch's random generator",
          f"{_GENERATORS}.cuda": "torch's random generator of a GPU",
          TENSORS: "", f"{_GENERATORS}.extra.": "", f"{_GENERATORS}.": "", "rank.things.": "", "things.": "",
          "rank.": ""}


@dataclass(frozen=True)
class Difference:
    """The first thing in which a life differs from the undisturbed one."""

    step: int
    rank: int
    what: str  # "batch", "generator", "loss", "tensor", "value", "step", "found" or "resume"
    name: str  # of the tensor, value or generator
    undisturbed: str = ""
    disturbed: str = ""
    part: int = 0  # which Checkpointer of the script

    def __str__(self) -> str:
        of_rank = f" of rank {self.rank}" if self.rank else ""
        of_rank += f" of Checkpointer {self.part + 1}" if self.part else ""
        if self.what in ("batch", "loss"):
            return f"the {self.what} of step {self.step}{of_rank}"
        if self.what == "resume":
            return f"the restarted command {self.name}, and step {self.step} was saved"
        if self.what == "step":
            return f"step {self.step}{of_rank}, which {self.name}"
        when = "before" if self.what == "generator" else "after"
        return f"{readable_name(self.name)}{of_rank} ({_kind(self)}) {when} step {self.step}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def first_difference(golden: LifeRecords, life: LifeRecords, ignored: set[str],
                     upto: int | None = None) -> Difference | None:
    """The earliest one over all ranks. `upto` is the last step that the life was to make."""
    found = [one for rank, records in sorted(golden.ranks.items())
             for one in _of_rank(rank, records, life.ranks.get(rank, RankRecords()), ignored, upto)]
    found = [replace(one, part=golden.part) for one in found]
    for part, ranks in sorted(golden.others.items()):  # a life may end in the middle of their steps
        for rank, records in sorted(ranks.items()):
            own = life.parts.get(part, {}).get(rank, RankRecords())
            differs = _of_rank(rank, records, own, ignored, max(own.steps, default=-1))
            found += [replace(one, part=part) for one in differs]
    return min(found, key=lambda one: one.step, default=None)


def difference_of_resumed(killed: LifeRecords, life: LifeRecords, *,
                          with_tensors: bool = False) -> Difference | None:
    """In what a life differs from the killed one that it resumes: its state, or its first batch.

    The killed life is known up to the step that was saved, and often the batch of the next one.
    `with_tensors` adds those that nothing saves: a script may make them anew behind resume().
    """
    for part, ranks in sorted(killed.parts.items()):
        for rank, records in sorted(ranks.items()):
            own = life.parts.get(part, {}).get(rank, RankRecords())
            for one in _of_resumed(rank, records, own, with_tensors):
                return replace(one, part=part)
    return None


def _of_resumed(rank: int, records: RankRecords, own: RankRecords,
                with_tensors: bool) -> Iterator[Difference]:
    step = None if own.resumed is None else own.resumed["start"] - 1
    if own.resumed is None or step not in records.steps:
        return
    for what, name, a, b in _unequal_state(records.steps[step], own.resumed, set()):
        # Generators are restored when the loader's iterator exists.
        later = name.startswith((_GENERATORS, *_OF_A_TRAINER)) or (
            name.startswith(TENSORS) and not with_tensors)
        if not (later or _is_made_later(what, name, a, b)):
            yield Difference(step, rank, what, name, a, b)
    yet, first = records.waits or {}, next(iter(own.steps.values()), own.waits or {})
    count = min(len(yet.get("inputs", ())), len(first.get("inputs", ())))
    if count:  # the killed step may have more calls of the model behind the update
        yet, first = ({**one, "inputs": one["inputs"][:count]} for one in (yet, first))
        for what, name, a, b in _unequal_begin(yet, first, set()):
            yield Difference(own.resumed["start"], rank, what, name, a, b)


def _is_made_later(what: str, name: str, then: str, now: str) -> bool:
    """True for tensors that an object makes when it is first used, as a GradScaler does.

    Until then it has plain values in their place.
    """
    of_object = not name.startswith(("model", "optimizer"))
    return of_object and (now if what == "tensor" else then) == "missing"


def differing_values(golden: LifeRecords, again: LifeRecords) -> set[str]:
    """The paths of plain values in which two undisturbed lives differ."""
    found = set()
    pairs = [(records, again.parts.get(part, {}).get(rank, RankRecords()))
             for part, ranks in golden.parts.items() for rank, records in ranks.items()]
    for records, other in pairs:
        for step, record in records.steps.items():
            if step in other.steps:
                found |= {name for what, name, *_ in _unequal(record, other.steps[step], set())
                          if what in ("value", "generator")}
    return found


def readable_name(name: str) -> str:
    """The name of a value as the user knows it."""
    for begin, words in _NAMES.items():
        if name.startswith(begin):
            return words or name.removeprefix(begin)
    return name


def _of_rank(rank: int, golden: RankRecords, life: RankRecords, ignored: set[str],
             upto: int | None) -> Iterator[Difference]:
    """The first difference of one rank, if there is one."""
    first = life.resumed["start"] if life.resumed is not None else min(golden.steps, default=0)
    for step, record in golden.steps.items():
        if step < first or (upto is not None and step > upto):
            continue
        if step == max(life.steps, default=None) and life.calls[step] < golden.calls[step]:
            continue  # the life has ended between two micro-batches of this number
        if step not in life.steps:
            yield Difference(step, rank, "step", "was not made")
            return
        for what, name, a, b in _unequal(record, life.steps[step], ignored):
            yield Difference(step, rank, what, name, a, b)
            return
    for step in life.steps:
        if step not in golden.steps and (upto is None or step <= upto):
            yield Difference(step, rank, "step", "the undisturbed run did not make")
            return


def _unequal(a: Record, b: Record, ignored: set[str]) -> Iterator[tuple[str, str, str, str]]:
    """(what, name, one, other) of all that differs in two records of a step, causes first."""
    yield from _unequal_begin(a, b, ignored)
    if a["loss"] != b["loss"]:
        yield "loss", "loss", _number(a["loss"]), _number(b["loss"])
    yield from _unequal_state(a, b, ignored)


def _unequal_begin(a: Record, b: Record, ignored: set[str]) -> Iterator[tuple[str, str, str, str]]:
    """What differs when the forward pass of a step begins."""
    # A step that was made again after the loss of a rank has entered the model twice.
    if a["inputs"] != b["inputs"][len(b["inputs"]) - len(a["inputs"]):]:
        yield "batch", "batch", "", ""
    if a["inputs"] == b["inputs"]:
        for name, one, other in _unequal_items(a["generators"], b["generators"]):
            if f"{_GENERATORS}.{name}" not in ignored:
                yield "generator", f"{_GENERATORS}.{name}", one, other


def _unequal_state(a: Record, b: Record, ignored: set[str]) -> Iterator[tuple[str, str, str, str]]:
    for name, one, other in _unequal_items(a.get("found", {}), b.get("found", {})):
        yield "found", name, one, other
    for name, one, other in _unequal_items(a["tensors"], b.get("tensors", {})):
        yield "tensor", name, one, other
    for name, one, other in _unequal_items(a["values"], b.get("values", {})):
        if not (name in ignored or name.startswith(_OF_A_LIFE) or _POSITION in name):
            yield "value", name, one, other


def _unequal_items(a: dict[str, str], b: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in [*a, *(name for name in b if name not in a)]:
        if a.get(name) != b.get(name):
            yield name, a.get(name, "missing"), b.get(name, "missing")


def _number(loss: str | None) -> str:
    return "none" if loss is None else f"{float.fromhex(loss):.6g}"


def _kind(one: Difference) -> str:
    if one.what == "value" and len(one.undisturbed) <= 40 and len(one.disturbed) <= 40:
        return f"{one.undisturbed} / {one.disturbed}"
    if one.what == "found":
        there = one.disturbed if one.undisturbed == "missing" else one.undisturbed
        return f"{there.rpartition(' ')[0]}, not saved"  # without the digest
    return "its state" if one.what == "generator" else one.what
