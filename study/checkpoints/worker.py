"""Measures cells with one framework, which is imported once: PYTHON worker.py FRAMEWORK

Reads one cell a line from standard input, and prints one line of JSON for each. Every measurement is forked from
this process.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))  # its `measuring` needs no framework
import bits  # noqa: E402: formats and restart need the path
import cost  # noqa: E402: as above
import crash  # noqa: E402: as above
import flips  # noqa: E402: as above
import formats  # noqa: E402: as above
import restart  # noqa: E402: as above
import scale  # noqa: E402: as above
from engine import Engine  # noqa: E402: as above
from recorder import NotPermitted  # noqa: E402: as above


MEASURES = {"crash": crash.measure, "formats": formats.measure, "cost": cost.measure, "restart": restart.measure,
            "flips": flips.measure, "scale": scale.measure}  # fmt: skip


def measure(cell: dict[str, Any], engines: dict[str, Engine]) -> dict[str, Any]:
    work = Path(cell["work"])
    try:
        if cell["experiment"] == "bits":
            return bits.measure(cell["engine"], work, **cell["options"])
        engine = engines[cell["engine"]]
        if engine.why_not:
            return {"not_run": engine.why_not}
        found = MEASURES[cell["experiment"]](engine, work, **cell["options"])
        return found | {"package": engine.package, "version": importlib.import_module(engine.package).__version__}
    except NotPermitted as error:
        return {"not_run": f"not permitted here: {error}"}
    except Exception as error:  # noqa: BLE001: an engine may fail in any way
        return {"failed": f"{type(error).__name__}: {error}"}


def main(framework: str) -> None:
    engines = {engine.name: engine for engine in importlib.import_module(f"{framework}_engines").ENGINES}
    for line in sys.stdin:
        print(json.dumps(measure(json.loads(line), engines)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
