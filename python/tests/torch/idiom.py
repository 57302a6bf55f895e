"""What the training scripts of the folder `idioms` share, and what runs them.

An idiom is a way in which people write a training. Each script is what a user would write, and its
docstring says in its first line what the idiom is, and in its last line what Holdfast does with it:

    exact              it resumes bit for bit, and nothing is printed
    exact, says: TEXT  it resumes bit for bit, and TEXT stands in what a process printed
    says: TEXT         it may resume with other bits, and TEXT stands in what a process printed
    refuses: TEXT      a process ends with an error of one sentence that has TEXT
    silent             it resumes with other bits, and nothing is printed: only a rehearsal tells

A script begins with `import idiom`, saves into idiom.RUN, makes idiom.STEPS steps, and calls
idiom.made(step, loss) for each of them just before ck.step(step). There it may be killed.
"""

import ast
import atexit
import contextlib
import logging
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

import ranks
import torch

import holdfast.torch.checkpointer
import holdfast.torch.data  # noqa: F401  (both are imported here once, before the fork)

FOLDER = Path(__file__).parent / "idioms"
STEPS = 14
KILLS = (4, 9)  # the steps in which a disturbed training is killed, one for each life

RUN = ""  # where the script saves; set in the process that runs it
_kill_at: int | None = None


def made(step, loss, saved=None, run=None):
    """Notes the loss of a step, in the place where a killed training is killed.

    A script that does not save each step says which one it has saved last, and one with several runs
    says in which of them.
    """
    value = loss.item() if isinstance(loss, torch.Tensor) else float(loss)
    with open(f"{RUN}.losses", "a") as file:
        file.write(f"{step} {value.hex()}\n")
    if _kill_at is not None and step >= _kill_at:
        _wait_for_save(run or RUN, step - 1 if saved is None else saved)
        os.killpg(0, signal.SIGKILL)  # the workers of its loaders, too


def _wait_for_save(run, step):
    """Waits until that step is durable: a start from nothing would show nothing."""
    end = time.monotonic() + 10
    while not Path(run, f"step-{step:08d}", "manifest.json").exists():
        if time.monotonic() > end:
            raise TimeoutError(f"step {step} did not become durable before the kill")
        time.sleep(0.002)


@dataclass
class Seen:
    """What a training printed, how its last process ended, and its losses by step."""

    printed: str
    code: int
    losses: dict[int, str]
    contradictions: list[str]  # steps that were made twice with two losses


def expectation(name):
    """(idiom, what Holdfast does with it) of a script."""
    lines = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text())).splitlines()
    return lines[0], lines[-1]


def train(name, run, kills=()):
    """Runs a script until it ends, in a new process after each kill."""
    for kill in [*kills, None]:
        process = ranks.start(_live, name, str(run), kill)
        try:
            code = process.wait(90)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"{name} does not end; it printed:\n{Path(f'{run}.log').read_text()}") from None
        if code != -signal.SIGKILL:
            break
    printed = Path(f"{run}.log").read_text()
    return Seen(printed, code, *_losses(run))


def _losses(run):
    found, contradictions = {}, []
    with contextlib.suppress(FileNotFoundError):
        for line in Path(f"{run}.losses").read_text().splitlines():
            step, loss = line.split()
            if found.setdefault(int(step), loss) != loss:
                contradictions.append(f"step {step}: {found[int(step)]} and {loss}")
    return found, contradictions


def _show_warnings():
    """Prints warnings as in a plain process: pytest has set Python to collect them."""
    warnings.resetwarnings()
    for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", kind)
    warnings.showwarning = lambda *args: sys.stderr.write(warnings.formatwarning(*args[:4]))


def _live(name, run, kill):
    """Runs the script in this process, which was forked for it."""
    global RUN, _kill_at
    with contextlib.suppress(PermissionError):
        os.setsid()
    log = os.open(f"{run}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    _show_warnings()
    logging.getLogger().handlers.clear()  # those of pytest would take the warnings
    RUN, _kill_at = run, kill
    torch.set_num_threads(1)  # several tests run at once, and threads that wait for each other take long then
    os.chdir(Path(run).parent)
    script = FOLDER / f"{name}.py"
    sys.argv = [str(script)]
    sys.path.insert(0, str(FOLDER))
    code = 0
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code
