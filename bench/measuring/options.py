"""The options that most benchmarks have, each described once."""

import argparse
from pathlib import Path
from typing import Any

USUAL: dict[str, dict[str, Any]] = {
    "bytes": {"type": int, "help": "the size of the state"},
    "rounds": {"type": int, "help": "how often each way is measured"},
    "folder": {"type": Path, "help": "where a temporary folder for files is made"},
    "json": {"type": Path, "help": "a file to which the figures are written, too"},
}


def parser(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """A parser with the usual options that are named, with these defaults."""
    made = argparse.ArgumentParser(description=description,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        made.add_argument(f"--{name}", default=default, **USUAL[name])
    return made
