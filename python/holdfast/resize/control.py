"""The folder RUN/control, through which a job that runs is asked for another configuration.

    request-ID.json   what is asked for; written under another name and renamed, so that it is whole
    answer-ID.json    how far it is, by the job: "asked", "waits", "made", "planned" or "refused"
    withdrawn-ID.json the request is not wanted any more
    now.json          the configuration that the job has, its workers, since which step, and how many more
                      workers could get a place in it

All are small JSON objects. A request names the epoch of the job that it is for, so that a job that is
started later does not carry it out.
"""

import contextlib
import json
import os
import secrets
import time
from pathlib import Path
from typing import Any

from holdfast.errors import NotFoundError

_MOST = 1 << 16  # bytes of a request
_OLD = 3600.0  # seconds after which answers are removed


class Control:
    """The folder of one run."""

    def __init__(self, run: str | os.PathLike[str]) -> None:
        self._run = Path(run)
        self._folder = self._run / "control"

    def epoch(self) -> int:
        """The epoch of the job that has the run. NotFoundError if there is none."""
        try:
            owner = json.loads((self._run / "owner.json").read_bytes())
            if not owner["released"] and _lives(owner):
                return int(owner["epoch"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        raise NotFoundError(f"{self._run}: no job has it; expected a run whose training is under way")

    def request(self, **wanted: Any) -> str:
        """Asks the job; returns the id of the request."""
        id = secrets.token_hex(8)
        self._write(f"request-{id}.json", {"id": id, "epoch": self.epoch(), **wanted})
        return id

    def take_back(self, id: str) -> bool:
        """The request is not wanted any more. False if the job has it: its answer says what becomes of it."""
        try:
            (self._folder / f"request-{id}.json").unlink()
        except FileNotFoundError:
            self._write(f"withdrawn-{id}.json", {"id": id})
            return False
        return True

    def withdrawn(self) -> list[str]:
        """The ids of requests that are not wanted any more; once."""
        found = self._paths("withdrawn-")
        for path in found:
            path.unlink(missing_ok=True)
        return [path.name.removeprefix("withdrawn-").removesuffix(".json") for path in found]

    def requests(self) -> list[dict[str, Any]]:
        """Takes the requests that are there, the oldest first; those that are none are dropped."""
        found = []
        for path in sorted(self._paths("request-"), key=_age):
            try:
                with path.open("rb") as file:
                    one = json.loads(file.read(_MOST))
                path.unlink()
                if isinstance(one, dict) and isinstance(one.get("id"), str) and one["id"].isalnum():
                    found.append(one)
            except (OSError, ValueError):
                path.unlink(missing_ok=True)
        return found

    def answer(self, id: str, state: str, **more: Any) -> None:
        """Says how far a request is."""
        for path in self._paths("answer-"):
            if time.time() - _age(path) > _OLD:
                path.unlink(missing_ok=True)
        self._write(f"answer-{id}.json", {"id": id, "state": state, **more})

    def refuse_waiting(self, why: str) -> None:
        """Refuses the requests that are under way: what has taken them is gone."""
        for path in self._paths("answer-"):
            id = path.stem.removeprefix("answer-")
            if (self.read_answer(id) or {}).get("state") in ("asked", "waits"):
                self.answer(id, "refused", why=why)

    def read_answer(self, id: str) -> dict[str, Any] | None:
        """How far it is; None if the job has not said anything yet."""
        return self._read(f"answer-{id}.json") or None

    def note(self, to: str, workers: list[int], step: int | None, spares: int) -> None:
        """Notes the configuration that the job has had since that step; None: since when it was noted.

        `spares` are workers that could get a place in it.
        """
        before = self._read("now.json")
        is_same = (before.get("to"), before.get("workers")) == (to, workers)
        step = before.get("step", 0) if step is None and is_same else step or 0
        self._write("now.json", {"to": to, "workers": workers, "step": step, "spares": spares,
                                 "epoch": self.epoch()})

    def configuration(self) -> dict[str, Any]:
        """What note() has noted last. NotFoundError if the job that has the run has noted nothing."""
        now = self._read("now.json")
        if now.get("epoch") != self.epoch():
            raise NotFoundError(f"{self._run}: its job cannot change its configuration; expected "
                                "holdfast.Elastic, and holdfast launch")
        return now

    def history(self) -> list[dict[str, Any]]:
        """The changes that the run has seen, as the events `resized` in its logs, in their order."""
        found = []
        for path in self._run.joinpath("events").glob("*.jsonl"):
            with contextlib.suppress(OSError), path.open(errors="replace") as file:
                found += [one for line in file if '"resized"' in line and (one := _event_in(line))]
        return sorted(found, key=lambda one: one["wall_ns"])

    def _paths(self, start: str) -> list[Path]:
        try:
            return [one for one in self._folder.iterdir() if one.name.startswith(start)]
        except OSError:
            return []

    def _read(self, name: str) -> dict[str, Any]:
        """What a file says; {} if it is not there, or not whole."""
        try:
            found = json.loads((self._folder / name).read_bytes())
            return found if isinstance(found, dict) else {}
        except (OSError, ValueError):
            return {}

    def _write(self, name: str, value: dict[str, Any]) -> None:
        self._folder.mkdir(exist_ok=True)
        temporary = self._folder / f".{name}.{secrets.token_hex(4)}"
        temporary.write_text(json.dumps(value))
        temporary.rename(self._folder / name)


def _lives(owner: dict[str, Any]) -> bool:
    """False if the process that owns the run was on this machine, and is gone."""
    if owner["boot"] != Path("/proc/sys/kernel/random/boot_id").read_text().strip():
        return True
    try:
        after_name = Path(f"/proc/{owner['pid']}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(after_name[19]) == owner["started"]


def _event_in(line: str) -> dict[str, Any] | None:
    """The event of a line, which may have been cut off by the end of its process."""
    try:
        found = json.loads(line)
        return found if found["event"] == "resized" and "wall_ns" in found else None
    except (ValueError, KeyError, TypeError):
        return None


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
