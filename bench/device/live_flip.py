"""Shows on a GPU that holdfast.Watch mends bits of CUDA tensors that flip while training runs.

    PYTHONPATH=... python3 bench/device/live_flip.py [--flips N] [--width N] [--json PATH]

A small network is trained with deterministic kernels, once untouched and once with one flipped bit
in each step from the 40th on, in a parameter or slot at random, after the backward pass. The watch
looks at as many bytes as it can seal in the time that it may take, which a step of so small a
network leaves for a part of them only. So each step pauses, as if it waited for its data, and the
watch may take all of its time: it must then look at all bytes in every step. It must name the
element and the bit of each flip before the update, and mend it: at the end all parameters and slots
must have the bits of the untouched training. Then a larger network is trained, without a pause and
with the default share of half a percent, to show what the watch costs a step and how much it looks
at. Exits with 1 if not all bytes were looked at in every step, a flip was missed, or a bit differs.
"""

import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import holdfast

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import results  # noqa: E402: it is in the folder above
from measuring.machines import this_run  # noqa: E402
from measuring.options import parser  # noqa: E402
from measuring.paired import in_turns, seconds_of  # noqa: E402

QUIET_STEPS = 40  # before the first flip, in which the watch finds its size
PAUSE_S = 0.1  # in each step of the training with flips
COST_STEPS = 800
TURNS = 8
LARGER = 8  # times the width, where the cost is measured
BATCH = 64


class Training:
    """A network on the device, under a Checkpointer that watches it, or under none."""

    def __init__(self, run: Path, width: int, device: str, watch: holdfast.Watch | None) -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = nn.Sequential(nn.Linear(width, width), nn.ReLU(),
                                   nn.Linear(width, width)).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3,
                                           fused=device == "cuda")
        self.data = torch.randn(BATCH, width, device=device)
        self.ck = holdfast.Checkpointer(run, model=self.model, optimizer=self.optimizer,
                                        every="never", watch=watch, verbose=False,
                                        failures=holdfast.Failures(signals=False))
        self.plans: list[dict[str, Any]] = []
        self.made = 0  # steps that median() has made

    def step(self, number: int, trial: int | None = None) -> None:
        """Makes a step. With a trial, a bit of that number flips before the update."""
        self.model(self.data).square().mean().backward()
        if trial is not None:
            plan = holdfast.flip_plan(self.ck, roles=["parameter", "slot"], seed=11, trial=trial)
            holdfast.inject(self.ck, plan)
            self.plans.append(plan["flips"][0])
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.ck.step(number)

    def bits(self) -> list[torch.Tensor]:
        """Copies of all parameters and slots, as bytes."""
        tensors = [*self.model.parameters(), *(value for state in self.optimizer.state.values()
                                               for value in state.values())]
        return [one.detach().cpu().contiguous().view(-1).view(torch.uint8) for one in tensors]

    def median(self, steps: int) -> float:
        """Seconds of a step, when the device has nothing else to do."""
        first, self.made = self.made, self.made + steps
        return statistics.median(seconds_of(lambda number=number: self.step(number))
                                 for number in range(first, self.made))


def flips(folder: Path, count: int, width: int, device: str) -> dict[str, Any]:
    """Trains with and without flips, and compares."""
    golden = Training(folder / "golden", width, device, None)
    hurt = Training(folder / "hurt", width, device, holdfast.Watch(share=1.0, compare_every=0.01))
    cycles = []
    for number in range(QUIET_STEPS + count):
        golden.step(number)
        time.sleep(PAUSE_S)
        is_quiet = number < QUIET_STEPS
        cycles += [] if is_quiet else [hurt.ck.watched.cycle]
        hurt.step(number, None if is_quiet else number - QUIET_STEPS)
    wanted = [(one["tensor"], tuple(one["index"]), int(one["mask"], 16)) for one in hurt.plans]
    seen = [(one.tensor, one.index, _mask(one.bits)) for one in hurt.ck.watched.alarms
            if one.mended == "seal"]
    equal = all(torch.equal(a, b) for a, b in zip(golden.bits(), hurt.bits(), strict=True))
    for one in golden, hurt:
        one.ck.close(save=False)
    return {"flips": count, "named_and_mended": sum(a == b for a, b in zip(wanted, seen)),
            "alarms": len(seen), "equal_bits": equal, "bytes": hurt.ck.watched.bytes,
            "cycle_steps": max(cycles, default=0),
            "first": str(hurt.ck.watched.alarms[0]) if seen else ""}


def _mask(bits: str) -> int:
    return 1 << int(bits.removeprefix("bit ")) if bits.startswith("bit ") else 0


def cost(folder: Path, width: int, device: str) -> dict[str, Any]:
    """What the watch adds to a step with its default share."""
    plain = Training(folder / "plain", width, device, None)
    watched = Training(folder / "watched", width, device, holdfast.Watch())
    # In turns, because the clock of the device changes while it is in use.
    seen = in_turns({"plain": lambda: plain.median(COST_STEPS // TURNS),
                     "watched": lambda: watched.median(COST_STEPS // TURNS)}, TURNS)
    report = watched.ck.watched
    for one in plain, watched:
        one.ck.close(save=False)
    return {"plain_step_s": statistics.median(seen["plain"]),
            "watched_step_s": statistics.median(seen["watched"]), "own_share": report.share,
            "cycle_steps": report.cycle, "window_bytes": report.window_bytes,
            "bytes": report.bytes, "left_out": report.left_out}


def main() -> int:
    made = parser(__doc__, json=None)
    made.add_argument("--flips", type=int, default=200)
    made.add_argument("--width", type=int, default=256)
    made.add_argument("--device", choices=["cuda", "cpu"], default="cuda",
                      help="cpu only tries the script itself")
    given = made.parse_args()
    logging.getLogger("holdfast").setLevel(logging.ERROR)  # a warning for each flip
    torch.use_deterministic_algorithms(True, warn_only=True)
    name = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        mended = flips(Path(folder), given.flips, given.width, given.device)
        print(f"{name}: {mended['named_and_mended']} of {mended['flips']} flips named and mended, "
              f"all bytes looked at in {mended['cycle_steps']} steps, "
              f"bits {'equal' if mended['equal_bits'] else 'DIFFER'}; the first: {mended['first']}")
        costs = cost(Path(folder), LARGER * given.width, given.device)
    print(f"{name}: a step takes {costs['plain_step_s'] * 1e3:.3f} ms, watched "
          f"{costs['watched_step_s'] * 1e3:.3f} ms; all {costs['bytes']:,} bytes in "
          f"{costs['cycle_steps']} steps; the watch has taken {costs['own_share']:.2%} of the time")
    passed = (mended["named_and_mended"] == mended["flips"] == mended["alarms"]
              and mended["cycle_steps"] == 1 and mended["equal_bits"] and not costs["left_out"])
    results.write(given.json, {"run": this_run(), "device": name, "mended": mended, "cost": costs, "passed": passed})
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
