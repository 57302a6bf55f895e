"""Makes the tables of docs/studies/elastic.md.

    python study/elastic.py [NAME...] [--program PATH] [--doc]

Prints the tables with these names, or all. With --doc they replace those that stand in the page. The
planned ones are made by `holdfast plan` in about a minute and are the same on every machine; the
measured ones from the figures in bench/results. PATH is the holdfast command, by default
.venv/bin/holdfast.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from elastic_measured import MEASURED
from elastic_tables import FIG_14, FIG_15, LLAMA_70B, LLAMA_405B, changes_table, machines_table
from program import Program

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/studies/elastic.md"
RESULTS = ROOT / "bench/results"
END = "<!-- end of the table -->\n"


def makers(program: Program) -> dict[str, Callable[[], str]]:
    """What makes each table, by its name."""
    planned = {
        "machines": machines_table,
        "fig-14": partial(changes_table, program, FIG_14, published=True),
        "fig-15": partial(changes_table, program, FIG_15),
        "llama-70b": partial(changes_table, program, LLAMA_70B),
        "llama-405b": partial(changes_table, program, LLAMA_405B),
    }
    return planned | {name: partial(make, RESULTS) for name, make in MEASURED.items()}


def begin(name: str) -> str:
    return f"<!-- the table {name}, made by study/elastic.py -->\n"


def held(name: str, page: str) -> str:
    """The table that stands in the page."""
    before, found, rest = page.partition(begin(name))
    if not found or END not in rest:
        raise SystemExit(f"elastic: the page has no place for the table {name}")
    return rest.partition(END)[0]


def replaced(name: str, table: str, page: str) -> str:
    return page.replace(begin(name) + held(name, page) + END, begin(name) + table + END)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--program", type=Path, default=ROOT / ".venv/bin/holdfast")
    parser.add_argument("--doc", action="store_true")
    options = parser.parse_args()
    known = makers(Program(options.program))
    for name in options.names or known:
        if name not in known:
            parser.error(f"{name}: there is no such table; expected one of {', '.join(known)}")
        made = known[name]()
        if options.doc:
            PAGE.write_text(replaced(name, made, PAGE.read_text()))
        else:
            print(f"{name}\n\n{made}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
