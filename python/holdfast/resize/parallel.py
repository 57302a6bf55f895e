"""The parallel configuration of a job: how many stages, replicas and tensor parts it has."""

import re
from dataclasses import dataclass

AXES = ("pp", "dp", "tp")  # in the order of the mesh: ranks of one tensor-parallel group are side by side


@dataclass(frozen=True)
class Parallel:
    """A configuration such as "tp=2,pp=2,dp=1"."""

    pp: int = 1
    dp: int = 1
    tp: int = 1

    @classmethod
    def parse(cls, text: str) -> "Parallel":
        """From text; an axis that is not named is 1. ValueError if it says anything else."""
        found: dict[str, int] = {}
        for part in text.split(",") if isinstance(text, str) else ():
            one = re.fullmatch(r"\s*([a-z]+)\s*=\s*([1-9]\d{0,6})\s*", part)
            if one is None or one[1] not in AXES or one[1] in found:
                break
            found[one[1]] = int(one[2])
        else:
            if found:
                return cls(**found)
        raise ValueError(f"configuration {text!r}; expected degrees such as \"tp=2,pp=2,dp=1\"")

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of the mesh."""
        return self.pp, self.dp, self.tp

    @property
    def workers(self) -> int:
        """How many ranks it has."""
        return self.pp * self.dp * self.tp

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """The place of a rank in the mesh."""
        return rank // (self.dp * self.tp), rank // self.tp % self.dp, rank % self.tp

    def __str__(self) -> str:
        return f"tp={self.tp},pp={self.pp},dp={self.dp}"
