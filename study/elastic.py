"""Makes the tables of docs/studies/elastic.md.

    python study/elastic.py [NAME...] [--program PATH] [--doc]

Prints the tables with these names, or all. With --doc they replace those that stand in the page. The
planned ones are made by `holdfast plan` in about a minute and are the same on every machine; the
measured ones from the figures in bench/results. PATH is the holdfast command, by default
.venv/bin/holdfast.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from elastic_measured import MEASURED
from elastic_tables import FIG_14, FIG_15, LLAMA_70B, LLAMA_405B, changes_table, machines_table
from program import Program, Section, parser

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


def section(name: str) -> Section:
    """Where the table stands in the page."""
    return Section(PAGE, f"<!-- the table {name}, made by study/elastic.py -->\n", END)


def main() -> int:
    made = parser(__doc__)
    made.add_argument("names", nargs="*")
    made.add_argument("--program", type=Path, default=ROOT / ".venv/bin/holdfast")
    made.add_argument("--doc", action="store_true")
    options = made.parse_args()
    known = makers(Program(options.program))
    for name in options.names or known:
        if name not in known:
            made.error(f"{name}: there is no such table; expected one of {', '.join(known)}")
        table = known[name]()
        if options.doc:
            section(name).write(table)
        else:
            print(f"{name}\n\n{table}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
