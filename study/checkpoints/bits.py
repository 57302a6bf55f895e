"""E4: does a training that was stopped and resumed end with the same bits as one that was not?

Each framework trains the same small net on the digits of examples/: BatchNorm, dropout, shuffled data, momentum. It is
stopped at the end of an epoch or in the middle of one, and a new process resumes it. A way to resume is a function of
bits_FRAMEWORK.py, train(way, folder, cut): cut 0 trains to the end without saving, a number stops after so many steps
with what is saved then, and RESUME goes on. It returns a digest of all parameters and statistics, or None if it stopped.
"""

import csv
import gzip
import hashlib
import importlib
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from forks import in_a_fork

DATA = Path(__file__).resolve().parents[2] / "examples/data/digits.csv.gz"
SAMPLES, BATCH, EPOCH, EPOCHS = 1280, 64, 20, 3  # an epoch has 20 steps
STEPS = EPOCH * EPOCHS
CUTS = {"end": EPOCH, "middle": EPOCH + EPOCH // 2}
RESUME = -1
SEED, RATE, MOMENTUM, DROPOUT = 7, 0.05, 0.9, 0.3


def measure(way: str, work: Path, framework: str) -> dict[str, Any]:
    """For each cut "equal" or "different"; "not repeatable" if two trainings that nobody stops differ already."""
    module = importlib.import_module(f"bits_{framework}")

    def run(name: str, cut: int) -> str:
        return in_a_fork(lambda: module.train(way, work / name / "saved", cut), work / name)

    try:
        whole = run("whole", 0)
        if run("again", 0) != whole:
            return {"bits": dict.fromkeys(CUTS, "not repeatable")}
        found = {}
        for name, cut in CUTS.items():
            run(name, cut)
            found[name] = "equal" if run(name, RESUME) == whole else "different"
        return {"bits": found, "package": framework, "version": importlib.import_module(framework).__version__}
    finally:
        shutil.rmtree(work, ignore_errors=True)


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Pictures of 8 by 8 with one channel at the end, and what they show."""
    with gzip.open(DATA, "rt") as file:
        rows = np.array(list(csv.reader(file)), np.int64)[:SAMPLES]
    return (rows[:, :64].reshape(-1, 8, 8, 1) / 16).astype(np.float32), rows[:, 64].astype(np.int32)


def digest(arrays: Iterable[Any]) -> str:
    total = hashlib.sha256()
    for array in arrays:
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()
