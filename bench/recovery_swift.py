"""SWIFT's own setting, simulated: from which failure rate on is its training 1.16 times as short?

SWIFT's public code (jasperzhong/swift, 63ca51a) fixes the setting and gives some times. What it does not
give is named here, and the same for both sides, so that it does not decide:

- The time of a step follows from the batch and from the range of throughputs that its plots show, so
  there are two bounds of it.
- A restart from a checkpoint redoes the lost steps at this speed. SWIFT's recovery times, 126.0 s and
  76.5 s, are those for 50 lost steps, which is the mean for a checkpoint every 100 steps.
- Before either can begin, the fault must be seen and the workers must be there. Its code polls every
  10 s and a restart sleeps for 15 s. These waits are counted for the restart from a checkpoint. Whether
  SWIFT's recovery times have them is not said. They are taken as whole times, which favours SWIFT.
- For a model with replicas the code gives no time. What is simulated is Holdfast's recovery, as
  bench/recovery_bench.py has measured it, and one step that is made again.
- What a checkpoint costs while nothing fails is not given, and both sides write the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from recovery_rates import LEAST_STALL, Cost, crossing, simulated_total

# Mean seconds between failures. Below the first of them a checkpoint every 100 steps makes no progress.
MTBFS = (300, 450, 600, 900, 1350, 1800, 3600, 4 * 3600, 24 * 3600)
POLL, SLEEP = 10.0, 15.0  # seconds: how often SWIFT looks for a fault, and what a restart sleeps


@dataclass(frozen=True)
class Setting:
    """A training of SWIFT's evaluation."""

    name: str
    batch: float  # samples or tokens in a step
    throughputs: tuple[float, float]  # of these in a second: the range of the plot
    every: int  # steps from one checkpoint to the next
    recovery: float | None  # seconds of SWIFT's recovery by logs; None for the model with replicas

    def steps(self) -> tuple[float, float]:
        """The least and the greatest time of a step."""
        low, high = self.throughputs
        return self.batch / high, self.batch / low


SETTINGS = (
    Setting("ViT-128/32, logs", 4096, (1000, 1200), 100, 126.0),
    Setting("BERT-128, logs", 512 * 128, (17000, 21000), 100, 76.5),
    Setting("Wide-ResNet-50-2, replicas", 8192, (7800, 8900), 200, None),
)
Total = Callable[[Cost, float, float], float]


def swift_rates(program: Path, ours: float) -> dict:
    """The total time from checkpoints divided by that with recovery, for both bounds of a step.

    `ours` is what a recovery of Holdfast takes beside the step that is made again."""
    def total(cost: Cost, step: float, mtbf: float) -> float:
        return simulated_total(program, cost, step, mtbf)

    return {"mtbfs": list(MTBFS), "ours": ours,
            "settings": {each.name: setting_rates(each, ours, total) for each in SETTINGS}}  # fmt: skip


def setting_rates(setting: Setting, ours: float, total: Total) -> dict:
    bounds = []
    for step in setting.steps():
        recovery = ours + step if setting.recovery is None else setting.recovery
        # The lost steps are in the recovery, so the simulated job loses at most one.
        recovers = Cost(step, max(0.0, recovery - step / 2), LEAST_STALL, 0.0, f"{step:.6f}s")
        restarts = Cost(step, POLL / 2 + SLEEP, LEAST_STALL, 0.0, f"{setting.every * step:.6f}s")
        ratios = [total(restarts, step, mtbf) / total(recovers, step, mtbf) for mtbf in MTBFS]
        bounds.append({"step": step, "recovery": recovery, "ratios": ratios,
                       "crossing": crossing(ratios, MTBFS)})  # fmt: skip
    return {"every": setting.every, "whose": "Holdfast" if setting.recovery is None else "SWIFT",
            "bounds": bounds}  # fmt: skip
