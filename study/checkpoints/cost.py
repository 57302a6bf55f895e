"""E1: by how much a training takes longer because it saves.

A step here is the update of an optimizer with momentum over the whole state, in NumPy. The same block of steps runs with
one save in each interval and without, in turns. Before the next block begins, what an engine writes in the background is
written, and a sync has returned, so that no block pays for another.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import models
import numpy as np
import states
from engine import Engine, Session
from forks import in_a_fork, seconds_of
from formats import LONG
from states import State

EACH_STEP, SEVERAL = 10, 3  # the saves of a block that saves after each step, or less often


def measure(engine: Engine, work: Path, intervals: list[int], rounds: int,
            state: Sequence[str] = models.TIMED) -> dict[str, Any]:
    """`intervals`: every so many steps there is a save."""
    try:
        return in_a_fork(lambda: _measure(engine, work / "saved", intervals, rounds, models.make(*state)), work, seconds=3600)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _measure(engine: Engine, folder: Path, intervals: list[int], rounds: int, state: State) -> dict[str, Any]:
    states.use(state)
    folder.mkdir(parents=True)
    with engine.session(engine.hold(state), folder) as session:
        training = _Training(state, session, folder)
        first = training.run(2, 2)  # with what an engine prepares only once
        several = SEVERAL
        if training.run(2, 2) > 2 * LONG:  # nobody saves after each step then
            several, intervals = 1, [interval for interval in intervals if interval > 1]
        blocks = {interval: training.compare(interval, rounds, EACH_STEP if interval == 1 else several)
                  for interval in intervals}  # fmt: skip
        return {"first": first, "step": training.step_seconds(), "blocks": blocks}


class _Training:
    def __init__(self, state: State, session: Session, folder: Path) -> None:
        self.pairs = [(state[name.removeprefix("momentum_")], array)
                      for name, array in state.items() if name.startswith("momentum_")]  # fmt: skip
        self.session, self.folder, self.saved = session, folder, 0

    def step(self) -> None:
        for weight, momentum in self.pairs:
            np.multiply(momentum, np.float32(0.999), out=momentum)
            np.subtract(weight, momentum, out=weight)

    def step_seconds(self) -> float:
        return min(seconds_of(self.step) for _ in range(5))

    def run(self, steps: int, interval: int) -> float:
        """Seconds of so many steps; interval 0: without saves."""

        def work() -> None:
            for step in range(steps):
                self.session.wait()
                self.step()
                if interval and step % interval == 0:
                    self.saved += 1
                    self.session.save(self.saved)

        seconds = seconds_of(work)
        self.session.finish()
        os.sync()
        return seconds

    def compare(self, interval: int, rounds: int, saves_of_block: int) -> dict[str, Any]:
        """Seconds of blocks with saves and without. Every second pair begins with the other one."""
        steps = saves_of_block * interval
        with_saves, without = [], []
        for number in range(rounds):
            for saves in (number % 2 == 0, number % 2 == 1):
                (with_saves if saves else without).append(self.run(steps, interval if saves else 0))
        return {"saves": saves_of_block, "steps": steps, "with": with_saves, "without": without}
