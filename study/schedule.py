"""Makes docs/studies/schedule.md: what schedules cost a job, measured with `holdfast simulate`.

    python study/schedule.py [PROGRAM]

The text of the page stands in schedule_template.md beside this script, which measures the figures,
makes the tables, and writes the figures of all cells to two files beside the page. PROGRAM is the
holdfast command, by default .venv/bin/holdfast. All files are the same on every machine, because the
simulator gives the same bits and this script rounds what it computes from them.
"""

import math
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, product
from pathlib import Path
from statistics import median
from typing import Any

from program import Program, data, table
from schedule_jobs import (
    HOUR,
    INJECTED,
    MINUTE,
    POISSON,
    RATES,
    SCENARIOS,
    SERIAL_FIGURE,
    STALLS,
    STARTS,
    STOPPED,
    THETAS,
    Workers,
    exponential,
    halving,
    hour,
    percent,
    phases_text,
)
from schedule_parallel import parallel_table

ROOT = Path(__file__).resolve().parents[1]
TEMPLATE = Path(__file__).with_name("schedule_template.md")
PAGE = ROOT / "docs/studies/schedule.md"
PROGRESS = PAGE.with_name("schedule_progress.csv")
SECONDS = PAGE.with_name("schedule_seconds.csv")

POLICIES = ("young", "coci", "checkfreq", "daly-exact", "even", "equal-progress")


@dataclass
class Objective:
    """What a schedule minimizes, and how that is measured."""

    name: str
    metric: str
    metric_in_words: str
    options: dict[str, Any] = field(default_factory=dict)


OBJECTIVES = (
    Objective("delay", "time", "wall time beyond the work"),
    Objective("progress", "progress", "fall of the loss that stalls and rollbacks cost"),
    Objective("explore", "durable",
              "fall of the loss that is missing in the durable state at a stop (after 30 min in "
              "the mean, always without notice)", {"stop": 30 * MINUTE, "second": 0}),
    Objective("priced", "priced",
              "fall of the loss that rollbacks cost, and that saves cost at 5 s each besides their "
              "stall", {"price": 5}),
)  # fmt: skip


@dataclass
class Cell:
    """One choice of parameters, and what schedules cost there."""

    stall: float
    rate: float
    theta1: float
    # The expected value of the paper's metric to the first order, by policy.
    expected: dict[str, float]
    # What was simulated, by scenario and policy.
    seen: dict[str, dict[str, dict[str, Any]]]

    def changes(self, policy: str, other: str) -> dict[str, float]:
        """The paper's metric of a policy divided by that of another, minus 1, by column."""
        out = {"expected, first order": self.expected[policy] / self.expected[other] - 1}
        for title, seen in self.seen.items():
            metric = "progress_until_stop" if title == STOPPED else "progress"
            ours, theirs = seen[policy][metric], seen[other][metric]
            out[title] = ours["mean"] / theirs["mean"] - 1
            if title == POISSON:
                out["Poisson, median run"] = ours["median"] / theirs["median"] - 1
        return out

    def time(self, scenario: str, policy: str) -> dict[str, float]:
        return self.seen[scenario][policy]["time"]

    @property
    def parameters(self) -> list[str]:
        return [f"{value:g}" for value in (self.stall, self.rate, self.theta1)]


def measure_cell(program: Program, stall: float, rate: float, theta1: float) -> Cell:
    job = hour(stall, rate, theta1) | {"objective": "progress"}
    compared = program.interval(**job)["policies"]
    expected = {each["policy"]: each["cost"] for each in compared}
    policies = ("young", "coci", "checkfreq", "daly-exact", "optimal")
    seen = {title: program.simulate(policies, seed=20231, **job, **options)
            for title, options in SCENARIOS.items()}  # fmt: skip
    return Cell(stall, rate, theta1, expected, seen)


def summary_table(cells: list[Cell], policy: str, other: str) -> str:
    """In how many cells the policy is better, and its least, median and greatest change."""
    changes = [cell.changes(policy, other) for cell in cells]
    rows = []
    for title in changes[0]:
        if title == "Poisson, median run" and other != "young":
            continue
        all_cells = [each[title] for each in changes]
        better = sum(change < -1e-9 for change in all_cells)
        rows.append([title, str(better), percent(min(all_cells)), percent(median(all_cells)),
                     percent(max(all_cells))])  # fmt: skip
    return table(["failures", "cells below", "least", "median", "most"], rows)


def published_figure_table(cells: list[Cell], figure: float) -> str:
    """How many cells reach a published figure against Young, and the cell that is closest to it."""
    rows = []
    for title in SCENARIOS:
        changes = [cell.changes("coci", "young")[title] for cell in cells]
        reached = sum(change <= figure for change in changes)
        nearest, cell = min(zip(changes, cells), key=lambda each: abs(each[0] - figure))
        closest = "none within 1.5 points"
        if abs(nearest - figure) < 0.015:
            stall, rate, theta1 = cell.parameters
            closest = f"Ts {stall} s, {rate}/min, theta1 {theta1}/min gives {percent(nearest)}"
        rows.append([title, str(reached), closest])
    return table(["failures", f"cells at {100 * figure:.2f} % or below, against young",
                  "a cell that gives it"], rows)  # fmt: skip


def printed_objective(times: list[float], stall: float, rate: float, theta1: float,
                      first: float) -> float:
    """P_s + P_r as third-party notes on the paper print it. Its integral over the progress p weighs
    failures by rate exp(-rate t) dp and not dt, so failures late in the run hardly count."""
    k, edges = -theta1, [0.0, *(time / MINUTE for time in times), HOUR / MINUTE]
    stalls = sum(-math.expm1(theta1 * stall / MINUTE) * first * math.exp(theta1 * t)
                 for t in edges[1:-1])  # fmt: skip

    def falls(a: float, b: float, decay: float) -> float:
        return (math.exp(-decay * a) - math.exp(-decay * b)) / decay

    rollbacks = sum(math.exp(-k * a) * falls(a, b, rate + k) - falls(a, b, rate + 2 * k)
                    for a, b in zip(edges, edges[1:]))  # fmt: skip
    return stalls + rate * k * first * first * rollbacks


def objective_changes(program: Program, first: float, stall: float, rate: float,
                      theta1: float) -> dict[str, float]:
    """COCI against Young by the expected value and by the objective as printed."""
    job = hour(stall, rate, theta1, first) | {"objective": "progress"}
    coci, young = (next(each for each in program.interval(**job)["policies"]
                        if each["policy"] == name) for name in ("coci", "young"))  # fmt: skip
    printed = [printed_objective(each["times"], stall, rate, theta1, first)
               for each in (coci, young)]  # fmt: skip
    return {"expected value": coci["cost"] / young["cost"] - 1,
            "as third-party notes print it": printed[0] / printed[1] - 1}  # fmt: skip


def objective_table(program: Program, pool: ThreadPoolExecutor) -> str:
    """COCI against Young over all cells, by objective and starting loss."""
    rows = []
    for first in STARTS:
        cells = list(pool.map(lambda each: objective_changes(program, first, *each),
                              product(STALLS, RATES, THETAS)))  # fmt: skip
        for title in cells[0]:
            changes = [cell[title] for cell in cells]
            rows.append([title, f"{first:g}", str(sum(change < -1e-9 for change in changes)),
                         percent(min(changes)), percent(median(changes)), percent(max(changes)),
                         str(sum(change <= SERIAL_FIGURE for change in changes))])  # fmt: skip
    return table(["objective", "starting loss", "cells below Young", "least", "median", "most",
                  f"cells at {100 * SERIAL_FIGURE:.2f} % or below"],
                 sorted(rows, key=lambda row: row[0], reverse=True))  # fmt: skip


def best_cell_text(program: Program) -> str:
    """Simulates COCI against Young in the cell that is best for COCI."""
    seen = program.simulate(("young", "coci"), runs=1000000, seed=11, objective="progress",
                            **hour(1.6, 0.00024, -0.01, 4.6))  # fmt: skip
    base, change = seen["young"]["progress"]["mean"], seen["coci"]["progress_against_first"]
    return f"{percent(change['mean'] / base)} +- {100 * change['ci95'] / base:.1f} %"


def phase_changes(program: Program) -> list[float]:
    """COCI against Young on the example of COCI's public repository, for each phase of its
    injected failures."""
    phases = 102
    job = {"length": 30 * MINUTE, "stall": 0.09, "mtbf": MINUTE / 0.0042, "runs": 1,
           "curve": exponential(math.exp(0.787), -0.078), "objective": "progress"}  # fmt: skip
    out = []
    for phase in range(phases):
        failures = f"{INJECTED},{(phase + 0.5) / phases}"
        seen = program.simulate(("young", "coci"), failures=failures, **job)
        out.append(seen["coci"]["progress"]["mean"] / seen["young"]["progress"]["mean"] - 1)
    return sorted(out)


def corrected_deviations(comparisons: int) -> float:
    """By how many standard deviations a normal value exceeds its mean, on either side, with the
    probability 0.05 / comparisons. Computed from the leading terms of the inverse tail."""
    log_odds = 2 * math.log(2 * comparisons / 0.05)
    return math.sqrt(log_odds - math.log(log_odds) - math.log(2 * math.pi) + 0.5)


def optimum_excesses(program: Program, objective: Objective, deviations: float,
                     job: dict[str, Any]) -> list[tuple[float, float]]:
    """By which share the optimum costs more than each other policy, which is negative if it costs
    less, and the corrected confidence interval of that share."""
    best, *others = program.simulate(("optimal", *POLICIES), runs=100000, seed=5,
                                     objective=objective.name, **objective.options, **job).values()
    base = best[objective.metric]["mean"]
    differences = [each[f"{objective.metric}_against_first"] for each in others]
    return [(-each["mean"] / base, each["ci95"] / 1.96 * deviations / base)
            for each in differences]  # fmt: skip


def own_objective_table(program: Program, pool: ThreadPoolExecutor) -> str:
    """Compares the optimum with all other policies on its own objective."""
    jobs = [hour(*each) for each in product(STALLS, (RATES[0], RATES[-1]), THETAS[::2])]
    deviations = corrected_deviations(len(OBJECTIVES) * len(jobs) * len(POLICIES))
    rows = []
    for objective in OBJECTIVES:
        measured = pool.map(partial(optimum_excesses, program, objective, deviations), jobs)
        excesses = list(chain.from_iterable(measured))
        beaten = sum(excess > max(0.005, interval) for excess, interval in excesses)
        worst, its_interval = max(excesses, key=lambda each: each[0])
        rows.append([objective.name, objective.metric_in_words, str(len(excesses)), str(beaten),
                     f"{100 * worst:.2f}", f"{100 * its_interval:.2f}"])  # fmt: skip
    return table(["objective", "measured", "comparisons", "beaten", "worst excess, %",
                  "its corrected interval, %"], rows)  # fmt: skip


def allocated(program: Program, length: float) -> Workers:
    """The workers of a young job beside three jobs that have converged further."""
    curves = [f"exp:{math.exp(-age)},2h" for age in (0, 1, 2, 2.5)]
    answer = program.interval(length=length, stall=1, allocate=32, reallocate="5m", curve=curves)
    return [(phase["start"], phase["count"]) for phase in answer["job"]["workers"]]


def shrinking_row(program: Program, workers: Workers, mtbf: float, stall: float) -> list[str]:
    """A job whose number of workers shrinks. Young's rule is given the failure rate of one worker,
    of the most workers and of the mean number of workers."""
    length = 2 * HOUR
    ends = [start for start, _ in workers[1:]] + [length]
    mean = sum(count * (end - start) for (start, count), end in zip(workers, ends)) / length
    young = [f"{math.sqrt(2 * stall * (mtbf / count))}s" for count in (1, workers[0][1], mean)]
    first, *others = program.simulate(
        (*young, "checkfreq", "even", "optimal"), length=length, stall=stall, mtbf=mtbf, step=0.25,
        workers=phases_text(workers), runs=1500, seed=3,
    ).values()  # fmt: skip
    base = first["worker_seconds"]
    differences = [each["worker_seconds_against_first"] for each in others]
    return ["-".join(f"{count:g}" for _, count in workers),
            f"MTBF {mtbf / HOUR:g} h a worker, stall {stall:g} s",
            f"{base['mean']:.0f} +- {base['ci95']:.0f}",
            *(f"{percent(each['mean'] / base['mean'])} +- {100 * each['ci95'] / base['mean']:.1f}"
              for each in differences)]  # fmt: skip


def shrinking_table(program: Program, pool: ThreadPoolExecutor) -> str:
    jobs = [(halving(most, phases, 2 * HOUR), mtbf * HOUR, stall)
            for most, phases in ((8, 4), (16, 5), (32, 6))
            for mtbf, stall in ((8, 1), (24, 5), (48, 30))]  # fmt: skip
    jobs.append((allocated(program, 2 * HOUR), 24 * HOUR, 5))
    return table(["workers", "job", "Young, one worker's MTBF, worker-s", "Young, most",
                  "Young, mean", "CheckFreq", "best even", "optimal"],
                 pool.map(lambda job: shrinking_row(program, *job), jobs))  # fmt: skip


def progress_row(cell: Cell) -> list[str]:
    """COCI against Young by the paper's metric, in percent."""
    coci, young = (cell.seen[POISSON][policy] for policy in ("coci", "young"))
    half = coci["progress_against_first"]["ci95"] / young["progress"]["mean"]
    changes = {title: percent(each) for title, each in cell.changes("coci", "young").items()}
    changes[POISSON] += f",{100 * half:.1f}"
    return [*cell.parameters, str(coci["scheduled_saves"]), str(young["scheduled_saves"]),
            *changes.values()]  # fmt: skip


def progress_data(cells: list[Cell]) -> str:
    return data(["stall_s", "failures_per_min", "theta1_per_min", "saves_coci", "saves_young",
                 "expected", "poisson_mean", "poisson_mean_ci95", "poisson_median_run",
                 "no_failure", "one_failure", "one_in_first_10_percent",
                 "one_in_first_25_percent", "every_5.103_min", "stopped_at_25_percent"],
                map(progress_row, cells))  # fmt: skip


def seconds_row(cell: Cell) -> list[str]:
    young = cell.time(POISSON, "young")
    others = [cell.time(POISSON, policy)["mean"]
              for policy in ("coci", "checkfreq", "daly-exact", "optimal")]  # fmt: skip
    pairs = [[cell.time(scenario, policy)["mean"] for policy in ("young", "coci")]
             for scenario in ("no failure", "one in the first 10 %")]  # fmt: skip
    figures = [young["mean"], young["ci95"], *others, *chain.from_iterable(pairs)]
    return [*cell.parameters, *(f"{figure:.1f}" for figure in figures)]


def seconds_data(cells: list[Cell]) -> str:
    return data(["stall_s", "failures_per_min", "theta1_per_min", "young", "young_ci95", "coci",
                 "checkfreq", "daly_exact", "optimal_for_progress", "no_failure_young",
                 "no_failure_coci", "one_in_first_10_percent_young",
                 "one_in_first_10_percent_coci"],
                map(seconds_row, cells))  # fmt: skip


def make_files(program: Program) -> dict[Path, str]:
    """The page, and the figures of all cells."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        cells = list(pool.map(lambda each: measure_cell(program, *each),
                              product(STALLS, RATES, THETAS)))  # fmt: skip
        phases = phase_changes(program)
        beaten = [cell.expected["optimal"] / cell.expected[policy] - 1 > 1e-9
                  for cell in cells for policy in POLICIES]  # fmt: skip
        page = TEMPLATE.read_text().format(
            cells=len(cells),
            coci_against_young=summary_table(cells, "coci", "young"),
            coci_against_checkfreq=summary_table(cells, "coci", "checkfreq"),
            optimal_against_young=summary_table(cells, "optimal", "young"),
            least_phase=percent(phases[0]),
            median_phase=percent(median(phases)),
            most_phase=percent(phases[-1]),
            published_figure=published_figure_table(cells, SERIAL_FIGURE),
            objectives=objective_table(program, pool),
            best_cell=best_cell_text(program),
            own_objectives=own_objective_table(program, pool),
            beaten=sum(beaten),
            comparisons=len(beaten),
            shrinking_jobs=shrinking_table(program, pool),
            parallel_jobs=parallel_table(program, pool),
        )
    return {PAGE: page, PROGRESS: progress_data(cells), SECONDS: seconds_data(cells)}


if __name__ == "__main__":
    given = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".venv/bin/holdfast")
    if not os.access(given, os.X_OK):
        print(f"schedule.py: {given} cannot be run; expected the holdfast command, which "
              "`make build` makes", file=sys.stderr)
        sys.exit(2)
    for path, text in make_files(Program(given)).items():
        path.write_text(text)
