"""Makes docs/studies/checkpoints.md from the committed results.

    python study/checkpoints/page.py [RESULTS]     of other results: prints the page of these

The text stands in template.md beside this script. Nothing is measured here: a test makes the page again and
compares. A rule of verdicts.py that has no data says nothing.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "bench"), str(HERE)]
from cells import all_cells  # noqa: E402: it is in a folder of its own
from measuring.machines import name_of  # noqa: E402: as above
from measuring.pages import table  # noqa: E402: as above
from results import Result, tell_verdicts  # noqa: E402: as above
from verdicts import advice  # noqa: E402: as above

RESULTS = HERE / "results.json"
TEMPLATE = HERE / "template.md"
PAGE = HERE.parents[1] / "docs/studies/checkpoints.md"
KINDS = {"kill": "killed at each call", "torn": "a write torn", "power": "power cut", "full": "disk full",
         "rank": "one of two ranks lost"}  # fmt: skip


def make_page(found: Result) -> str:
    return TEMPLATE.read_text().format(
        machine=name_of(found["machine"]), crash=crash_table(found["cells"]),
        users="\n".join(f"- {text}" for text in advice(found["cells"], "users")),
        developers="\n".join(f"- {text}" for text in advice(found["cells"], "developers")),
        versions=", ".join(versions(found["cells"])))  # fmt: skip


def crash_table(cells: dict[str, Result]) -> str:
    rows = []
    for cell in all_cells():
        result = cells.get(cell.name, {"not_run": "nobody has run it"})
        words = [word for word in ("not_run", "failed") if word in result]
        told = ([f"{words[0].replace('_', ' ')}: {result[words[0]]}"] + [""] * (len(KINDS) - 1) if words else
                [tell_verdicts(result[kind]) if kind in result else "–" for kind in KINDS])  # fmt: skip
        rows.append([f"`{cell.engine}`", *told])
    return table(["engine", *KINDS.values()], rows)


def versions(cells: dict[str, Result]) -> Iterator[str]:
    """Each framework with its version, once."""
    seen = set()
    for cell in all_cells():
        package, version = cells.get(cell.name, {}).get("package"), cells.get(cell.name, {}).get("version")
        if package and package not in seen:
            seen.add(package)
            yield f"{package} {version}"


def main(*words: str) -> None:
    if words:
        print(make_page(json.loads(Path(words[0]).read_text())), end="")
    else:
        PAGE.write_text(make_page(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main(*sys.argv[1:])
