"""Draws the losses of a killed and resumed run as text, and compares them with an undisturbed run.

    draw_losses.py WHOLE.jsonl KILLED.jsonl KILLED_AT

The files are written by examples/train_gpt.py --losses. KILLED_AT is how many lines the second file
had when its run was killed. Exits with 1 unless all losses are the same bit for bit.
"""

import json
import sys
from pathlib import Path

WIDTH, HEIGHT = 66, 12


def read(path: str) -> list[tuple[int, str]]:
    lines = Path(path).read_text().splitlines()
    return [(entry["step"], entry["loss"]) for entry in map(json.loads, lines)]


def draw(losses: dict[int, float], killed: int, resumed: int) -> str:
    steps, low, high = len(losses), min(losses.values()), max(losses.values())
    rows = [[" "] * WIDTH for _ in range(HEIGHT)]

    def column(step: int) -> int:
        return step * WIDTH // steps

    for row in rows:
        row[column(killed)] = "|"
    for step, loss in losses.items():
        height = round((high - loss) / (high - low) * (HEIGHT - 1))
        rows[height][column(step)] = "o" if step < resumed else "x"
    labels = [f"{high:5.2f} "] + ["      "] * (HEIGHT - 2) + [f"{low:5.2f} "]
    lines = [label + "|" + "".join(row).rstrip() for label, row in zip(labels, rows)]
    lines.append("      +" + "-" * WIDTH)
    lines.append(f"       step 0{steps - 1:>{WIDTH - 6}}")
    return "\n".join(lines)


def main(whole_path: str, killed_path: str, killed_at: str) -> int:
    whole, both = dict(read(whole_path)), read(killed_path)
    before, after = both[: int(killed_at)], both[int(killed_at) :]
    killed, resumed = before[-1][0], after[0][0]
    print(draw({step: float.fromhex(loss) for step, loss in both}, killed, resumed))
    print(f"\n  o  the first process, killed with -9 after step {killed} (|)")
    print(f"  x  the second process, which continued with step {resumed} from the checkpoint")
    different = [step for step, loss in both if whole[step] != loss]
    if different or {step for step, _ in both} != set(whole):
        print(f"\n  The losses DIFFER at these steps: {different}")
        return 1
    again = len(both) - len(whole)
    print(f"\n  All {len(whole)} losses equal, in all 64 bits, those of a run that was not killed; "
          f"so do\n  the {again} of steps that had to be repeated. The last loss is {both[-1][1]}.")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
