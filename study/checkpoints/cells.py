"""Which measurements the study consists of. Imports no framework."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

# The engines of each framework, as its NAME_engines.py has them: the study must know their names also where
# the framework is not installed.
ENGINES = {
    "torch": ("torch.save", "torch.save-numbered", "torch.save-rename", "torch.save-legacy", "safetensors",
              "safetensors-numbered", "dcp", "dcp-numbered", "dcp-2-ranks", "holdfast"),
    "tensorflow": ("tf.train.CheckpointManager", "tf.train.Checkpoint.write", "keras.save-keras", "keras.save-h5",
                   "keras.save_weights", "keras.BackupAndRestore", "keras.BackupAndRestore-double"),
    "chainer": ("chainer.save_npz", "chainer.save_hdf5", "chainer.snapshot"),
    "orbax": ("orbax",),
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    experiment: str
    framework: str
    engine: str

    @property
    def name(self) -> str:
        return f"{self.experiment}-{self.engine}"


def all_cells() -> list[Cell]:
    return [Cell("crash", framework, engine) for framework, names in ENGINES.items() for engine in names]


def choose(patterns: Sequence[str], engines: Sequence[str]) -> list[Cell]:
    """The cells that are asked for. Raises ValueError with the nearest name if one does not exist."""
    cells = all_cells()
    for pattern in patterns:
        if not any(fnmatch(cell.name, pattern) for cell in cells):
            raise ValueError(f"--only {pattern}: no such cell{_nearest(pattern, (one.name for one in cells))}")
    known = list(dict.fromkeys(cell.engine for cell in cells))
    for engine in engines:
        if engine not in known:
            raise ValueError(f"--engine {engine}: no such engine{_nearest(engine, known)}")
    return [cell for cell in cells if (not engines or cell.engine in engines)
            and (not patterns or any(fnmatch(cell.name, pattern) for pattern in patterns))]  # fmt: skip


def _nearest(name: str, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(names), 1, 0.0)
    return f"; expected a name such as {found[0]}" if found else ""
