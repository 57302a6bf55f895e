"""Measures recovery: how long a job stands still after a kill, and what recovery costs without one.

    recovery_bench.py [--sequences N] [--rivals LIST] [--parts LIST] [--json PATH] [--anew] [--doc]

The job is the GPT of the examples (bench/recovery_training.py). If there are more ranks than cores,
compute is paced: each step sleeps for a fixed time, which stands for the work of a device.

kills     Ranks are killed one after the other, at random times. Measured is the time from the kill
          to the end of the first step of a new process: under holdfast launch, and under torchrun
          with --max-restarts, where the same script resumes from a checkpoint of Holdfast. What
          torchrun loses since that checkpoint is not in this time; it is counted beside it.
cost      Two ranks, nobody dies: steps with ck.run() and steps without Holdfast take turns in the
          same processes. And the memory that recovery takes, in all processes of a job.
short     The same for steps of about 10 ms, with two ranks and with one: what a step costs whatever the
          model is.
totals    Every way meets the same kills, at times drawn from an exponential distribution with a
          seed: its total time, its steps, its memory, its final loss. With torchft the survivors go
          on without the killed rank; so the time from the kill until its new process has done a step
          is not the time for which the job stood still, which is measured, too.
rates     The same for other failure rates, by `holdfast simulate`, from what totals has measured.
          At which rate is Holdfast 1.16 times as fast as its rivals, as SWIFT's abstract says?
swift     The same for the setting of SWIFT's evaluation (bench/recovery_swift.py).
logs      Ranks that nobody has a replica of: replay from logs of messages and of updates, beside a start of all
          ranks, and what the log of messages costs if nobody dies (bench/recovery_logs.py).
fill      How fast a replacement is filled, beside raw copies (bench/exchange_bench.cpp).

`make bench` runs one sequence of kills. The figures of docs/studies/recovery.md are made by

    recovery_bench.py --sequences 11 --json bench/results/recovery.json     # 3 hours; continues
    recovery_bench.py --doc     # writes the figures of that file into the pages; measures nothing

If the file exists, the parts that are not measured again and the sequences that it has are kept; with
--anew, the sequences are measured again. Each part has the machine on which it was measured. Sequences
from another machine are refused. The file is written after each part and each sequence, so that a
measurement can be stopped and continued.

Rivals that are not installed are left out by name; scripts/rivals.sh installs them.
"""

import argparse
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import holdfast
import recovery_logs
from measuring.events import events_of
from measuring.options import parser
from measuring.paired import difference, interval
from measuring.results import Bars, progress
from measuring.figures_file import Figures
from recovery_jobs import HOROVOD, ROOT, Job, Plan, Ran, Way, exponential_times
from recovery_page import by_way as rows_by_way
from recovery_page import geometric, ratios, write_pages
from recovery_rates import rates_of
from recovery_swift import swift_rates
from recovery_torchft import SETTINGS, TORCHFT

BUILD = Path(holdfast._native.__file__).parents[2]
RESULTS = ROOT / "bench/results/recovery.json"

RANKS, PACE = 4, 0.2
STEPS, MTBF = 160, 15.0  # of a job that is killed as others are
# Seconds for a collective call of torchft. Survivors that are no neighbours of the lost rank notice its
# death only then. The example of torchft has 5; a step takes less than half a second here.
PATIENCE = 1.0
BAR_SECONDS, BAR_FASTER, BAR_PHASES = 3.0, 5.0, 0.05
BAR_COST, BAR_MEMORY = 0.01, 64 << 20
BAR_SHORT = {2: 2.0, 1: 0.5}  # ms that a step takes longer, by the number of ranks
BAR_FILL = 0.8
BAR_ALONE, BAR_UPDATES, BAR_LOG = 1.15, 0.2, 0.02  # of replays, and of the log of messages
PHASES = ("seen", "agreed", "started", "joined", "filled", "redone")
PAIRS, BLOCK = 20, 5  # pairs, and steps of each half of one
SHORT_BLOCK = 25  # steps of each half of a pair of short ones

HOLDFAST = Way("Holdfast", "holdfast", ("--every", "auto"))
PLAIN = Way("nothing fails, nothing is saved", "torchrun", ("--every", "never"))
CALM = Way("Holdfast, nothing fails", "holdfast", HOLDFAST.options)
CALM_HOROVOD = Way("Elastic Horovod, no commits, nothing fails", "horovod", ("--commits", "0"))
NO_KILLS = (PLAIN, CALM, CALM_HOROVOD)
RIVALS = {
    "checkfreq": Way("CheckFreq", "torchrun", ("--every", "checkfreq")),
    "young": Way("torchrun, saves by Young's rule", "torchrun",
                 ("--every", "young", "--mtbf", str(MTBF))),
    "each": Way("torchrun, a save in each step", "torchrun", ("--every", "1 steps")),
    "horovod": Way("Elastic Horovod, a commit in each step", "horovod", ("--commits", "1")),
    "horovod-10": Way("Elastic Horovod, a commit every 10 steps", "horovod", ("--commits", "10")),
    "horovod-tuned": Way("Elastic Horovod, a commit every 10 steps, timeout 2 s", "horovod",
                         ("--commits", "10"), (("HOROVOD_GLOO_TIMEOUT_SECONDS", "2"),)),
    "torchft": Way("torchft", "torchft", ("--patience", str(PATIENCE))),
}  # fmt: skip


def left_out(rivals: list[str]) -> dict[str, str]:
    """The rivals that cannot run here, by key, and why."""
    places = {"horovod": HOROVOD / "horovod", "torchft": TORCHFT / "requirements.txt"}
    out = {name: "scripts/rivals.sh could not install it here" for name in rivals
           for rival, place in places.items()
           if name.partition("-")[0] == rival and not place.exists()}  # fmt: skip
    if "torchft" in out and platform.machine() != "x86_64":
        out["torchft"] = "PyPI has it for x86-64 only, and its source needs Rust packages"
    return out


# Kills


def measure_kills(folder: Path, kills: int, restarts: int) -> dict:
    """Kills ranks under holdfast launch and under torchrun."""
    options = ("--pace", str(PACE), "--every", "5 steps")
    ways = {"holdfast": Way("Holdfast", "holdfast"), "torchrun": Way("torchrun", "torchrun")}
    out: dict = {"ranks": RANKS, "pace": PACE}
    for (name, way), enough in zip(ways.items(), (kills, restarts), strict=True):
        dice = random.Random(f"kills {name}")
        times = tuple(2.0 * i + dice.uniform(1, 2) for i in range(500))
        plan = Plan(RANKS, 100000, options, times, victims=1, enough=enough)
        ran = Job(way, plan, folder / name).run()
        out[name] = {"recovery": [kill.recovery for kill in ran.kills],
                     "lost": [kill.lost for kill in ran.kills], "step": ran.step}  # fmt: skip
        progress(f"{name}: " + " ".join(f"{kill.recovery:.2f}" for kill in ran.kills) + " s")
        if name == "holdfast":
            out["phases"] = phases_of(ran, folder / name)
    return out


def phases_of(ran: Ran, folder: Path) -> list[dict]:
    """For each kill: the wall time until an update began again, and the phases as reported.

    Before the first one, the system ends the process, which nobody can see from outside.
    """
    told = [{name: event[name] for name in PHASES} for event in events_of(folder / "run", "recovered")]
    if not told:  # the line that the launcher prints has the same, rounded
        lines = re.findall(r"goes on after .*\((seen .* redone .*)\)", ran.said)
        told = [{name: float(value) for name, value in re.findall(r"(\w+) ([\d.]+)", line)}
                for line in lines]  # fmt: skip
    kills = [kill for kill in ran.kills if kill.back]
    return [{"wall": kill.back.allowed - kill.at, "phases": {"ended": kill.ended, **phases}}
            for kill, phases in zip(kills, told)]  # fmt: skip


# Cost


def run_cost(folder: Path, ranks: int, arguments: list) -> dict:
    """What bench/recovery_cost.py has measured."""
    folder.mkdir()
    command = [sys.executable, "-m", "holdfast.launch", "-n", str(ranks),
               str(ROOT / "bench/recovery_cost.py"), str(folder), *map(str, arguments)]  # fmt: skip
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
                   stdout=sys.stderr)  # fmt: skip
    return json.loads((folder / "cost.json").read_text())


def measure_short(folder: Path, pairs: int) -> dict:
    """Short steps with and without recovery in turns, by the number of ranks."""
    folder.mkdir()
    seen = {ranks: run_cost(folder / str(ranks), ranks, [pairs, SHORT_BLOCK, "short"])
            for ranks in BAR_SHORT}  # fmt: skip
    return {str(ranks): {key: one[key] for key in ("recovers", "plain", "steps")}
            for ranks, one in seen.items()}  # fmt: skip


def measure_cost(folder: Path, pairs: int) -> dict:
    """Steps with and without recovery in turns; then the memory of two jobs."""
    seen = run_cost(folder, 2, [pairs, BLOCK])
    out = {key: seen[key] for key in ("recovers", "plain", "state", "steps")}
    large = ("--pace", "0.05", "--width", "512", "--head", "64", "--layers", "4", "--batch", "2")
    for name, how in (("recovers", ()), ("without", ("--no-recovery",))):
        ran = Job(Way(name, "holdfast", how), Plan(2, 24, large), folder / name).run()
        out[f"memory_{name}"] = ran.memory
    out["memory_state"] = 3 * 4 * parameters_of(512, 4)
    return out


def parameters_of(width: int, layers: int) -> int:
    """The number of parameters of the GPT with a context of 64 bytes."""
    block = 12 * width * width + 13 * width
    return layers * block + (256 + 64) * width + 2 * width + 256 * width + 256


# Totals

# A way is exact if its losses have the bits of this run, in which nobody dies.
CALM_OF = {"holdfast": CALM, "horovod": CALM_HOROVOD}


def measure_totals(folder: Path, rivals: list[Way], sequences: list[int],
                   steps: int) -> Iterator[list[dict]]:
    """All ways under the same kills: the rows of each sequence, which has its own order of ways."""
    for sequence in sequences:
        dice = random.Random(f"totals {sequence}")
        times = tuple(exponential_times(MTBF, dice))
        ways = [HOLDFAST, CALM, *rivals, PLAIN]
        ways += [CALM_HOROVOD] * any(way.starter == "horovod" for way in rivals)
        ways = dice.sample(ways, len(ways))
        rows, ran = [], {}
        for way in ways:
            plan = Plan(RANKS, steps, ("--pace", str(PACE)), () if way in NO_KILLS else times,
                        victims=sequence)  # fmt: skip
            place = folder / f"{sequence}-{way.name.replace(' ', '-').replace(',', '')}"
            ran[way.name] = Job(way, plan, place).run()
            rows.append(row_of(sequence, ran[way.name], place))
            progress(f"sequence {sequence}, {way.name}: {len(ran[way.name].kills)} kills, "
                     f"{ran[way.name].total:.1f} s")  # fmt: skip
        for row in rows:
            own = ran[row["way"]]
            calm = ran[CALM_OF.get(own.way.starter, PLAIN).name]
            row["same_bits"] = own.losses() == calm.losses()
        yield rows


def row_of(sequence: int, ran: Ran, folder: Path) -> dict:
    captured = events_of(folder / "run", "save_captured")
    durable = {event["step"]: event["mono_ns"] for event in events_of(folder / "run", "save_durable")}
    took = [(durable[one["step"]] - one["mono_ns"]) / 1e9 for one in captured
            if durable.get(one["step"], 0) > one["mono_ns"]]  # fmt: skip
    kills = [kill for kill in ran.kills if kill.back is not None]
    return {"sequence": sequence, "way": ran.way.name, "total": ran.total, "step": ran.step,
            "memory": ran.memory, "kills": len(kills),
            "recovery": [kill.recovery for kill in kills], "lost": [kill.lost for kill in kills],
            "standstill": [kill.standstill for kill in ran.kills if kill.standstill],
            "delay": [kill.delay(ran.step) for kill in kills if kill.new],
            "share": ran.share(RANKS), "steps": len(ran.lines) / RANKS, "saves": len(captured),
            "persist": statistics.fmean(took) if took else 0.0,
            "loss": float.fromhex(ran.losses()[max(ran.losses())])}  # fmt: skip


# Filling


def measure_fill() -> dict:
    """What bench/exchange_bench.cpp prints; {} if it is not built."""
    program = BUILD / "bench/exchange_bench"
    if not program.exists():
        return {}
    said = subprocess.run([program], capture_output=True, text=True, check=False).stdout
    found = re.findall(r"^ *(fill / [^,]*), (\d peers?) +([\d.]+)", said, re.M)
    return {f"{name}, {peers}": float(value) for name, peers, value in found}


# Bars


class RecoveryBars(Bars):
    """The bars of all parts that were measured."""

    def judge(self, seen: dict) -> None:
        if "kills" in seen:
            self._judge_kills(seen["kills"])
        if "cost" in seen:
            self._judge_cost(seen["cost"])
        for ranks, one in seen.get("short", {}).items():
            self.at_most(f"added to a short step with {ranks} rank{'s' if ranks != '1' else ''}",
                         1e3 * difference(one["recovers"], one["plain"]).median,
                         BAR_SHORT[int(ranks)], " ms")  # fmt: skip
        if "totals" in seen:
            self._judge_totals(seen["totals"])
        if "logs" in seen:
            self._judge_logs(seen["logs"])
        for name, value in seen.get("fill", {}).items():
            if "seals" in name:
                self.at_least(name, value, BAR_FILL)

    def _judge_kills(self, seen: dict) -> None:
        ours, theirs = (statistics.median(seen[way]["recovery"]) for way in ("holdfast", "torchrun"))
        self.at_most("kill to the next step, median", ours, BAR_SECONDS, " s")
        self.at_least("torchrun restart / recovery", theirs / ours, BAR_FASTER)
        self.at_most("steps lost", sum(seen["holdfast"]["lost"]), 0)
        parts = [abs(sum(one["phases"].values()) / one["wall"] - 1) for one in seen["phases"]]
        if parts:
            self.at_most("sum of the phases / wall time, away from 1, median",
                         statistics.median(parts), BAR_PHASES)

    def _judge_cost(self, seen: dict) -> None:
        self.at_least("a step, ms", 1e3 * statistics.median(seen["plain"]) / seen["steps"], 100)
        # As everywhere, a bar is missed where the whole interval lies above it.
        self.at_most("cost of a step, lower end of the 95 % interval", cost_of(seen).low, BAR_COST)
        extra = seen["memory_recovers"] - seen["memory_without"]
        self.at_most("extra memory, MiB", extra / 2**20,
                     (0.01 * seen["memory_state"] + BAR_MEMORY) / 2**20)

    def _judge_totals(self, rows: list[dict]) -> None:
        recovery = by_way(rows, "recovery")
        ours = statistics.median(recovery.pop(HOLDFAST.name))
        for way, seconds in recovery.items():
            if seconds:
                self.at_least(f"recovery of {way} / Holdfast's", statistics.median(seconds) / ours, 1)
        self._judge_standstill([row for row in rows if "standstill" in row])
        same = all(row["same_bits"] for row in rows if row["way"] == HOLDFAST.name)
        self.at_least("Holdfast: all losses have the bits of the run without kills", float(same), 1)


    def _judge_logs(self, seen: dict) -> None:
        """As in the other parts, a bar is missed where the whole interval lies above it."""
        alone = seen["micro"] / (seen["micro"] + seen["ranks"] - 1)
        for way, bar in (("stages, messages", BAR_ALONE * alone), ("shards, updates", BAR_UPDATES)):
            rows = seen["ways"][way]
            self.at_least(f"{way}: kills that came back by the log", sum(one["rung"] == way.split(", ")[1] for one in rows),
                          len(rows))  # fmt: skip
            self.at_most(f"{way}: replay / the same steps before", interval(recovery_logs.replay_ratio(seen, way)).low, bar)
        for many in recovery_logs.SHARED:
            rows = seen["ways"].get(f"stages, messages-{many}", [])
            if rows:
                self.at_least(f"kills with {many} helpers", sum(one["helpers"] == many for one in rows), len(rows))
                self.at_most(f"replay by {many} / (that by one / {many} + sums)",
                             interval(recovery_logs.shared_ratio(seen, many)).low, 1)  # fmt: skip
        self.at_most("cost of the log of messages, lower end of the interval",
                     interval([one["messages"] / one["none"] - 1 for one in seen["calm"]]).low, BAR_LOG)

    def _judge_standstill(self, rows: list[dict]) -> None:
        """For the rivals whose survivors go on before the rank is back."""
        standstill = by_way(rows, "standstill")
        ours = standstill.get(HOLDFAST.name)
        for way in (RIVALS["torchft"].name,):
            if ours and standstill.get(way):
                ratio = statistics.median(standstill[way]) / statistics.median(ours)
                self.at_least(f"standstill of {way} / Holdfast's", ratio, 1)


def cost_of(seen: dict):
    """By which share steps take longer with recovery, with its interval."""
    return interval([with_it / without - 1 for with_it, without
                     in zip(seen["recovers"], seen["plain"], strict=True)])  # fmt: skip


def by_way(rows: list[dict], key: str) -> dict[str, list]:
    """The values of a column by way; lists are joined."""
    out: dict[str, list] = {}
    for row in rows:
        value = row[key]
        out.setdefault(row["way"], []).extend(value if isinstance(value, list) else [value])
    return out


def parse_arguments() -> argparse.Namespace:
    made = parser(__doc__, json=None)
    made.add_argument("--sequences", type=int, default=1,
                      help="how many sequences of kills all ways meet (default: 1)")
    made.add_argument("--steps", type=int, default=STEPS, help="steps of these jobs")
    made.add_argument("--kills", type=int, default=10)
    made.add_argument("--restarts", type=int, default=10, help="kills under torchrun")
    made.add_argument("--draws", type=int, default=100,
                      help="how often the sequences are drawn again for the intervals of rates")
    made.add_argument("--pairs", type=int, default=PAIRS)
    made.add_argument("--rivals", default=",".join(RIVALS))
    made.add_argument("--parts", default="kills,cost,short,totals,rates,swift,logs,fill")
    made.add_argument("--anew", action="store_true",
                      help="measure the sequences again that the file has")
    made.add_argument("--doc", action="store_true",
                      help="write the pages from bench/results/recovery.json, and measure nothing")
    return made.parse_args()


def measure(args: argparse.Namespace) -> Figures:
    parts, figures = args.parts.split(","), Figures(args.json)
    known = [] if args.anew or "totals" not in parts else figures.of_this_machine("totals")
    with tempfile.TemporaryDirectory(prefix="recovery-") as name:
        folder = Path(name)
        if "kills" in parts:
            figures.keep("kills", measure_kills(folder / "kills", args.kills, args.restarts))
        if "cost" in parts:
            figures.keep("cost", measure_cost(folder / "cost", args.pairs))
        if "short" in parts:
            figures.keep("short", measure_short(folder / "short", args.pairs))
        if "totals" in parts:
            keep_totals(figures, folder / "totals", args, known)
    if "rates" in parts and "totals" in figures.seen:
        keep_rates(figures, args.draws)
    if "swift" in parts and "kills" in figures.seen:
        keep_swift(figures)
    if "logs" in parts:
        with tempfile.TemporaryDirectory(prefix="recovery-") as name:
            recovery_logs.measure(Path(name) / "logs", lambda found: figures.keep("logs", found))
    if "fill" in parts:
        figures.keep("fill", measure_fill())
    return figures


def keep_totals(figures: Figures, folder: Path, args: argparse.Namespace, known: list[dict]) -> None:
    """Adds the sequences that are not known yet, one by one."""
    names = args.rivals.split(",")
    missing = left_out(names)
    rivals = [RIVALS[name] for name in names if name not in missing]
    sequences = sorted(set(range(args.sequences)) - {row["sequence"] for row in known})
    for rows in measure_totals(folder, rivals, sequences, args.steps):
        known = known + rows
        figures.seen |= {"mtbf": MTBF, "torchft": {**SETTINGS, "patience": PATIENCE},
                         "left_out": {RIVALS[name].name.partition(",")[0]: why
                                      for name, why in missing.items()}}  # fmt: skip
        figures.keep("totals", known)


def keep_rates(figures: Figures, draws: int) -> None:
    """Simulates from the totals, so that the machine is theirs."""
    calm = {CALM.name, CALM_HOROVOD.name}
    rows = [row for row in figures.seen["totals"] if row["way"] not in calm]
    found = cost_of(figures.seen["cost"])
    rates = rates_of(rows, BUILD / "bin/holdfast", HOLDFAST.name, PLAIN.name, RANKS,
                     (found.median, found.low, found.high), draws)  # fmt: skip
    figures.keep("rates", rates, figures.seen["machines"]["totals"])


def keep_swift(figures: Figures) -> None:
    """Simulates SWIFT's setting. Ours is the measured recovery without the step that is made again."""
    kills = figures.seen["kills"]
    ours = statistics.median(kills["holdfast"]["recovery"]) - kills["holdfast"]["step"]
    figures.keep("swift", swift_rates(BUILD / "bin/holdfast", ours), figures.seen["machines"]["kills"])


def show_totals(rows: list[dict]) -> None:
    ways = rows_by_way(rows)
    recovery = by_way(rows, "recovery")
    for way, own in ways.items():
        ratio, low, high = geometric(ratios(own, ways[HOLDFAST.name]))
        seconds = f"{statistics.median(recovery[way]):.2f} s" if recovery[way] else "-"
        print(f"{way:>42}  total {statistics.fmean(row['total'] for row in own):6.1f} s, of Holdfast's "
              f"{ratio:.3f} ({low:.3f} to {high:.3f}), recovery {seconds}")  # fmt: skip


def main() -> int:
    args = parse_arguments()
    if args.doc:
        write_pages(json.loads(RESULTS.read_text()))
        return 0
    figures, bars = measure(args), RecoveryBars()
    seen = figures.seen
    for rival, why in seen.get("left_out", {}).items():
        print(f"left out: {rival}: {why}")
    if "totals" in seen:
        show_totals(seen["totals"])
    bars.judge(seen)
    seen["bars"] = bars.figures
    figures.write()
    return 0 if bars.passed else 1


if __name__ == "__main__":
    sys.exit(main())
