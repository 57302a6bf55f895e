"""How a checkpoint fits the process that resumes it."""

from dataclasses import dataclass, field

from holdfast.torch.values.dotted_names import name_a_few

_NAMED = 8  # so many names are listed in a message


@dataclass
class Report:
    """How a checkpoint fits: `exact` if it has all that is expected and nothing else."""

    missing: list[str] = field(default_factory=list)  # expected, and not in the checkpoint
    unexpected: list[str] = field(default_factory=list)  # in the checkpoint, and not expected
    reshaped: list[str] = field(default_factory=list)  # "name is float32 [4]; expected ..."
    inexact: list[str] = field(default_factory=list)  # why bits may differ from now on
    skipped: list[tuple[str, str]] = field(default_factory=list)  # newer steps, and why
    tier: str = ""  # the tier it was copied from (rank 0's); "" if the run directory had it

    @property
    def exact(self) -> bool:
        """True if nothing is missing, unexpected or of another shape or dtype."""
        return not (self.missing or self.unexpected or self.reshaped)

    @property
    def refusal(self) -> str:
        """The report as the text of an error, with advice if strict=False would help."""
        build = "a model that has it (holdfast.open lists what was saved), or "
        way_out = (f"; expected {build if self.dropped else ''}"
                   "resuming=holdfast.Resuming(strict=False), which leaves that out")
        return f"{self}{'' if self.reshaped else way_out}"

    @property
    def warning(self) -> str:
        """The report as the text of a warning, which says what becomes of trained tensors."""
        lost = f"{self.dropped} tensors that were saved are left out, and no later checkpoint has them"
        return f"{self}{f': {lost}' if self.dropped else ''}"

    @property
    def dropped(self) -> int:
        """How many tensors of the checkpoint the model does not have."""
        return sum(name.startswith("model.") and " " not in name for name in self.unexpected)

    def __str__(self) -> str:
        parts = [("not in it: ", self.missing), ("not expected: ", self.unexpected),
                 ("different: ", self.reshaped)]
        return "; ".join(what + name_a_few(names, _NAMED) for what, names in parts if names)
