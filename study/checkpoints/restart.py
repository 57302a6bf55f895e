"""E5: how long a restarted training waits for its first step.

The files are dropped from the page cache; then a new process imports the framework, loads ResNet50 with its momentum, and
makes the first step of the small training of bits_FRAMEWORK.py:

    PYTHON restart.py FRAMEWORK ENGINE FOLDER MODEL OPTIMIZER      prints the seconds of each part as JSON
"""

import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def measure(engine: Any, work: Path, framework: str, rounds: int, state: Sequence[str] = ()) -> dict[str, Any]:
    import models
    import states
    from forks import in_a_fork
    from measuring.disk import forget, sync

    folder = work / "saved"

    def save() -> None:
        values = models.make(*(state or models.TIMED))
        states.use(values)
        engine.save(1, engine.hold(values), folder)
        sync(folder)

    try:
        folder.mkdir(parents=True)
        in_a_fork(save, work)
        found: list[dict[str, float]] = []
        for _ in range(rounds):
            forget(folder)
            done = subprocess.run([sys.executable, __file__, framework, engine.name, folder, *(state or models.TIMED)], check=False,
                                  capture_output=True, text=True, timeout=600)  # fmt: skip
            if done.returncode:
                return {"failed": (done.stderr.strip().splitlines() or ["no word"])[-1][:200]}
            found.append(json.loads(done.stdout.splitlines()[-1]))
        return {"seconds": {name: [one[name] for one in found] for name in found[0]}}
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main(framework: str, name: str, folder: str, *state: str) -> None:
    started = time.perf_counter()
    engines = {engine.name: engine for engine in importlib.import_module(f"{framework}_engines").ENGINES}
    if name == "holdfast":
        importlib.import_module("holdfast")
    imported = time.perf_counter()
    import models
    import states

    states.SHAPES.clear()
    states.SHAPES.update(models.shapes_with(*state))
    began = time.perf_counter()
    assert engines[name].load(Path(folder)), "nothing was loaded"
    found = {"import": imported - started, "load": time.perf_counter() - began}
    try:
        training = importlib.import_module(f"bits_{framework}")
    except ModuleNotFoundError:  # no training stands for this framework
        training = None
    if training:
        began = time.perf_counter()
        training.first_step()
        found["step"] = time.perf_counter() - began
    print(json.dumps(found), flush=True)
    os._exit(0)  # what a framework does at its end is no part of a restart


if __name__ == "__main__":
    main(*sys.argv[1:])
