"""Makes docs/studies/checkpoints.md and its charts, and section 1 of docs/studies/papers.md, from the committed results.

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
import tables  # noqa: E402: it is in a folder of its own
from cells import all_cells  # noqa: E402: as above
from charts import CHARTS, alone  # noqa: E402: as above
from measuring.machines import BUSY, name_of  # noqa: E402: as above
from measuring.pages import Section, table  # noqa: E402: as above
from results import Result  # noqa: E402: as above
from verdicts import advice, claims  # noqa: E402: as above

RESULTS = HERE / "results.json"
TEMPLATE = HERE / "template.md"
DOCS = HERE.parents[1] / "docs"
PAGE = DOCS / "studies/checkpoints.md"
PAPERS = Section.made_by(DOCS / "studies/papers.md", "study/checkpoints/page.py")
TABLES = {"crash": tables.crash_table, "formats": tables.formats_table, "without": tables.without_table,
          "cost": tables.cost_table, "restart": tables.restart_table, "bits": tables.bits_table,
          "flips": tables.flips_table, "scale": tables.scale_table, "matrix": tables.matrix}  # fmt: skip


def make_page(found: Result) -> str:
    cells = found["cells"]
    parts = {name: table(*make(cells)) for name, make in TABLES.items()}
    charts = {f"{name}_chart": f"![{name}](../images/study_{name}.svg)" if make(cells) else "Not measured yet."
              for name, make in CHARTS.items()}  # fmt: skip
    return TEMPLATE.read_text().format(
        machine=name_of(found["machine"]), device=device(found), busy=busy(found), versions=", ".join(versions(cells)),
        users="\n".join(f"- {text}" for text in advice(cells, "users")),
        developers="\n".join(f"- {text}" for text in advice(cells, "developers")), **parts, **charts)  # fmt: skip


def make_charts(found: Result) -> dict[Path, str]:
    return {DOCS / f"images/study_{name}.svg": alone(svg)
            for name, make in CHARTS.items() if (svg := make(found["cells"]))}  # fmt: skip


def make_claims(found: Result) -> str:
    rows = [[*words, verdict] for words, verdict in claims(found["cells"])]
    return "\n" + table(["claim", "the command that shows it", "published figure", "ours"], rows) + "\n\n"


def device(found: Result) -> str:
    raw = found.get("device")
    return (f"The disk alone ({raw['files']}) writes {raw['write']:.2f} GB/s and reads {raw['read']:.2f} GB/s."
            if raw else "")  # fmt: skip


def busy(found: Result) -> str:
    """Which times are too long, because the machine had other work."""
    cores = found["machine"]["cores"]
    names = [name for name, cell in sorted(found["cells"].items()) if cell.get("load", 0) > BUSY * cores]
    return ("The machine was busy with other work while these were measured, so that their times are too long: "
            f"{', '.join(names)}." if names else "")  # fmt: skip


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
        return
    found = json.loads(RESULTS.read_text())
    PAGE.write_text(make_page(found))
    PAPERS.write(make_claims(found))
    for path, svg in make_charts(found).items():
        path.write_text(svg)


if __name__ == "__main__":
    main(*sys.argv[1:])
