"""Which measurements the study consists of. Imports no framework."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

# The engines of each framework, as its NAME_engines.py has them: the study must know their names also where
# the framework is not installed.
ENGINES = {
    "torch": ("torch.save", "torch.save-numbered", "torch.save-rename", "torch.save-legacy", "safetensors",
              "safetensors-numbered", "dcp", "dcp-numbered", "dcp-2-ranks", "torch_checkpointing", "holdfast"),
    "tensorflow": ("tf.train.CheckpointManager", "tf.train.Checkpoint.write", "keras.save-keras", "keras.save-h5",
                   "keras.save_weights", "keras.BackupAndRestore", "keras.BackupAndRestore-double"),
    "chainer": ("chainer.save_npz", "chainer.save_hdf5", "chainer.snapshot"),
    "orbax": ("orbax",),
}  # fmt: skip


# Engines that differ from another one only in the names of their files: in crashes, not in time or bytes.
SAME_BYTES = ("torch.save-numbered", "torch.save-rename", "safetensors-numbered", "dcp-numbered", "dcp-2-ranks",
              "tf.train.Checkpoint.write", "keras.BackupAndRestore-double")  # fmt: skip
# Ways to resume a training, as bits_FRAMEWORK.py has them. What follows a "+" is saved, too.
WAYS = {
    "torch": ("torch.save", "torch.save+generator", "torch.save+generator+position", "holdfast"),
    "tensorflow": ("keras.ModelCheckpoint", "keras.BackupAndRestore", "tf.train.Checkpoint",
                   "tf.train.Checkpoint+iterator", "tf.train.Checkpoint+iterator+seeds", "holdfast.keras"),
    "chainer": ("chainer.snapshot", "chainer.snapshot+generator", "holdfast.chainer"),
}  # fmt: skip
STATES = ("resnet50+model", "resnet50+momentum", "resnet50+adam", "vgg16+model", "vgg16+momentum", "vgg16+adam",
          "alexnet+momentum", "gpt2+adam")  # fmt: skip
QUICK_STATES = STATES[1:2]
# Who writes when several ranks save the same state: one of them, each a full copy, or each its part.
SCALED = {"torch.save": ("rank-0", "all"), "chainer.save_npz": ("all",), "tf.train.CheckpointManager": ("rank-0", "all"),
          "dcp": ("parts",), "holdfast": ("parts",)}  # fmt: skip
RANKS, QUICK_RANKS = (1, 2, 4, 8, 16), (1, 2, 4)
# Experiments of time need a quiet machine and a disk; the others are the same everywhere.
TIMED = ("formats", "cost", "restart", "scale")


@dataclass(frozen=True)
class Cell:
    experiment: str
    framework: str
    engine: str
    variant: str = ""  # a state, or who writes

    @property
    def name(self) -> str:
        return "-".join(word for word in (self.experiment, self.engine, self.variant) if word)

    @property
    def is_timed(self) -> bool:
        return self.experiment in TIMED

    def options(self, quick: bool) -> dict[str, Any]:
        """What its measurement is told."""
        rounds = 6 if quick else 11  # fewer could not cover 95 %
        model, _, optimizer = self.variant.partition("+")
        return {"crash": {"most_deaths": 5 if quick else 1000},
                "formats": {"model": model, "optimizer": optimizer, "rounds": rounds},
                "cost": {"intervals": [1, 10] if quick else [1, 10, 100], "rounds": rounds},
                "restart": {"framework": self.framework, "rounds": rounds},
                "bits": {"framework": self.framework}, "flips": {"flips": 100},
                "scale": {"who": self.variant, "ranks": QUICK_RANKS if quick else RANKS, "rounds": rounds}}[self.experiment]  # fmt: skip


def all_cells(quick: bool = False) -> list[Cell]:
    """In the order in which they are measured; with `quick`, only those of a short study."""
    everyone = [(framework, engine) for framework, names in ENGINES.items() for engine in names]
    own = [(framework, engine) for framework, engine in everyone if engine not in SAME_BYTES]
    ways = [(framework, way) for framework, names in WAYS.items() for way in names]
    scaled = [(framework, engine, who) for framework, engine in own for who in SCALED.get(engine, ())]
    states = QUICK_STATES if quick else STATES
    return [*(Cell("crash", *one) for one in everyone),
            *(Cell("formats", *one, state) for state in states for one in own),
            *(Cell("cost", *one) for one in own), *(Cell("restart", *one) for one in own),
            *(Cell("bits", *one) for one in ways), *(Cell("flips", *one) for one in own),
            *(Cell("scale", *one) for one in scaled)]  # fmt: skip


def choose(patterns: Sequence[str], engines: Sequence[str], quick: bool = False) -> list[Cell]:
    """The cells that are asked for. Raises ValueError with the nearest name if one does not exist."""
    cells = all_cells(quick)
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
