"""Measures cells with one framework, which is imported once: PYTHON worker.py FRAMEWORK WORK

Reads one cell a line from standard input, and prints one line of JSON for each. Every measurement is forked from
this process.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import crash
from engine import Engine
from recorder import NotPermitted


def measure(cell: dict[str, Any], engines: dict[str, Engine], work: Path) -> dict[str, Any]:
    engine = engines[cell["engine"]]
    if engine.why_not:
        return {"not_run": engine.why_not}
    try:
        found = crash.measure(engine, work, cell["most_deaths"])
        return found | {"package": engine.package, "version": importlib.import_module(engine.package).__version__}
    except NotPermitted as error:
        return {"not_run": f"not permitted here: {error}"}
    except Exception as error:  # noqa: BLE001: an engine may fail in any way
        return {"failed": f"{type(error).__name__}: {error}"}


def main(framework: str, work: str) -> None:
    engines = {engine.name: engine for engine in importlib.import_module(f"{framework}_engines").ENGINES}
    for line in sys.stdin:
        cell = json.loads(line)
        print(json.dumps(measure(cell, engines, Path(work) / cell["engine"])), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
