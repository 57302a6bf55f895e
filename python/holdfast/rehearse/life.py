"""One life of a rehearsed training: from the start of its command to its end."""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.rehearse import process_tree
from holdfast.rehearse.plan import VARIABLE, Plan, records_folder
from holdfast.rehearse.records import LifeRecords

_LOOK = 0.02  # seconds between two looks at the records
_OTHERS = 60.0  # seconds that the first rank that waits is left waiting for the others

Start = Callable[[Sequence[str], Path, dict[str, str]], subprocess.Popen]


class Failed(Exception):
    """The command does not do what a rehearsal needs. `code` is the exit code of `holdfast`."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class Life:
    """How a life went."""

    records: LifeRecords
    seconds: float
    code: int | None  # the exit code of a command that has ended by itself; None if it was ended
    log: Path

    @property
    def last_words(self) -> str:
        """The error that the command printed, or else its last line."""
        lines = self.log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"]
        traces = [k for k, line in enumerate(lines) if line.startswith("Traceback (most recent")]
        behind = lines[traces[-1] + 1:] if traces else []
        error = next((line for line in behind if line[:1].isalpha()), lines[-1])
        return error.strip()[:300]

    def check_not_failed(self, what: str) -> None:
        """Failed, with the last line that it printed, if the command has ended with an error."""
        if self.code:
            raise Failed(f"{what}: the command failed with exit code {self.code}: "
                         f"{self.last_words} (all that it printed: {self.log})")


def live(command: Sequence[str], folder: Path, plan: Plan, tell: Callable[[int], None],
         start: Start = process_tree.start) -> Life:
    """Runs the command until all its ranks wait to be ended, or until it ends by itself.

    Ends all its processes in any case, also after Ctrl-C. `tell` gets the number of steps so far.
    """
    plan.write(folder)
    own = records_folder(folder, plan.life)
    part = None if plan.end is None else plan.part
    records, log, began = LifeRecords(own, part), own / "log.txt", time.monotonic()
    process = start(command, log, {VARIABLE: str(folder)})
    try:
        code = _watch(process, records, tell)
    finally:
        process_tree.end(process)
    records.look()
    return Life(records, time.monotonic() - began, code, log)


def _watch(process: subprocess.Popen, records: LifeRecords, tell: Callable[[int], None]
           ) -> int | None:
    """The exit code of a command that has ended by itself; None when all ranks wait."""
    waits_since = None
    while (code := process.poll()) is None:
        records.look()
        tell(len(records.numbers))
        if records.any_waits:
            waits_since = waits_since or time.monotonic()
            if records.all_wait or time.monotonic() - waits_since > _OTHERS:
                return None
        time.sleep(_LOOK)
    return code
