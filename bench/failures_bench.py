"""Trains under real failures, and compares each run with the simulator's replay of it.

    failures_bench.py [--quick] [--seed N] [--sequences N] [--examples LIST]
                      [--policies LIST] [--folder PATH] [--json PATH]

The GPT and ResNet examples train on one core, with one policy after the other. Every policy meets
the same failures: the process is killed with SIGKILL at wall times that are counted from the start
of the job. The gaps between them are drawn from an exponential distribution with the seed. After a
kill the process is started again at once, until the training is done. A failure during a restart
has no effect, as in the simulator.

These times are measured from the moments at which the losses arrive and from the run's events: the
time of a step while no save is in progress, what a save adds to the steps, when it is durable, and
how long a restart takes until its first new step. `holdfast simulate` then replays the run. It gets
the means of these times, the work at which the run saved, and the times at which it was killed. The
simulator computes where the job was at each kill, what was durable by then, and how much work was
done again. In the replay all restarts take the mean time of the run, and a save that a kill
interrupted does not count as a save.

overhead   wall time beyond the steps at the run's own mean time: restarts, stalls, repeated work
simulated  the overhead of the replay
paced      stalls and repeated work of a second replay. Its kills come after the steps and saves
           that each process had made, each counted with its mean time. So the replay does not
           depend on how fast the machine was at each moment.
clean      wall time beyond the median of the runs without failures and saves
textbook   the overhead that the simulator computes for the policy's textbook schedule under
           these failures

How much a sequence of kills costs a policy depends on when the kills come. So each policy meets
several sequences, and a second table has the mean overhead of each policy over all sequences, and
the mean difference to the first policy, both with 95 % intervals. The differences are taken within
each sequence.

Bars, over all policies: the overhead is within 15 % of that of the replay. Stalls and repeated
work, without the restarts that both have in common, are within 15 % of those of the paced replay.
Every loss of every process equals that of the run without failures, bit for bit, and so does the
last checkpoint. With several sequences, the whole interval of auto's difference to young is not
above 0.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast.statistics import mean_interval
from killed import ROOT, Example, Failures, Job, Measured, examples, measure
from measuring import results
from measuring.options import parser
from measuring.results import progress

PROGRAM = ROOT / "build/release/bin/holdfast"
BAR = 0.15
# The policies whose textbook schedule is simulated. COCI's is left out, because it can have
# several saves in one step.
TEXTBOOK = ("young", "daly", "checkfreq")
MTBF = 0.4  # as a share of the time that the work takes
# The simulator repeats a trace after its last failure. This last failure comes after every run.
NO_MORE = 1e9


def replay(job: Job, seen: Measured, ups: list[float]) -> list[dict]:
    """Simulates the run with the saves that it made, and with the policy's textbook schedule."""
    restart = statistics.fmean(seen.restarts) if seen.restarts else 0.0
    wall, trace = 0.0, []
    for up in ups:
        trace.append(wall + up)
        wall += up + restart
    write_lines(job.folder / "failures", [*trace, NO_MORE])
    write_lines(job.folder / "saves", [(step + 1) * seen.step for step in seen.saved])
    schedules = [f"at:{job.folder / 'saves'}"]
    schedules += [job.every] if job.every in TEXTBOOK else []
    options = {"length": job.example.steps * seen.step, "step": seen.step,
               "stall": max(0.0, seen.stalled / max(seen.saves, 1)), "persist": seen.persist,
               "restart": restart, "mtbf": job.mtbf}  # fmt: skip
    command = [str(PROGRAM), "simulate", "--json", "--runs", "1", "--schedules",
               ",".join(schedules), "--failures", f"trace:{job.folder / 'failures'}"]
    for name, value in options.items():
        command += [f"--{name}", f"{value:.9f}"]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(f"failures_bench: {' '.join(command)}: {ran.stderr}")
    return json.loads(ran.stdout)["schedules"]


def write_lines(path: Path, numbers: list[float]) -> None:
    path.write_text("".join(f"{number:.9f}\n" for number in numbers))


def same_losses(job: Job, clean: Job) -> bool:
    """True if every loss of every process equals the clean run's, and none is missing."""
    want, seen = clean.lives[0].losses, set()
    for life in job.lives:
        seen.update(life.steps)
        if any(want[step] != loss for step, loss in zip(life.steps, life.losses)):
            return False
    return seen == set(range(job.example.steps))


def same_end(job: Job, clean: Job) -> bool | None:
    """True if the checkpoints after the last step are equal; None if this run made none."""
    last = f"step-{job.example.steps - 1:08}"
    ours, theirs = job.folder / "run" / last, clean.folder / "run" / last
    if not ours.exists() and job.every != job.example.fixed:
        return None
    command = [str(PROGRAM), "diff", str(ours), str(theirs)]
    return subprocess.run(command, capture_output=True).returncode == 0


def row_of(sequence: int, job: Job, seen: Measured, reference: Job, clean: float) -> dict:
    simulated, *textbook = replay(job, seen, seen.up)
    at_pace = replay(job, seen, seen.paced)[0]
    return {
        "example": job.example.name,
        "sequence": sequence,
        "policy": job.every,
        "failures": len(seen.up),
        "saves": seen.saves,
        "overhead": seen.overhead,
        "simulated": simulated["time"]["mean"],
        "clean": seen.start + seen.makespan - clean,
        "textbook": textbook[0]["time"]["mean"] if textbook else None,
        "redone": seen.redone,
        "simulated_redone": simulated["redone"],
        "stalled": seen.stalled,
        "simulated_stalled": simulated["stalled"],
        "paced": at_pace["redone"] + at_pace["stalled"],
        "restarts": sum(seen.restarts),
        "simulated_failures": simulated["failures"],
        "step": seen.step,
        "persist": seen.persist,
        "makespan": seen.makespan,
        "same_losses": same_losses(job, reference),
        "same_end": same_end(job, reference),
    }


class Bench:
    """All runs of one example. Runs without failures are made between those with failures."""

    def __init__(self, example: Example, folder: Path) -> None:
        self.example, self.folder = example, folder
        self.mtbf = 0.0
        self.clean: list[tuple[Job, Measured]] = []
        self.runs: list[tuple[Job, Measured]] = []

    def run(self, policies: list[str], seeds: list[str]) -> list[dict]:
        self.run_clean()
        self.mtbf = self.clean[0][1].makespan * MTBF
        for number, seed in enumerate(seeds):
            failures = Failures.draw(self.mtbf, seed)
            for at, every in enumerate(policies):
                self.run_failing(every, failures, f"{number}-{at}")
                if at == len(policies) // 2:
                    self.run_clean()
            self.run_clean()
        walls = [seen.start + seen.makespan for _, seen in self.clean]
        reference = self.clean[0][0]
        if not all(same_losses(job, reference) for job, _ in self.clean):
            sys.exit(f"failures_bench: {self.example.name}: runs without failures differ in bits")
        return [row_of(at // len(policies), job, seen, reference, statistics.median(walls))
                for at, (job, seen) in enumerate(self.runs)]  # fmt: skip

    def run_clean(self) -> None:
        """Runs without failures. The only save comes after the last step and is not measured."""
        name = f"clean-{len(self.clean)}"
        job = self.do(name, f"{self.example.steps} steps", Failures(NO_MORE))
        self.clean.append((job, measure(job)))
        said = self.clean[-1][1]
        progress(f"{self.example.name} clean: {said.start:.1f} s to start, then "
                 f"{said.makespan:.1f} s")  # fmt: skip

    def run_failing(self, every: str, failures: Failures, name: str) -> None:
        job = self.do(name, every, failures)
        seen = measure(job, self.clean[-1][1].step)
        self.runs.append((job, seen))
        progress(f"{self.example.name} {every}: {len(seen.up)} kills, {seen.saves} saves, "
                 f"{seen.makespan:.1f} s")  # fmt: skip
        keep_last(job)

    def do(self, name: str, every: str, failures: Failures) -> Job:
        job = Job(self.example, every, failures, self.folder / name)
        job.run()
        return job


def keep_last(job: Job) -> None:
    """Removes all steps but the last, so that the disk does not fill."""
    steps = sorted(path for path in (job.folder / "run").glob("step-*") if path.is_dir())
    for path in steps[:-1]:
        shutil.rmtree(path)


def exact(row: dict) -> bool:
    return row["same_losses"] and row["same_end"] is not False


COLUMNS = (
    ("policy", "{policy}"), ("kills", "{failures}"), ("saves", "{saves}"),
    ("overhead, s", "{overhead:.2f}"), ("simulated", "{simulated:.2f}"), ("ratio", "{ratio}"),
    ("redone", "{redone:.2f}"), ("simulated", "{simulated_redone:.2f}"),
    ("stalls", "{stalled:.2f}"), ("simulated", "{simulated_stalled:.2f}"),
    ("both", "{both:.2f}"), ("paced", "{paced:.2f}"),
    ("restarts", "{restarts:.2f}"), ("clean", "{clean:.2f}"), ("textbook", "{textbook}"),
    ("bits", "{bits}"),
)  # fmt: skip


def show(title: str, rows: list[dict]) -> None:
    cells = [[head for head, _ in COLUMNS]]
    for row in rows:
        shown = row | {
            "both": row["redone"] + row["stalled"],
            "ratio": f"{row['overhead'] / row['simulated']:.3f}" if row["simulated"] else "-",
            "textbook": "-" if row["textbook"] is None else f"{row['textbook']:.2f}",
            "bits": "same" if exact(row) else "DIFFER",
        }
        cells.append([form.format(**shown) for _, form in COLUMNS])
    widths = [max(map(len, column)) for column in zip(*cells)]
    print(f"\n{title}")
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)))


def over_sequences(rows: list[dict]) -> dict[str, dict[str, tuple[float, float]]]:
    """By policy: the overhead over all sequences, and the difference to the first policy."""
    overheads: dict[str, list[float]] = {}
    for row in sorted(rows, key=lambda row: row["sequence"]):
        overheads.setdefault(row["policy"], []).append(row["overhead"])
    first = next(iter(overheads.values()))
    return {policy: {"overhead": mean_interval(values),
                     "against_first": mean_interval([value - other for value, other in
                                                     zip(values, first, strict=True)])}
            for policy, values in overheads.items()}  # fmt: skip


def show_sequences(rows: list[dict]) -> None:
    sequences = len({row["sequence"] for row in rows})
    if sequences < 2:
        return
    print(f"over {sequences} sequences, overhead in seconds with 95 % intervals")
    for policy, seen in over_sequences(rows).items():
        (mean, half), (change, spread) = seen["overhead"], seen["against_first"]
        print(f"{policy:>12}  {mean:8.2f} +- {half:6.2f}   against {rows[0]['policy']}: "
              f"{change:+8.2f} +- {spread:6.2f}")  # fmt: skip


def dearer_than_young(rows: list[dict]) -> list[str]:
    """A sentence if auto costs more than young beyond doubt."""
    chosen = [row for policy in ("young", "auto") for row in rows if row["policy"] == policy]
    if len({row["policy"] for row in chosen}) < 2:
        return []
    change, half = over_sequences(chosen)["auto"]["against_first"]
    if change - half <= 0:
        return []
    return [f"{rows[0]['example']}: auto costs {change:.2f} +- {half:.2f} s more than young; "
            "expected no more"]  # fmt: skip


def judge(example: Example, rows: list[dict]) -> tuple[dict, list[str]]:
    """The sums over all policies, and a list of the bars that they miss."""
    total = {key: sum(row[key] for row in rows) for key in
             ("overhead", "simulated", "redone", "simulated_redone", "stalled",
              "simulated_stalled", "paced", "restarts", "clean")}  # fmt: skip
    parts = total["redone"] + total["stalled"]
    total["ratio"] = total["overhead"] / max(total["simulated"], 1e-9)
    total["ratio_of_parts"] = parts / max(total["paced"], 1e-9)
    total["ratio_of_clean"] = total["clean"] / max(total["simulated"], 1e-9)
    print(f"{example.name}: overhead {total['overhead']:.1f} s, simulated "
          f"{total['simulated']:.1f} s, ratio {total['ratio']:.3f}; stalls and redone work "
          f"{parts:.1f} s, paced {total['paced']:.1f} s, ratio {total['ratio_of_parts']:.3f} "
          f"(bars 1 +- {BAR}); against clean runs {total['ratio_of_clean']:.3f}")  # fmt: skip
    wrong = []
    for ratio in ("ratio", "ratio_of_parts"):
        if not abs(total[ratio] - 1) <= BAR:
            wrong.append(f"{example.name}: {ratio} {total[ratio]:.3f}; expected 1 +- {BAR}")
    wrong += dearer_than_young(rows)
    wrong += [f"{example.name} {row['policy']}: the bits differ from the run without failures"
              for row in rows if not exact(row)]  # fmt: skip
    return total, wrong


def parse_arguments() -> argparse.Namespace:
    made = parser(__doc__, folder=None, json=None)
    made.add_argument("--quick", action="store_true", help="short runs, two policies")
    made.add_argument("--seed", type=int, default=1, help="seed of the failures")
    made.add_argument("--sequences", type=int,
                      help="how many sequences of failures each policy meets (default: 3, or 1 "
                      "with --quick)")
    made.add_argument("--examples", default="gpt,resnet")
    made.add_argument("--policies",
                      help="policies, separated by commas: young, auto, '12 steps'")
    return made.parse_args()


def main() -> int:
    args = parse_arguments()
    args.sequences = args.sequences or (1 if args.quick else 3)
    rows, totals, wrong = [], {}, []
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="failures-") as folder:
        for example in examples(args.quick):
            if example.name not in args.examples.split(","):
                continue
            usual = "young," if args.quick else "young,daly,coci,checkfreq,auto,"
            policies = (args.policies or usual + example.fixed).split(",")
            seeds = [f"{example.name} {args.seed} {i}" for i in range(args.sequences)]
            (place := Path(folder) / example.name).mkdir()
            bench = Bench(example, place)
            found = bench.run(policies, seeds)
            show(f"{example.name}: {example.steps} steps, MTBF {bench.mtbf:.1f} s, seconds",
                 found)  # fmt: skip
            show_sequences(found)
            totals[example.name], missed = judge(example, found)
            rows += found
            wrong += missed
    print(f"\nin {time.monotonic() - begun:.0f} s")
    if args.json:
        figures = {"seed": args.seed, "sequences": args.sequences, "quick": args.quick,
                   "rows": rows, "totals": totals, "missed": wrong}  # fmt: skip
        if args.sequences > 1:
            figures["policies"] = {
                name: over_sequences([row for row in rows if row["example"] == name])
                for name in totals
            }
        results.write(args.json, figures)
    for line in wrong:
        print(f"failures_bench: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
