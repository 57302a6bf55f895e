"""Real training under real failures, beside what the simulator says of the same run.

    failures_bench.py [--quick] [--seed N] [--sequences N] [--examples LIST]
                      [--policies LIST] [--folder PATH] [--json PATH]

The GPT and ResNet examples train on one core, by one policy after the other. Every policy
meets the same failures: kill -9 at wall times since the start of the job, exponential from
the seed; the process is started again at once until the training is done. A failure that
falls into a restart passes over, as in the simulator.

The run's own clock (when each loss came, and its events) gives the time of a step with no
save in flight, what a save adds to the steps, when it is durable, and what a restart takes
until its first new step. `holdfast simulate` replays the run from these means, the work at
which it saved and the times at which it was killed: where the job was at each kill, what
was durable by then and how much was done again is the simulator's. In the replay all
restarts take the mean of the run, and what a kill left of a save is no save.

overhead   wall time beyond the steps at the run's own pace: restarts, stalls, work redone
clean      the same against the median of the runs without failure and save, at their pace
planned    what the simulator says of the policy's textbook plan under these failures

Bars: over all policies the overhead is within 15 % of the replay's, and so are its parts
that a policy decides, stalls and redone work, within 25 %. Every loss of every life is that
of the run without failures, bit for bit, and so is the last checkpoint.
"""

import argparse
import json
import os
import random
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/release/bin/holdfast"
BAR, BAR_OF_PARTS = 0.15, 0.25
PLANNERS = ("young", "daly", "checkfreq", "coci")
MTBF = 0.3  # of the time that the work takes
FEWEST = 8  # steps that make a mean
NO_MORE = 1e9  # a trace begins again after its last failure: one that never comes


@dataclass(frozen=True)
class Example:
    """A training to be run."""

    name: str
    steps: int
    options: tuple[str, ...]

    @property
    def fixed(self) -> str:
        """A policy that knows nothing; its last save is the last state."""
        return f"{self.steps // 8} steps"

    def command(self, folder: Path, every: str, mtbf: float) -> list[str]:
        script = ROOT / "examples" / f"train_{self.name}.py"
        return [sys.executable, str(script), str(folder / "run"), *self.options, "--every",
                every, "--mtbf", f"{mtbf:.3f}", "--losses", str(folder / "losses")]  # fmt: skip


def examples(quick: bool) -> list[Example]:
    """GPT saves much and ResNet little; a step takes a few tenths of a second."""
    steps = 32 if quick else 80
    gpt = ("--steps", str(steps), "--width", "512", "--head", "64", "--batch", "2")
    resnet = ("--epochs", "2", "--samples", str(16 * steps), "--width", "24", "--ema")
    return [Example("gpt", steps, gpt), Example("resnet", steps, resnet)]


@dataclass(frozen=True)
class Failures:
    """When a job fails: wall times since its start, more than any run can meet."""

    mtbf: float
    times: tuple[float, ...] = ()

    @staticmethod
    def draw(mtbf: float, seed: str) -> "Failures":
        dice = random.Random(seed)
        gaps = (dice.expovariate(1 / mtbf) for _ in range(1000))
        return Failures(mtbf, tuple(accumulate(gaps)))


@dataclass
class Life:
    """One process: when it came, when each loss did, when it was killed."""

    begun: float
    times: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    killed: float | None = None

    def read(self, text: str, now: float) -> None:
        for line in text.splitlines():
            told = json.loads(line)
            self.times.append(now)
            self.steps.append(told["step"])
            self.losses.append(told["loss"])


@dataclass
class Save:
    """A save: after which step, from when to when, and whether it became durable."""

    step: int
    begun: float
    ended: float
    durable: bool


class Job:
    """Runs an example until it is done, whatever happens to its processes."""

    def __init__(self, example: Example, every: str, failures: "Failures", folder: Path):
        self.example, self.every, self.folder = example, every, folder
        self.mtbf, self.failures = failures.mtbf, list(failures.times)
        self.lives: list[Life] = []
        folder.mkdir()
        os.mkfifo(folder / "losses")  # what comes through it is timed without a file
        self.pipe = os.open(folder / "losses", os.O_RDWR | os.O_NONBLOCK)

    def run(self) -> None:
        while not self.done():
            self.live()
        os.close(self.pipe)

    def done(self) -> bool:
        last = self.lives[-1] if self.lives else None
        return last is not None and last.steps[-1:] == [self.example.steps - 1]

    def live(self) -> None:
        command = self.example.command(self.folder, self.every, self.mtbf)
        one_core = os.environ | {"OMP_NUM_THREADS": "1"}
        life = Life(time.monotonic())
        self.lives.append(life)
        with open(self.folder / "errors", "wb") as errors:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors,
                                       env=one_core)  # fmt: skip
        ended = os.pidfd_open(process.pid)
        try:
            while not self.wait(life, ended):
                if not self.done():
                    life.killed = time.monotonic()
                    process.kill()
                    break
        finally:
            process.wait() if life.killed or self.done() else process.kill()
            os.close(ended)
        self.take(life)
        if not life.killed and (process.returncode or not self.done()):
            said = (self.folder / "errors").read_text()[-2000:]
            sys.exit(f"failures_bench: {' '.join(command)}: exit {process.returncode}\n{said}")

    def wait(self, life: Life, ended: int) -> bool:
        """True when the process has ended, False when it is to be killed."""
        while True:
            due = self.failures[0] + self.lives[0].begun if self.failures else None
            left = None if due is None else max(0.0, due - time.monotonic())
            ready, _, _ = select.select([self.pipe, ended], [], [], left)
            self.take(life)
            if ended in ready:
                return True
            if due is not None and time.monotonic() >= due:
                self.failures.pop(0)
                if life.times:  # else it falls into a restart
                    return False

    def take(self, life: Life) -> None:
        try:
            life.read(os.read(self.pipe, 1 << 16).decode(), time.monotonic())
        except BlockingIOError:
            pass

    def saves(self) -> list[Save]:
        """In order; one that a kill left is in flight until that."""
        out = []
        for life in self.lives:
            end = life.killed or life.times[-1]
            for event in self.events("save_captured", life.begun, end):
                if event["step"] not in life.steps:
                    continue
                begun = life.times[life.steps.index(event["step"])]
                durable = [e["mono_ns"] / 1e9 for e in self.events("save_durable", begun, end)
                           if e["step"] == event["step"]]  # fmt: skip
                out.append(Save(event["step"], begun, durable[0] if durable else end,
                                bool(durable)))  # fmt: skip
        return out

    def events(self, name: str, begin: float, end: float) -> list[dict]:
        out = []
        for line in (self.folder / "run/events/rank-0000.jsonl").read_text().splitlines():
            try:
                event = json.loads(line)
            except ValueError:  # torn by a kill
                continue
            if event["event"] == name and begin <= event["mono_ns"] / 1e9 <= end:
                out.append(event)
        return out


@dataclass
class Measured:
    """What a run says of itself, in seconds."""

    step: float  # with no save in flight
    start: float  # of the first process, until its first step
    makespan: float  # from there to the last loss
    saves: int
    stalled: float
    persist: float
    redone: float
    restarts: list[float]
    up: list[float]  # from a restart to the kill
    saved: list[int]  # steps that became durable

    @property
    def overhead(self) -> float:
        return sum(self.restarts) + self.stalled + self.redone


def measure(job: Job, pace: float | None = None) -> Measured:
    """The parts add up: makespan = steps at the run's pace + stalls + redone + restarts.

    The pace of another run counts where hardly a step was without a save in flight.
    """
    saves = job.saves()
    idle, busy = [], []
    for life in job.lives:
        for begin, end in zip(life.times, life.times[1:]):
            beside = any(save.begun < end and begin < save.ended for save in saves)
            (busy if beside else idle).append(end - begin)
    step = pace if pace and len(idle) < FEWEST else statistics.fmean(idle)
    begins = [life.times[0] - step for life in job.lives]
    kills = [life.killed for life in job.lives if life.killed]
    done = sum(len(life.steps) for life in job.lives)
    torn = sum(life.killed - life.times[-1] for life in job.lives if life.killed)
    stalled = sum(busy) - step * len(busy)
    persists = [save.ended - save.begun for save in saves if save.durable]
    stall = stalled / max(len(saves), 1)
    return Measured(
        step=step,
        start=begins[0] - job.lives[0].begun,
        makespan=job.lives[-1].times[-1] - begins[0],
        saves=len(saves),
        stalled=stalled,
        persist=max(0.0, statistics.fmean(persists) - stall) if persists else 0.0,
        redone=(done - job.example.steps) * step + torn,
        restarts=[begin - kill for begin, kill in zip(begins[1:], kills)],
        up=[kill - begin for kill, begin in zip(kills, begins)],
        saved=[save.step for save in saves if save.durable],
    )


def replay(job: Job, seen: Measured, curve: Path) -> list[dict]:
    """The simulator's answer: for where the run saved, and for the textbook plan."""
    restart = statistics.fmean(seen.restarts) if seen.restarts else 0.0
    wall, trace = 0.0, []
    for up in seen.up:
        trace.append(wall + up)
        wall += up + restart
    write_lines(job.folder / "failures", [*trace, NO_MORE])
    write_lines(job.folder / "saves", [(step + 1) * seen.step for step in seen.saved])
    plans = [f"at:{job.folder / 'saves'}"]
    plans += [job.every] if job.every in PLANNERS else []
    options = {"length": job.example.steps * seen.step, "step": seen.step,
               "stall": max(0.0, seen.stalled / max(seen.saves, 1)), "persist": seen.persist,
               "restart": restart, "mtbf": job.mtbf}  # fmt: skip
    command = [str(PROGRAM), "simulate", "--json", "--runs", "1", "--plans", ",".join(plans),
               "--failures", f"trace:{job.folder / 'failures'}", "--curve", str(curve)]
    for name, value in options.items():
        command += [f"--{name}", f"{value:.9f}"]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(f"failures_bench: {' '.join(command)}: {ran.stderr}")
    return json.loads(ran.stdout)["plans"]


def write_lines(path: Path, numbers: list[float]) -> None:
    path.write_text("".join(f"{number:.9f}\n" for number in numbers))


def same_bits(job: Job, clean: Job) -> bool:
    """Every loss of every life; and the last state, if this run saved it, too."""
    want = clean.lives[0].losses
    for life in job.lives:
        if any(want[step] != loss for step, loss in zip(life.steps, life.losses)):
            return False
    last = f"step-{job.example.steps - 1:08}"
    ours, theirs = job.folder / "run" / last, clean.folder / "run" / last
    if not ours.exists():
        return True
    command = [str(PROGRAM), "diff", str(ours), str(theirs)]
    return subprocess.run(command, capture_output=True).returncode == 0


def row_of(job: Job, seen: Measured, plans: list[dict], clean: float, exact: bool) -> dict:
    simulated = plans[0]
    return {
        "example": job.example.name,
        "policy": job.every,
        "failures": len(seen.up),
        "saves": seen.saves,
        "overhead": seen.overhead,
        "simulated": simulated["time"]["mean"],
        "clean": seen.start + seen.makespan - clean,
        "planned": plans[1]["time"]["mean"] if len(plans) > 1 else None,
        "redone": seen.redone,
        "simulated_redone": simulated["redone"],
        "stalled": seen.stalled,
        "simulated_stalled": simulated["stalled"],
        "restarts": sum(seen.restarts),
        "simulated_failures": simulated["failures"],
        "step": seen.step,
        "persist": seen.persist,
        "makespan": seen.makespan,
        "exact": exact,
    }


class Bench:
    """Runs of one example: those without failures between those with."""

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
        reference, curve = self.clean[0][0], self.folder / "curve"
        self.write_curve(curve)
        return [row_of(job, seen, replay(job, seen, curve), statistics.median(walls),
                       same_bits(job, reference)) for job, seen in self.runs]  # fmt: skip

    def run_clean(self) -> None:
        """The one save, after the last step, comes when the clock has stopped."""
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

    def write_curve(self, path: Path) -> None:
        job, seen = self.clean[0]
        losses = [float.fromhex(loss) for loss in job.lives[0].losses]
        lines = (f"{(i + 1) * seen.step} {loss}\n" for i, loss in enumerate(losses))
        path.write_text("".join(lines))


def keep_last(job: Job) -> None:
    """Old steps go, or a disk would fill."""
    steps = sorted(path for path in (job.folder / "run").glob("step-*") if path.is_dir())
    for path in steps[:-1]:
        shutil.rmtree(path)


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


COLUMNS = (
    ("policy", "{policy}"), ("kills", "{failures}"), ("saves", "{saves}"),
    ("overhead, s", "{overhead:.2f}"), ("simulated", "{simulated:.2f}"), ("ratio", "{ratio}"),
    ("redone", "{redone:.2f}"), ("simulated", "{simulated_redone:.2f}"),
    ("stalls", "{stalled:.2f}"), ("simulated", "{simulated_stalled:.2f}"),
    ("restarts", "{restarts:.2f}"), ("clean", "{clean:.2f}"), ("planned", "{plan}"),
    ("bits", "{bits}"),
)  # fmt: skip


def show(title: str, rows: list[dict]) -> None:
    cells = [[head for head, _ in COLUMNS]]
    for row in rows:
        shown = row | {
            "ratio": f"{row['overhead'] / row['simulated']:.3f}" if row["simulated"] else "-",
            "plan": "-" if row["planned"] is None else f"{row['planned']:.2f}",
            "bits": "same" if row["exact"] else "DIFFER",
        }
        cells.append([form.format(**shown) for _, form in COLUMNS])
    widths = [max(map(len, column)) for column in zip(*cells)]
    print(f"\n{title}")
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths)))


def judge(example: Example, rows: list[dict]) -> tuple[dict, list[str]]:
    """The sums over the policies, and what is wrong with them."""
    total = {key: sum(row[key] for row in rows) for key in
             ("overhead", "simulated", "redone", "simulated_redone", "stalled",
              "simulated_stalled", "restarts", "clean")}  # fmt: skip
    parts = total["redone"] + total["stalled"]
    simulated_parts = total["simulated_redone"] + total["simulated_stalled"]
    total["ratio"] = total["overhead"] / max(total["simulated"], 1e-9)
    total["ratio_of_parts"] = parts / max(simulated_parts, 1e-9)
    total["ratio_of_clean"] = total["clean"] / max(total["simulated"], 1e-9)
    print(f"{example.name}: overhead {total['overhead']:.1f} s, simulated "
          f"{total['simulated']:.1f} s, ratio {total['ratio']:.3f} (bar 1 +- {BAR}); stalls and "
          f"redone work {total['ratio_of_parts']:.3f} (bar 1 +- {BAR_OF_PARTS}); against clean "
          f"runs {total['ratio_of_clean']:.3f}")  # fmt: skip
    wrong = []
    for ratio, bar in (("ratio", BAR), ("ratio_of_parts", BAR_OF_PARTS)):
        if not abs(total[ratio] - 1) <= bar:
            wrong.append(f"{example.name}: {ratio} {total[ratio]:.3f}, want 1 +- {bar}")
    wrong += [f"{example.name} {row['policy']}: other bits than without failures"
              for row in rows if not row["exact"]]  # fmt: skip
    return total, wrong


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short runs, two policies")
    parser.add_argument("--seed", type=int, default=1, help="of the failures")
    parser.add_argument("--sequences", type=int, default=1, help="of failures")
    parser.add_argument("--examples", default="gpt,resnet")
    parser.add_argument("--policies", help="such as young,auto or '12 steps'; by commas")
    parser.add_argument("--folder", type=Path, help="where to train (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="where the figures go, too")
    return parser.parse_args()


def main() -> int:
    args = parse_arguments()
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
            totals[example.name], missed = judge(example, found)
            rows += found
            wrong += missed
    print(f"\nin {time.monotonic() - begun:.0f} s")
    if args.json:
        figures = {"seed": args.seed, "sequences": args.sequences, "quick": args.quick,
                   "rows": rows, "totals": totals, "missed": wrong}  # fmt: skip
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    for line in wrong:
        print(f"failures_bench: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
