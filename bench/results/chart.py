"""Makes the chart, the table and the sentences about them in README.md from the figures in this folder.

    python3 bench/results/chart.py            writes the two SVG files and the section of README.md
    python3 bench/results/chart.py --check    writes nothing; exits with 1 if one of them differs

The figures of the chart come from one file, gpu_bench_rivals_h200.json: one run on one machine, in which
blocks of steps with a save and without took turns. An engine that failed there has a row that says so, and one
that has no figure is named. Runs on further machines of this kind stand in
gpu_bench_rivals_*_h200.json. Where the interval of one of them does not overlap with that of the first, the
table has the range over the machines instead of the interval.
"""

import json
import statistics
import sys
from collections.abc import Iterable
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))
from measuring import pages  # noqa: E402: it is beside this folder

ROOT = FOLDER.parents[1]
README = pages.Section.made_by(ROOT / "README.md", "bench/results/chart.py")

TITLE = "Time that one save of 4.03 GB adds to a training on one H200"
PICTURE = '''<picture>
  <source media="(prefers-color-scheme: dark)" srcset="docs/images/save_time_dark.svg">
  <img src="docs/images/save_time_light.svg" width="720" alt="Time that one save adds to training">
</picture>'''
FIGURES = "gpu_bench_rivals_h200.json"
# The name in the chart, and the name in the file.
LIBRARIES = [
    ("Holdfast", "Holdfast, copy inside the GPU"),
    ("torch_checkpointing", "torch_checkpointing"),
    ("NVRx, torch.save", "NVRx async torch.save"),
    ("DCP, DefaultStager, process", "DCP async_save, DefaultStager, process"),
    ("DCP, DefaultStager", "DCP async_save, DefaultStager"),
    ("DCP async_save", "DCP async_save"),
    ("safetensors", "safetensors"),
    ("torch.save", "torch.save"),
]
COLUMNS = ["", "a save adds (95 % interval)", "the first save adds", "on disk after"]

WIDTH, LEFT, BAR, GAP, TOP = 720, 205, 22, 14, 52  # pixels
COLOURS = {  # text, muted text, Holdfast's bar, other bars
    "light": ("#1f2328", "#59636e", "#0969da", "#afb8c1"),
    "dark": ("#f0f6fc", "#9198a1", "#4493f8", "#656c76"),
}


def read() -> dict:
    return json.loads((FOLDER / FIGURES).read_text())


def further() -> list[dict]:
    """The runs on further machines."""
    return [json.loads(path.read_text()) for path in sorted(FOLDER.glob("gpu_bench_rivals_*_h200.json"))]


def measured() -> list[tuple[str, str]]:
    figures = read()
    return [(shown, name) for shown, name in LIBRARIES if "save_added_ms" in figures.get(name, {})]


def failed() -> list[tuple[str, str]]:
    """What was tried and did not work, and why."""
    figures = read()
    return [(shown, figures[name]["failed"]) for shown, name in LIBRARIES if "failed" in figures.get(name, {})]


def missing() -> list[str]:
    figures = read()
    return [shown for shown, name in LIBRARIES if name not in figures]


def over_machines(name: str, key: str) -> str:
    """A figure with its interval, or with the range over the machines if they do not agree."""
    seen = [run[name][key] for run in (read(), *further()) if name in run]
    spans = [one[1:3] if isinstance(one, list) else [one, one] for one in seen]
    if max(low for low, _ in spans) <= min(high for _, high in spans) or len(seen) == 1:
        return milliseconds(seen[0])
    middles = [one[0] if isinstance(one, list) else one for one in seen]
    return f"{milliseconds(min(middles)).removesuffix(' ms')} to {milliseconds(max(middles))}"


def milliseconds(value: float | list[float]) -> str:
    """A figure; one that has an interval is shown with it."""
    if isinstance(value, list):
        middle, low, high, *covers = value
        digits = ".1f" if abs(high) < 10 else ",.0f"
        if covers == [0.0]:  # it was measured once
            return f"{middle:{digits}} ms"
        return f"{middle:{digits}} ms ({low:{digits}} to {high:{digits}})"
    return f"{value:.1f} ms" if abs(value) < 10 else f"{value:,.0f} ms"


def table() -> str:
    figures = read()
    rows = [[shown, over_machines(name, "save_added_ms"), over_machines(name, "first_added_ms"),
             f"{figures[name]['durable_s']:.1f} s"] for shown, name in measured()]  # fmt: skip
    return pages.table(COLUMNS, [*rows, *([shown, f"failed: {why}", "", ""] for shown, why in failed())]) + "\n"


def opening() -> str:
    figures = read()
    ours = figures[LIBRARIES[0][1]]["save_added_ms"]
    rounds = figures[LIBRARIES[0][1]]["rounds_ms"]
    bare = statistics.median(one - other for one, other in zip(rounds["plain"], rounds["bare"], strict=True))
    return (f"Training goes on while a save is written. A save of {figures['bytes'] / 1e9:.2f} GB adds "
            f"{milliseconds(ours[0])},\nif the GPU has room for a copy of the state; a bare loop of copies and writes "
            f"adds {milliseconds(bare)}:")  # fmt: skip


def rounds() -> str:
    """How the table was measured."""
    figures = read()
    counts = {shown: len(figures[name]["rounds_ms"]["save"]) for shown, name in measured()}
    firsts = {len(figures[name]["firsts_ms"]) for _, name in measured()}
    told = (f"A GPT with 336 million parameters and AdamW on one {figures['device']}: blocks of 30 steps with and\n"
            f"without a save, in turns; {counts_text(counts)};\n"
            f"{' or '.join(map(str, sorted(firsts)))} first saves each. {machines_text(name for _, name in measured())}\n")  # fmt: skip
    if further():
        told += f"Ranges without parentheses are over {1 + len(further())} machines.\n"
    if absent := missing():
        told += f"Not measured: {'; '.join(absent)}.\n"
    return told + "[bench/results](bench/results/README.md) has every figure."


def counts_text(counts: dict[str, int]) -> str:
    """ "11 rounds of each, 6 of safetensors": most of them have the first number """
    usual = statistics.mode(counts.values())
    others = [f"{count} of {name}" for name, count in counts.items() if count != usual]
    return ", ".join([f"{usual} rounds of each", *others])


def machines_text(names: Iterable[str]) -> str:
    """Whether one machine has measured all of them: each names the one that did (bench/measuring/machines.py)."""
    figures = read()
    own = {figures[name].get("identity", "") for name in names}
    if "" in own:
        return "Their machines were not kept."
    return "One machine measured all." if len(own) == 1 else f"{len(own)} machines of this kind measured them."


def section() -> str:
    """What stands in README.md."""
    return f"\n{opening()}\n\n{PICTURE}\n\n{table()}\n{rounds()}\n\n"


def text(x: float, y: float, words: str, colour: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}"{more}>{escape(words)}</text>'


def chart(mode: str) -> str:
    """An SVG with one bar for each library. The lengths are in proportion to the times."""
    ink, muted, ours, others = COLOURS[mode]
    figures = read()
    times = [figures[name]["save_added_ms"][0] for _, name in measured()]
    scale = (WIDTH - LEFT - 90) / max(times)
    height = TOP + len(times) * (BAR + GAP)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
             f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(TITLE)}" '
             'font-family="-apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="14">',
             text(0, 18, TITLE, ink, ' font-size="16" font-weight="600"'),
             text(0, 38, "shorter is better; the figures are those of the table", muted)]
    for i, ((shown, _), time) in enumerate(zip(measured(), times)):
        y = TOP + i * (BAR + GAP)
        length = max(1.5, time * scale)  # a thinner line could not be seen
        bold = ' font-weight="600"' if i == 0 else ""
        lines += [
            text(LEFT - 10, y + 16, shown, ink, f' text-anchor="end"{bold}'),
            f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="{BAR}" rx="1" '
            f'fill="{ours if i == 0 else others}"/>',
            text(round(LEFT + length + 8), y + 16, milliseconds(time), ink, bold),
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def wanted() -> dict[Path, str]:
    """Every file that this script makes, with its text."""
    charts = {ROOT / "docs/images" / f"save_time_{mode}.svg": chart(mode) for mode in COLOURS}
    return charts | {README.page: README.written(section())}


def main(arguments: list[str]) -> int:
    different = [path for path, made in wanted().items()
                 if not path.exists() or path.read_text() != made]
    if arguments == ["--check"]:
        for path in different:
            print(f"{path.relative_to(ROOT)}: is not what bench/results/chart.py makes; "
                  "run it and commit what it writes", file=sys.stderr)
        return 1 if different else 0
    for path, made in wanted().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
