"""What a checkpoint has and a process wants, where that differs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast import _native
from holdfast.torch.state.training_state import Contents, is_internal, saved_extra
from holdfast.torch.values.dotted_names import plain_name
from holdfast.torch.values.dtypes import Saved

_NAMED = 8


@dataclass
class Report:
    """How a checkpoint fits: `exact` if it has all that is wanted and nothing else."""

    missing: list[str] = field(default_factory=list)  # wanted, and not in the checkpoint
    unexpected: list[str] = field(default_factory=list)  # in the checkpoint alone
    reshaped: list[str] = field(default_factory=list)  # "name: float32 [4], want [5]"
    inexact: list[str] = field(default_factory=list)  # why bits may differ from now on
    skipped: list[tuple[str, str]] = field(default_factory=list)  # newer steps, and why
    tier: str = ""  # that it was copied from (rank 0's); "" if the run directory had it

    @property
    def exact(self) -> bool:
        """True if nothing is missing, unexpected or of another shape or dtype."""
        return not (self.missing or self.unexpected or self.reshaped)

    @property
    def refusal(self) -> str:
        """What an error says of it, with the way out if there is one."""
        return f"{self}{'' if self.reshaped else '; strict=False leaves that out'}"

    def __str__(self) -> str:
        parts = [("not in it: ", self.missing), ("not expected: ", self.unexpected),
                 ("different: ", self.reshaped)]
        return "; ".join(what + _few(names) for what, names in parts if names)


def compare(contents: Contents, found: _native.Looked) -> Report:
    """Holds the names, dtypes and shapes of a checkpoint against those of all ranks.

    A collective: all ranks get the same report.
    """
    saved = {name: info for info in found.tensors for name in (info.name, *info.ties)}
    missing, reshaped = _differences(contents.expected(found), saved)
    missing += contents.missing_extra(found)
    others = [*contents.other_optimizers(found), *contents.other_things(found).values()]
    ranks = contents.all_ranks(((missing, reshaped, others), contents.known(), contents.things))
    report = Report()
    known: set[str] = set()
    kinds: list[str] = []
    for (missing, reshaped, others), names, _ in ranks:
        report.missing += [name for name in missing if name not in report.missing]
        report.reshaped += [line for line in reshaped if line not in report.reshaped]
        kinds += [line for line in others if line not in kinds]
        known |= names
    report.unexpected = [info.name for info in found.tensors if not _belongs(info.name, known)]
    report.unexpected += [name for name in saved_extra(found) if name not in known]
    things = set(found.objects.get("things", {}))
    for own in found.rank_objects:
        things |= set(own.get("things", {}))
    things = {key for key in things if not is_internal(key)}
    report.missing += sorted(ranks[0][2] - things)
    report.unexpected += sorted(things - ranks[0][2])
    report.unexpected += kinds
    return report


def _differences(
    wanted: Mapping[str, Saved], saved: Mapping[str, _native.TensorInfo]
) -> tuple[list[str], list[str]]:
    """(names that are missing, sentences about those that are of another kind)."""
    missing, reshaped = [], []
    whose = {plain_name(name): info for name, info in saved.items()}  # any rank's
    for name, want in wanted.items():
        info = saved.get(name) or whose.get(plain_name(name))
        if info is None:
            missing.append(name)
        elif Saved.of(info) != want:
            reshaped.append(f"{name} is {_words(Saved.of(info))}, want {_words(want)}")
    return missing, reshaped


def _belongs(name: str, known: set[str]) -> bool:
    head = plain_name(name)
    while head and head not in known:
        head = head.rpartition(".")[0]
    return bool(head)


def _words(saved: Saved) -> str:
    return f"{str(saved.dtype).removeprefix('torch.')} {list(saved.shape)}"


def _few(names: list[str]) -> str:
    text = ", ".join(names[:_NAMED])
    return text if len(names) <= _NAMED else f"{text} and {len(names) - _NAMED} more"
