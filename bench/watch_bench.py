"""Measures what holdfast.Watch costs a training step, and which flips it sees.

    watch_bench.py [--bytes N] [--step SECONDS] [--flips N] [--json PATH]

Cost: the same training with and without a watch, in turns. The state is fp32 parameters with the
two moments of AdamW in host memory, and the rest of a step is spent waiting, so that the caches
forget what was sealed. Counted is the time inside of ck.step() and optimizer.step(), as a part of
the step. Bar: the watch adds at most 0.5 % of a step of 50 ms.

Detection: bits of live tensors flip at random places and at random times between two updates.
A flip is seen if the watch names its element before the next update. For each share of the time
that the watch may take, the seen part of the flips stands beside the chance that the watch
itself reports.
"""

import argparse
import contextlib
import json
import logging
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from paired import in_turns
from torch import nn

import holdfast

TENSORS = 24
BAR = 0.005
SHARES = (0.005, 0.02, 0.1, 1.0)
ROUNDS = 7  # of the comparison
STEPS = 60  # in a round
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
        watch = None if share is None else holdfast.Watch(share=share)
        self.ck = holdfast.Checkpointer(run, model=self.model, optimizer=self.optimizer,
                                        every="never", watch=watch, verbose=False,
                                        failures=holdfast.Failures(signals=False))
        self._step, self._number = step, 0
        self.spent: list[float] = []  # seconds in step() and in the optimizer, for each step

    def run(self, steps: int) -> None:
        """Makes steps."""
        for _ in range(steps):
            self._run_one(math.inf, lambda: None, lambda: None)

    def run_with(self, flip: Any, undo: Any) -> None:
        """Makes two steps: `flip` is called at a random time of the first, `undo` in the update."""
        self._run_one(random.uniform(0, self._step), flip, lambda: None)
        self._run_one(math.inf, lambda: None, undo)

    def _run_one(self, when: float, flip: Any, undo: Any) -> None:
        begin = time.perf_counter()
        self.optimizer.step()
        undo()
        # A flip during the update or the call of step() is made between the two.
        is_late = bool(self.spent) and when > self.spent[-1]
        if not is_late:
            flip()
        self.ck.step(self._number)
        self._number += 1
        self.spent.append(time.perf_counter() - begin)
        if is_late and when < math.inf:
            time.sleep(max(0.0, begin + when - time.perf_counter()))
            flip()
        time.sleep(max(0.0, begin + self._step - time.perf_counter()))

    def median(self, steps: int) -> float:
        """Seconds that a step spends in the optimizer and in the Checkpointer."""
        self.spent.clear()
        self.run(steps)
        return statistics.median(self.spent)


@contextlib.contextmanager
def training(size: int, share: float | None, step: float, lr: float = 1e-4) -> Iterator[Training]:
    with tempfile.TemporaryDirectory() as folder:
        made = Training(size, Path(folder) / "run", share, step, lr)
        try:
            made.run(WARM)
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


def interval(seen: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval."""
    z, p = 1.96, seen / trials
    middle = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def is_seen(one: Training, plan: dict[str, Any]) -> bool:
    """True if the watch names the flip of the plan, and mends it. Otherwise undoes the flip."""
    struck: list[Any] = []
    known, flip = len(one.ck.watched.alarms), plan["flips"][0]

    def found() -> bool:
        return any((alarm.tensor, list(alarm.index or ())) == (flip["tensor"], flip["index"])
                   for alarm in one.ck.watched.alarms[known:])

    one.run_with(lambda: struck.append(holdfast.inject(one.ck, plan)),
                 lambda: None if found() else struck[0].undo())
    return found()


def detection(size: int, step: float, share: float, flips: int) -> dict[str, Any]:
    """Measures the share of flips that the watch sees before the next update."""
    seen = 0
    # Without a learning rate an update changes no parameter, so that a flip that was not seen can
    # be undone afterwards.
    with training(size, share, step, lr=0.0) as one:
        for trial in range(flips):
            plan = holdfast.flip_plan(one.ck, tensors=["model.*"], bits="mantissa", seed=1,
                                      trial=trial)
            seen += is_seen(one, plan)
            one.run(1)
        report = one.ck.watched
    low, high = interval(seen, flips)
    return {"share": share, "flips": flips, "seen": seen, "part": seen / flips, "low": low,
            "high": high, "reported_chance": report.chance, "cycle_steps": report.cycle,
            "window_bytes": report.window_bytes, "bytes": report.bytes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=48 << 20)
    parser.add_argument("--step", type=float, default=0.05)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.getLogger("holdfast").setLevel(logging.ERROR)  # a warning for each flip
    torch.set_num_threads(1)
    random.seed(0)
    costs = cost(options.bytes, options.step)
    print(f"watch: {costs['window_bytes']:,} of {costs['bytes']:,} bytes in each step of "
          f"{options.step * 1e3:.0f} ms, all in {costs['cycle_steps']} steps; adds "
          f"{costs['added_s'] * 1e6:.0f} us, {costs['added_share']:.2%} of a step "
          f"(bar {BAR:.1%})")
    curve = [detection(options.bytes // 16, 0.005, share, options.flips // len(SHARES))
             for share in SHARES]
    for one in curve:
        print(f"share {one['share']:.1%}: {one['seen']} of {one['flips']} flips seen, "
              f"{one['part']:.1%} ({one['low']:.1%} to {one['high']:.1%}); the watch reports "
              f"{one['reported_chance']:.1%}")
    passed = costs["added_share"] <= BAR
    if options.json:
        options.json.write_text(json.dumps({"cost": costs, "detection": curve, "passed": passed},
                                           indent=1) + "\n")
    if not passed:
        raise SystemExit("watch_bench: the watch costs more than its bar")


if __name__ == "__main__":
    main()
