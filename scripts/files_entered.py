"""Which files of the Python package a save and a resume run code of: files_entered.py FOLDER

Prints them as JSON. FOLDER is for the run of a small training. scripts/house.py counts the files.
"""

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import holdfast

PACKAGE = Path(holdfast.__file__).parent


def entered(work: Callable[[], object]) -> list[str]:
    """The files of the package whose functions the work calls, in any thread that it starts."""
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    paths = (Path(name) for name in seen if not name.startswith("<"))
    return sorted(str(path.relative_to(PACKAGE)) for path in paths if path.is_relative_to(PACKAGE))


def training(run: Path) -> holdfast.Checkpointer:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="never")


def main(run: Path) -> None:
    with training(run) as first:
        first.resume()
        first.step(0)
        save = entered(lambda: first.save(0).durable())
    with training(run) as second:
        resume = entered(second.resume)
    print(json.dumps({"save": save, "resume": resume}))


if __name__ == "__main__":
    main(Path(sys.argv[1]) / "run")
