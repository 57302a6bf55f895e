"""Makes docs/studies/checkpoints.md and its charts, and section 1 of docs/studies/papers.md, from the committed results.

    python study/checkpoints/page.py [RESULTS]     of other results: prints the page of these
    python study/checkpoints/page.py --claims      prints the claims and what was found, as JSON, and writes nothing

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
ON_A_GPU = HERE.parents[1] / "bench/results/gpu_bench_rivals_h200.json"
KINDS = {"ext2/ext3": "ext2, ext3 or ext4"}  # statfs cannot tell them apart; older results have its word
PAPERS = Section.made_by(DOCS / "studies/papers.md", "study/checkpoints/page.py")
TABLES = {"crash": tables.crash_table, "formats": tables.formats_table, "without": tables.without_table,
          "cost": tables.cost_table, "restart": tables.restart_table, "bits": tables.bits_table,
          "flips": tables.flips_table, "matrix": tables.matrix}  # fmt: skip


def make_tables(found: Result) -> dict[str, tables.Table]:
    cells = found["cells"]
    return {name: make(cells) for name, make in TABLES.items()} | {
        "scale": tables.scale_table(cells, found["machine"]["cores"])}  # fmt: skip


def make_page(found: Result) -> str:
    cells = found["cells"]
    parts = {name: table(*made) for name, made in make_tables(found).items()}
    charts = {f"{name}_chart": f"![{name}](../images/study_{name}.svg)" if make(cells) else "Not measured yet."
              for name, make in CHARTS.items()}  # fmt: skip
    return TEMPLATE.read_text().format(
        machine=name_of(found["machine"]), device=device(found), busy=busy(found), gpu=on_a_gpu(),
        versions=", ".join(versions(cells)),
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
    return (f"The disk alone ({KINDS.get(raw['files'], raw['files'])}) writes {raw['write']:.2f} GB/s and reads "
            f"{raw['read']:.2f} GB/s." if raw else "")  # fmt: skip


def on_a_gpu() -> str:
    """What a save adds to a training on a GPU, which bench/device/gpu_bench.py has measured."""
    figures = json.loads(ON_A_GPU.read_text())
    told = [f"{name.removesuffix(', copy inside the GPU')} {milliseconds(one['save_added_ms'])}"
            for name, one in figures.items() if isinstance(one, dict) and "save_added_ms" in one]  # fmt: skip
    return (f"On one {figures['device']}, a save of {figures['bytes'] / 1e9:.2f} GB adds to the training of a GPT: "
            f"{'; '.join(told)} ([its file](../../bench/results/{ON_A_GPU.name})).")


def milliseconds(seen: list[float]) -> str:
    return "{:,.0f} ms ({:,.0f} to {:,.0f})".format(*seen)


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
    if words == ("--claims",):
        print(json.dumps([[claim, found] for (claim, *_), found in claims(json.loads(RESULTS.read_text())["cells"])]))
        return
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
