"""The holdfast command of this build, for tests that run it."""

import subprocess
from pathlib import Path

import holdfast

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"


def run(*words):
    """Runs the command with these words, and returns what it said and its exit code."""
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, check=False)


def output_of(*words, code=0):
    """What the command prints, also to standard error, when it exits with this code."""
    done = run(*words)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def saved_steps(folder):
    """The numbers of the steps of a run, in order."""
    return [int(path.name.split("-")[1]) for path in sorted(folder.glob("step-*"))]
