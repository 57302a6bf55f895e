"""Charts as plain SVG: one bar for each row, in segments. No JavaScript; colours follow the reader's light or dark mode."""

from collections.abc import Sequence
from html import escape
from statistics import median
from typing import NamedTuple

from results import LOUD, added
from states import VERDICTS
from tables import Cells, measured

WIDTH, LEFT, BAR, GAP = 760, 250, 16, 7  # pixels
# Good, middling and bad segments, then the parts of a sum; the page's own colours come first.
STYLE = """
:root{--ink:#1f2328;--muted:#59636e;--back:#fff;--line:#d1d9e0;--good:#0969da;--well:#54aeff;--odd:#bf8700;--bad:#cf222e}
@media(prefers-color-scheme:dark){:root{--ink:#f0f6fc;--muted:#9198a1;--back:#0d1117;--line:#3d444d;--good:#1f6feb;
--well:#79c0ff;--odd:#d29922;--bad:#f85149}}
svg text{font:13px -apple-system,Segoe UI,Helvetica,Arial,sans-serif;fill:var(--ink)}svg .muted{fill:var(--muted)}
svg .head{font-size:15px;font-weight:600}.good{fill:var(--good)}.well{fill:var(--well)}.odd{fill:var(--odd)}
.bad{fill:var(--bad)}
"""
COLOURS = ("good", "well", "odd", "bad")


class Row(NamedTuple):
    name: str
    parts: Sequence[float]  # the lengths of its segments
    told: str  # at its end


def bars(title: str, legend: Sequence[tuple[str, str]], rows: Sequence[Row], below: str = "") -> str:
    """`legend`: the word of each segment, and its colour. Lengths are in proportion; a logarithm would hide what matters."""
    longest = max((sum(row.parts) for row in rows), default=0) or 1
    scale = (WIDTH - LEFT - 190) / longest
    top = 48 if legend else 30
    lines = [_text(0, 16, title, ' class="head"')]
    at = 0.0
    for word, colour in legend:
        lines += [_box(at, 28, 10, colour, 10), _text(at + 14, 38, word, ' class="muted"')]
        at += 30 + 7.2 * len(word)
    for number, row in enumerate(rows):
        y = top + number * (BAR + GAP)
        lines.append(_text(LEFT - 8, y + 13, row.name, ' text-anchor="end"'))
        x = float(LEFT)
        for part, (_, colour) in zip(row.parts, legend or [("", "good")], strict=True):
            if part:
                lines.append(_box(x, y, max(1.0, part * scale), colour))
                x += max(1.0, part * scale)
        lines.append(_text(x + 6, y + 13, row.told, ' class="muted"'))
    height = top + len(rows) * (BAR + GAP) + (20 if below else 4)
    if below:
        lines.append(_text(0, height - 6, below, ' class="muted"'))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
            f'role="img" aria-label="{escape(title)}">\n' + "\n".join(lines) + "\n</svg>")  # fmt: skip


def alone(svg: str) -> str:
    """The same chart as a file of its own."""
    head, _, rest = svg.partition("\n")
    return f"{head}\n<style>{STYLE}</style>\n{rest}\n"


def _text(x: float, y: float, words: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}"{more}>{escape(words)}</text>'


def _box(x: float, y: float, width: float, colour: str, height: int = BAR) -> str:
    return f'<rect class="{colour}" x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height}"/>'


# The charts of this study. None has a row without figures, and one without rows is "".


def crash_chart(cells: Cells) -> str:
    rows = []
    for cell, result in measured(cells, "crash"):
        total = sum(result["kill"].values())
        parts = [result["kill"].get(verdict, 0) / total for verdict in VERDICTS]
        bad = sum(result["kill"].get(verdict, 0) for verdict in LOUD)
        rows.append(Row(cell.engine, _groups(parts), f"{bad} of {total} lose everything" if bad else ""))
    return rows and bars("What a kill at each call of a save leaves", CRASHES, rows) or ""


CRASHES = [("newest", "good"), ("previous", "well"), ("starts anew, or refuses", "odd"), ("lost or wrong", "bad")]


def _groups(parts: Sequence[float]) -> list[float]:
    newest, previous, anew, refuses, *bad = parts
    return [newest, previous, anew + refuses, sum(bad)]


def cost_chart(cells: Cells) -> str:
    rows = [(added(result["blocks"]["10"]), cell.engine) for cell, result in measured(cells, "cost")]
    return rows and bars("Time that a save adds to a training (ResNet50 with momentum, 204.7 MB)", [], [
        Row(name, [max(0.0, one.median)], f"{1e3 * one.median:,.0f} ms ({1e3 * one.low:,.0f} to {1e3 * one.high:,.0f})")
        for one, name in sorted(rows)], "one save every 10 steps; shorter is better") or ""  # fmt: skip


def formats_chart(cells: Cells) -> str:
    rows = [(cell.engine, *(median(result["seconds"][name]) for name in ("synced", "load")))
            for cell, result in measured(cells, "formats") if cell.variant == "resnet50+momentum"]  # fmt: skip
    return rows and bars("Save until it is on the disk, and cold load (ResNet50 with momentum, 204.7 MB)",
                         [("save and sync", "good"), ("cold load", "well")],
                         [Row(name, [synced, load], f"{synced:.2f} + {load:.2f} s") for name, synced, load in
                          sorted(rows, key=lambda row: row[1] + row[2])]) or ""  # fmt: skip


def restart_chart(cells: Cells) -> str:
    parts = ("import", "load", "step")
    rows = [Row(cell.engine, [median(result["seconds"].get(part, [0.0])) for part in parts], "")
            for cell, result in measured(cells, "restart")]  # fmt: skip
    return rows and bars("From the start of a new process to its first step",
                         [("import", "good"), ("cold load", "well"), ("first step", "odd")],
                         [row._replace(told=f"{sum(row.parts):.1f} s") for row in sorted(rows, key=lambda row: sum(row.parts))]
                         ) or ""  # fmt: skip


def flips_chart(cells: Cells) -> str:
    rows = []
    for cell, result in measured(cells, "flips"):
        if found := result.get("tensors"):
            total = sum(found.values())
            good, odd, bad = (sum(found.get(word, 0) for word in words)
                              for words in (("noticed", "harmless"), ("starts anew",), LOUD))  # fmt: skip
            rows.append(Row(cell.engine, [good / total, odd / total, bad / total], f"{good} of {total} noticed"))
    return rows and bars("One bit of a tensor flips in the file", [
        ("noticed", "good"), ("starts anew", "odd"), ("loaded, or a crash", "bad")], rows) or ""  # fmt: skip


def scale_chart(cells: Cells) -> str:
    rows = [Row(f"{cell.engine} {cell.variant}, {count}", [found["bytes"]],
                f"{found['bytes'] / 1e6:,.0f} MB in {found['files']} file{'s' * (found['files'] > 1)}")
            for cell, result in measured(cells, "scale") for count, found in result["ranks"].items()]  # fmt: skip
    return rows and bars("The bytes of a save, by who writes and the number of ranks", [], rows) or ""


CHARTS = {"crash": crash_chart, "cost": cost_chart, "formats": formats_chart, "restart": restart_chart,
          "flips": flips_chart, "scale": scale_chart}  # fmt: skip
