"""Makes one HTML file of the results: python study/checkpoints/report.py RESULTS REPORT

It needs nothing from elsewhere and runs no code: charts are SVG in the file, and each has its table below it.
"""

import json
import re
import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "bench"), str(HERE)]
from charts import CHARTS, STYLE  # noqa: E402: it is in a folder of its own
from measuring.machines import name_of  # noqa: E402: as above
from page import busy, device, make_tables, versions  # noqa: E402: as above
from results import Result  # noqa: E402: as above
from tables import Table  # noqa: E402: as above
from verdicts import advice  # noqa: E402: as above

HEADS = {"cost": "What does a save cost?", "without": "Where does the time go?", "formats": "Formats and sizes",
         "scale": "Several ranks", "bits": "Does it resume with the same bits?", "restart": "How long does a restart take?",
         "crash": "What is left after a crash?", "flips": "Is a flipped bit noticed?", "matrix": "Mechanisms"}  # fmt: skip
PAGE_STYLE = """
body{background:var(--back);color:var(--ink);font:15px/1.5 -apple-system,Segoe UI,Helvetica,Arial,sans-serif;
max-width:1100px;margin:2em auto;padding:0 1em}table{border-collapse:collapse;font-size:13px;margin:1em 0;display:block;
overflow-x:auto}td,th{border-bottom:1px solid var(--line);padding:4px 10px;text-align:left}h2{margin-top:2em}
code{font-size:92%}svg{max-width:100%;height:auto}@media print{body{max-width:none}h2{break-after:avoid}svg,tr{break-inside:avoid}}
"""


def make_report(found: Result) -> str:
    cells = found["cells"]
    parts = ["<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
             '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">',
             f"<title>How checkpoints are saved</title><style>{STYLE}{PAGE_STYLE}</style></head><body>",
             "<h1>How checkpoints are saved, what they cost, and what a crash leaves</h1>",
             f"<p>{words(where(found))}</p>"]
    for reader, head in (("users", "For those who choose an engine"), ("developers", "For those who make one")):
        parts += [f"<h2>{head}</h2><ul>", *(f"<li>{words(text)}</li>" for text in advice(cells, reader)), "</ul>"]
    made = make_tables(found)
    for name, head in HEADS.items():
        parts += [f"<h2>{head}</h2>", CHARTS[name](cells) if name in CHARTS else "", html_table(made[name])]
    return "\n".join([*parts, "</body></html>", ""])


def where(found: Result) -> str:
    return f"On {name_of(found['machine'])}; {', '.join(versions(found['cells']))}. {device(found)} {busy(found)}"


def html_table(given: Table) -> str:
    rows = [given.head, *given.rows]
    return "<table>" + "".join(
        "<tr>" + "".join(f"<{tag}>{words(cell)}</{tag}>" for cell in row) + "</tr>"
        for row, tag in zip(rows, ["th"] + ["td"] * len(given.rows), strict=True)) + "</table>"  # fmt: skip


def words(text: str) -> str:
    """Markdown's `code` is all that the texts have."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def main(results: str, report: str) -> None:
    Path(report).write_text(make_report(json.loads(Path(results).read_text())))


if __name__ == "__main__":
    main(*sys.argv[1:])
