"""What one life of a rehearsed training is to do, and where it writes what it did.

A rehearsal runs the user's command several times. The runs that begin anew are sequences; after a
kill, the next life of a sequence resumes. HOLDFAST_REHEARSAL names the folder of a sequence:

    plan.json               the plan of the life that runs
    runs/                   what the script saves with Holdfast
    life-2/rank-0.jsonl     the records of a rank in its second life
    life-2/log.txt          what the command printed in it
"""

import json
import os
from dataclasses import asdict, dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

VARIABLE = "HOLDFAST_REHEARSAL"

BEFORE_UPDATE = "between forward and update"
AFTER_UPDATE = "behind the update"
AFTER_SAVE = "behind save()"


@dataclass(frozen=True)
class Kill:
    """The place in which a life is killed."""

    after: int  # the step that is saved before; the next one is not completed
    where: str  # BEFORE_UPDATE, AFTER_UPDATE or AFTER_SAVE


@dataclass(frozen=True)
class Plan:
    """What the processes of one life do."""

    life: int
    supervisor: int  # the process that watches the life; it ends if that process is gone
    steps: int  # after so many steps the life waits to be ended ...
    end: int | None = None  # ... or after this one, if its number is known
    calls: int = 1  # ... when it was called so often with that number (micro-batches may share one)
    part: int = 0  # which Checkpointer of the script makes these steps, in the order of their runs
    kill: Kill | None = None
    alone: int | None = None  # the rank that is killed alone, if not all of them are

    def write(self, folder: Path) -> None:
        """Makes this the plan of the next life of a sequence."""
        records_folder(folder, self.life).mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> "Plan":
        """The plan of the life that runs."""
        found = json.loads((folder / "plan.json").read_text())
        kill = found.pop("kill")
        return cls(**found, kill=None if kill is None else Kill(**kill))


def records_folder(folder: Path, life: int) -> Path:
    """The folder into which the processes of a life write their records."""
    return folder / f"life-{life}"


def places(run: str, tiers: Any, handover: Any = False) -> tuple[str, Any, Any]:
    """Where a run is saved: as given, or in the folder of a rehearsal and nowhere else."""
    return (rehearsed_run(run), (), False) if VARIABLE in os.environ else (run, tiers, handover)


def place_to_read(path: str | PathLike[str]) -> str | PathLike[str]:
    """The path to read that run from: its copy in a rehearsal, if the rehearsed script has made one."""
    own = rehearsed_run(fspath(path))
    return own if VARIABLE in os.environ and os.path.isdir(own) else path


def rehearsed_run(run: str) -> str:
    """The folder in which a rehearsal saves what would go to that run; the run itself without one."""
    folder = os.environ.get(VARIABLE)
    run = run if not folder or "://" in run else os.path.abspath(os.path.expanduser(run))
    if not folder or run.startswith(os.path.join(folder, "runs", "")):
        return run
    name = "".join(one if one.isalnum() or one in "-." else "_" for one in run).strip("_.")
    return os.path.join(folder, "runs", name[-200:] or "run")
