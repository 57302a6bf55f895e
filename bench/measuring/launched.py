"""Jobs that a bench runs under `holdfast launch`. This imports neither Holdfast nor torch."""

import os
import subprocess
import sys

# torch first: on some machines it does not load after another library of C++.
_LAUNCH = "import runpy, torch; runpy.run_module('holdfast.launch', run_name='__main__')"


def launch(*words: object, environment: dict[str, str] | None = None, seconds: float = 240) -> tuple[int, str]:
    """Runs `holdfast launch` with these words; returns its exit code and what it and its ranks have said."""
    done = subprocess.run([sys.executable, "-c", _LAUNCH, *map(str, words)], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env=os.environ | (environment or {}), timeout=seconds,
                          check=False)  # fmt: skip
    return done.returncode, done.stdout
