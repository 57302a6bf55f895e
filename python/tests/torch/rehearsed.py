"""Rehearses training scripts in forked processes, in which torch is already imported.

    found = rehearse(script, tmp_path)        # what `holdfast rehearse -- python script` would print
    found.code, found.text, found.json["exact"]

`mend` is a statement that is executed before the script, to take a part of Holdfast out.
"""

import atexit
import contextlib
import functools
import json
import os
import pickle
import runpy
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ranks
from idiom import FOLDER

from holdfast.rehearse import process_tree
from holdfast.rehearse.life import Failed
from holdfast.rehearse.plan import Plan
from holdfast.rehearse.rehearsal import Outcome, Rehearsal
from holdfast.rehearse.report import to_json, to_text


@dataclass
class Found:
    """What a rehearsal has printed, and its exit code."""

    code: int
    text: str
    json: dict[str, Any]


def rehearse(script, tmp_path, *, steps=10, at=(), mend="", arguments=()):
    """Rehearses a script: a path, or its text."""
    if "\n" in str(script):
        path = tmp_path / "script.py"
        path.write_text(script)
        script = path
    folder = tmp_path / "rehearsal"
    process = ranks.start(_rehearse, [str(script), *arguments], str(folder), steps, list(at), mend)
    code = process.wait(300)
    text = Path(f"{folder}.txt").read_text() if Path(f"{folder}.txt").exists() else ""
    found = Path(f"{folder}.json")
    return Found(code, text, json.loads(found.read_text()) if found.exists() else {})


def _rehearse(command, folder, steps, at, mend):
    """Runs in a process of its own, because it ends all processes below it."""
    process_tree.adopt_orphans()
    try:
        outcome = Rehearsal(command, Path(folder), steps, at,
                            start=functools.partial(_fork, mend)).run()
    except Failed as error:
        Path(f"{folder}.txt").write_text(str(error))
        return error.code
    Path(f"{folder}.txt").write_text(to_text(outcome))
    Path(f"{folder}.json").write_text(to_json(outcome, command))
    return 0 if outcome.is_exact else 1


def rehearse_alone(command, tmp_path, steps=8):
    """The undisturbed life of a job of `holdfast launch`, and one in which one rank is killed.

    Returns the kill, how every step of every rank compares, and what the job has said.
    """
    folder = tmp_path / "rehearsal"
    assert ranks.start(_rehearse_alone, [str(one) for one in command], str(folder), steps).wait(300) == 0
    (log,) = (folder / "alone").rglob("log.txt")
    return *pickle.loads(Path(f"{folder}.pickle").read_bytes()), log.read_text()


def _rehearse_alone(command, folder, steps):
    process_tree.adopt_orphans()
    rehearsal = Rehearsal(command, Path(folder), steps)
    golden = rehearsal._life("undisturbed", "", Plan(1, os.getpid(), steps)).records
    outcome = Outcome(steps, 0.0)
    rehearsal._kill_one(golden, outcome, set())
    (killed,) = outcome.kills
    died = [str(one.name) for one in Path(folder).rglob("*.killed")]
    Path(f"{folder}.pickle").write_bytes(pickle.dumps((died, killed.compared_to, killed.difference)))
    return 0


class _Forked:
    """A forked process, with the calls of subprocess.Popen that a rehearsal needs."""

    def __init__(self, pid):
        self._pid, self._code = pid, None

    def poll(self):
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def kill(self):
        if self.poll() is None:
            os.kill(self._pid, signal.SIGKILL)

    def wait(self):
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def _fork(mend, command, log, variables):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            os.environ.update(variables)
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = _run(command, mend)
        finally:
            os._exit(code)
    return _Forked(pid)


def _run(command, mend):
    exec(mend, {})
    sys.argv = command
    sys.path.insert(0, str(Path(command[0]).parent))
    code = 0
    try:
        runpy.run_path(command[0], run_name="__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def rehearse_idiom(name, tmp_path, mend="", **options):
    """Rehearses a script of the folder `idioms`."""
    run = f"import idiom; idiom.RUN = {str(tmp_path / 'idiom')!r}\n"
    return rehearse(FOLDER / f"{name}.py", tmp_path, mend=run + mend, **options)
