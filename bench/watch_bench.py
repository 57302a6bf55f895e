"""Measures what holdfast.Watch costs a training step, and which flips it sees.

    watch_bench.py [--bytes N] [--step SECONDS] [--flips N] [--parts LIST] [--json PATH] [--doc]

Cost: the same training with and without a watch, in turns. The state is fp32 parameters with the
two moments of AdamW in host memory, and the rest of a step is spent waiting, so that the caches
forget what was sealed. Counted is the time inside of ck.step() and optimizer.step(), as a part of
the step. Bar: the watch adds at most 0.5 % of a step of 50 ms.

Detection: bits of live tensors flip at random places and at random times between two updates.
A flip is seen if the watch names its element before the next update. For each share of the time
that the watch may take, the seen part of the flips stands beside the chance that the watch
itself reports. Bar: that chance lies inside the 99.9 % interval of the seen part, for each share.

`make bench` flips 100 bits for each share. The figures of docs/failures.md are made by

    watch_bench.py --flips 1000 --json bench/results/watch.json
    watch_bench.py --doc     # writes the figures of that file into the page; measures nothing
"""

import argparse
import contextlib
import json
import logging
import math
import os
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from measuring import results
from measuring.machines import busy_cores, this_run
from measuring.options import parser
from measuring.paired import in_turns
from torch import nn

import holdfast
from holdfast.statistics import wilson_interval
from watch_page import write_page

RESULTS = Path(__file__).resolve().parent / "results/watch.json"
TENSORS = 24
BAR = 0.005
SHARES = (0.005, 0.02, 0.1, 1.0)
ROUNDS = 7  # of the comparison
STEPS = 60  # in a round
_COMPARE = 40  # steps between two comparisons
_APART = 8  # steps between two flips
WARM = 40  # steps before anything is counted, in which the watch finds its size


class Training:
    """A model whose step takes a given time."""

    def __init__(self, size: int, run: Path, share: float | None, step: float, lr: float) -> None:
        columns = 256
        rows = max(1, size // 3 // 4 // TENSORS // columns)
        self.model = nn.ParameterList(nn.Parameter(torch.randn(rows, columns))
                                      for _ in range(TENSORS))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=0.0,
                                           fused=True)
        for parameter in self.model:
            parameter.grad = torch.zeros_like(parameter)
        # Ranks compare often, so that the windows soon have the size that the share allows.
        watch = None if share is None else holdfast.Watch(share=share, compare_every=_COMPARE * step,
                                                          on_alarm="warn")
        self.ck = holdfast.Checkpointer(run, model=self.model, optimizer=self.optimizer,
                                        every="never", watch=watch, verbose=False,
                                        failures=holdfast.Failures(signals=False))
        self._step, self._number = step, 0
        self.spent: list[float] = []  # seconds in step() and in the optimizer, for each step

    def run(self, steps: int) -> None:
        """Makes steps."""
        for _ in range(steps):
            self._run_one(Flips(self.ck, [], []))

    def run_with(self, flips: "Flips") -> None:
        """Makes steps until all flips are made and judged."""
        while not flips.is_over:
            self._run_one(flips)

    def _run_one(self, flips: "Flips") -> None:
        begin = time.perf_counter()
        self.optimizer.step()
        flips.judge()
        # A flip whose time comes in the update or in step() is made between the two, where no
        # window is open; one that comes in step() waits for the next step.
        flips.strike(time.perf_counter())
        self.ck.step(self._number)
        self._number += 1
        self.spent.append(time.perf_counter() - begin)
        flips.defer(time.perf_counter())
        while (now := time.perf_counter()) < begin + self._step:
            time.sleep(max(0.0, min(flips.next_time, begin + self._step) - now))
            flips.strike_in_window(time.perf_counter())

    def median(self, steps: int) -> float:
        """Seconds that a step spends in the optimizer and in the Checkpointer."""
        self.spent.clear()
        self.run(steps)
        return statistics.median(self.spent)


class Flips:
    """Flips at given times, and whether the watch names them before the next update."""

    def __init__(self, ck: holdfast.Checkpointer, times: list[float],
                 plans: list[dict[str, Any]]) -> None:
        self._ck, self._due = ck, deque(zip(times, plans, strict=True))
        self._late: list[dict[str, Any]] = []  # their time came inside of step()
        self._struck: list[tuple[dict[str, Any], Any]] = []
        self._known = 0  # alarms before those that are in the tensors now
        self.seen = 0

    @property
    def is_over(self) -> bool:
        return not (self._due or self._late or self._struck)

    @property
    def next_time(self) -> float:
        return self._due[0][0] if self._due else math.inf

    def defer(self, now: float) -> None:
        """Keeps those whose time has come for the next call of strike()."""
        while self.next_time <= now:
            self._late.append(self._due.popleft()[1])

    def strike(self, now: float) -> None:
        """Makes all flips whose time has come, also the late ones."""
        self.defer(now)
        late, self._late = self._late, []
        self._make(late)

    def strike_in_window(self, now: float) -> None:
        """Makes the flips whose time has come since step() returned."""
        while self.next_time <= now:
            self._make([self._due.popleft()[1]])

    def _make(self, plans: list[dict[str, Any]]) -> None:
        if plans and not self._struck:
            self._known = len(self._ck.watched.alarms)
        self._struck += [(plan, holdfast.inject(self._ck, plan)) for plan in plans]

    def judge(self) -> None:
        """Counts the flips that the watch has named, after the update, and undoes all."""
        if not self._struck:
            return
        alarms = self._ck.watched.alarms[self._known:]
        for plan, injection in self._struck:
            flip = plan["flips"][0]
            self.seen += any(alarm.tensor == flip["tensor"]
                             and alarm.index in (None, tuple(flip["index"])) for alarm in alarms)
            injection.undo()
        self._struck = []


@contextlib.contextmanager
def training(size: int, share: float | None, step: float, lr: float = 1e-4,
             warm: int = WARM) -> Iterator[Training]:
    with tempfile.TemporaryDirectory() as folder:
        made = Training(size, Path(folder) / "run", share, step, lr)
        try:
            made.run(warm)
            yield made
        finally:
            made.ck.close(save=False)


def cost(size: int, step: float) -> dict[str, Any]:
    """What the watch adds to a step, as a part of it."""
    with training(size, None, step) as plain, training(size, BAR, step) as watched:
        seen = in_turns({"plain": lambda: plain.median(STEPS),
                         "watched": lambda: watched.median(STEPS)}, ROUNDS)
        added = [b - a for a, b in zip(seen["plain"], seen["watched"], strict=True)]
        report = watched.ck.watched
    return {"bytes": report.bytes, "step_s": step, "window_bytes": report.window_bytes,
            "cycle_steps": report.cycle, "chance": report.chance,
            "added_s": statistics.median(added), "added_share": statistics.median(added) / step,
            "own_share": report.share}


def detection(size: int, step: float, share: float, flips: int) -> dict[str, Any]:
    """Measures the share of flips that the watch sees before the next update."""
    # Without a learning rate an update changes no parameter, so that a flip can be undone after it.
    with training(size, share, step, lr=0.0, warm=0) as one:
        # Made before the first step, because no flip comes in the time that this takes.
        plans = [holdfast.flip_plan(one.ck, tensors=["model.*"], bits="mantissa", seed=1,
                                    trial=trial) for trial in range(flips)]
        one.run(5 * WARM)  # the first comparisons do not count
        # Uniform in real time, also in steps that take longer because the machine is busy.
        now, apart = time.perf_counter(), _APART * step
        struck = Flips(one.ck, [now + (k + random.random()) * apart for k in range(flips)], plans)
        one.run_with(struck)
        seen, report = struck.seen, one.ck.watched
    low, high = wilson_interval(seen, flips)
    least, most = wilson_interval(seen, flips, 0.999)
    return {"share": share, "flips": flips, "seen": seen, "part": seen / flips, "low": low,
            "high": high, "reported_chance": report.chance,
            "agrees": least <= report.chance <= most, "cycle_steps": report.cycle,
            "window_bytes": report.window_bytes, "bytes": report.bytes}


def print_cost(costs: dict[str, Any]) -> None:
    print(f"watch: {costs['window_bytes']:,} of {costs['bytes']:,} bytes in each step of "
          f"{costs['step_s'] * 1e3:.0f} ms, all in {costs['cycle_steps']} steps; adds "
          f"{costs['added_s'] * 1e6:.0f} us, {costs['added_share']:.2%} of a step "
          f"(bar {BAR:.1%})")


def print_detection(one: dict[str, Any]) -> None:
    print(f"share {one['share']:.1%}: {one['seen']} of {one['flips']} flips seen, "
          f"{one['part']:.1%} ({one['low']:.1%} to {one['high']:.1%}); the watch reports "
          f"{one['reported_chance']:.1%}, which {'agrees' if one['agrees'] else 'DOES NOT AGREE'}")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measures the parts that are asked for, and prints them."""
    seen: dict[str, Any] = {"passed": True, "cores": os.cpu_count()}
    if "cost" in options.parts:
        seen["load"] = busy_cores()  # detection does not depend on it
        seen["cost"] = cost(options.bytes, options.step)
        print_cost(seen["cost"])
        seen["passed"] &= seen["cost"]["added_share"] <= BAR
    if "detection" in options.parts:
        seen["detection"] = []
        for share in SHARES:
            one = detection(options.bytes // 16, 0.005, share, options.flips)
            print_detection(one)
            seen["detection"].append(one)
            seen["passed"] &= one["agrees"]
    return seen


def main() -> None:
    made = parser(__doc__, bytes=48 << 20, json=None)
    made.add_argument("--step", type=float, default=0.05, help="seconds of a step")
    made.add_argument("--flips", type=int, default=100, help="for each share")
    made.add_argument("--parts", nargs="+", choices=["cost", "detection"],
                      default=["cost", "detection"])
    made.add_argument("--doc", action="store_true",
                      help="write the page from bench/results/watch.json, and measure nothing")
    options = made.parse_args()
    if options.doc:
        return write_page(json.loads(RESULTS.read_text()))
    logging.getLogger("holdfast").setLevel(logging.ERROR)  # a warning for each flip
    torch.set_num_threads(1)
    random.seed(0)
    seen = measure(options)
    if options.json:
        before = json.loads(options.json.read_text()) if options.json.exists() else {}
        machines = before.get("machines", {}) | dict.fromkeys(options.parts, this_run())
        results.write(options.json, before | seen | {"machines": machines})
    if not seen["passed"]:
        raise SystemExit("watch_bench: a bar is missed")


if __name__ == "__main__":
    main()
