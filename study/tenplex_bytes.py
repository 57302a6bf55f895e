"""Bytes that cross hosts in the reconfigurations of Tenplex's evaluation: by its released planner, and by ours.

    python study/tenplex_bytes.py [--program PATH] [--doc]

The released code fetches every needed box from the first rank that has it, through HTTP, also if the box is on
the same host or in the same place; and puts it into a store on the target's host. Only what comes from another
host crosses the network, and that is counted here, from the layouts that `holdfast plan --export` writes.
With --doc the table replaces the one in docs/studies/papers.md. It is the same on every machine.
"""

import json
import math
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from program import Program, Section, parser, table

ROOT = Path(__file__).resolve().parents[1]
SECTION = Section.made_by(ROOT / "docs/studies/papers.md", "study/tenplex_bytes.py")
MODEL, HOSTS = "tenplex-6.7b", "4x4"
CHANGES = (("4,2,1", "4,2,2"), ("4,2,1", "4,4,1"), ("4,2,1", "8,2,1"), ("4,2,2", "4,2,1"),
           ("8,2,1", "4,2,1"), ("2,4,2", "2,4,1"), ("2,4,1", "2,2,1"))  # fmt: skip
BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8}
Box = list[list[int]]


def degrees(text: str) -> str:
    return ",".join(f"{name}={value}" for name, value in zip(("tp", "pp", "dp"), text.split(",")))


def first_rank(piece: dict[str, Any], ranks: dict[str, int]) -> str:
    return min((copy["holder"] for copy in piece["copies"]), key=ranks.__getitem__)


def common(one: Box, other: Box) -> int:
    """How many numbers two boxes have in common."""
    sides = [min(a[1], b[1]) - max(a[0], b[0]) for a, b in zip(one, other, strict=True)]
    return math.prod(sides) if all(side > 0 for side in sides) else 0


def fetched(source: dict[str, Any], target: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    """The host from which, the host to which, and the bytes, of every fetch of the released planner."""
    ranks = {holder["name"]: at for at, holder in enumerate(source["holders"])}
    host = {one["name"]: one["host"] for one in (*source["holders"], *target["holders"])}
    sizes = {tensor["name"]: BYTES[tensor["dtype"]] for tensor in source["tensors"]}
    pieces: dict[str, list[tuple[Box, str]]] = {}
    for piece in source["slices"]:
        pieces.setdefault(piece["tensor"], []).append((piece["box"], first_rank(piece, ranks)))
    for piece in target["slices"]:
        for box, rank in pieces[piece["tensor"]]:
            count = common(piece["box"], box) * sizes[piece["tensor"]]
            for copy in piece["copies"] if count else ():
                yield host[rank], host[copy["holder"]], count


def crossing(program: Program, source: str, target: str) -> dict[str, float]:
    """Bytes of one change: all that the targets need, and what crosses hosts by either planner."""
    with tempfile.TemporaryDirectory() as folder:
        seen = program.plan(model=MODEL, hosts=HOSTS, export=folder,
                            **{"from": degrees(source), "to": degrees(target)})  # fmt: skip
        layouts = [json.loads((Path(folder) / f"{name}.json").read_text()) for name in ("from", "to")]
    fetches = list(fetched(*layouts))
    return {"needed": sum(count for _, _, count in fetches),
            "theirs": sum(count for one, other, count in fetches if one != other),
            "ours": seen["figures"]["crossing"], "planned_need": seen["figures"]["needed"]}  # fmt: skip


def make_table(program: Program) -> str:
    rows = []
    for source, target in CHANGES:
        seen = crossing(program, source, target)
        rows.append([f"{source} → {target}", *(f"{seen[name] / 1e9:.2f}" for name in ("theirs", "ours")),
                     f"{seen['theirs'] / seen['ours']:.2f}"])  # fmt: skip
    return "\n" + table(["from → to", "released planner", "ours, ranks in order", "ratio"], rows) + "\n\n"


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--program", type=Path, default=ROOT / ".venv/bin/holdfast")
    made.add_argument("--doc", action="store_true")
    args = made.parse_args()
    text = make_table(Program(args.program))
    if args.doc:
        SECTION.write(text)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
