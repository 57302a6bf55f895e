"""Compares Holdfast with other libraries: the same state, the same folder, in turns.

    rivals_bench.py [--bytes N] [--rounds N] [--folder PATH] [--json PATH]

A write counts until its bytes are durable; the files of a library that does not call fsync are
synced here. Loads are cold, and end when the values are in the tensors' memory; only Holdfast
checks digests on the way. "Raw" is the device alone: 4 threads transfer blocks with O_DIRECT, from
and into the same amount of memory.
Bars: a durable write is 1.5 times as fast as that of the best rival, a cold load is faster than
that of every rival.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from measuring import results
from measuring.disk import BLOCK, Raw, forget, forget_all, sync
from measuring.options import parser
from measuring.paired import seconds_of
from measuring.rivals import (
    Dcp,
    DcpAsync,
    DcpProcess,
    Rival,
    Safetensors,
    State,
    TorchCheckpointingAtOnce,
    TorchSave,
    TorchSaveMapped,
    installed,
)

import holdfast

TENSORS = 100
RIVALS = (TorchSave, TorchSaveMapped, Safetensors, Dcp, DcpAsync, DcpProcess, TorchCheckpointingAtOnce)
RAW, OWN = "raw, direct 16 MiB x 4", "Holdfast"


class Holdfast(Rival):
    name = OWN

    def __init__(self) -> None:
        super().__init__()
        self.saver: holdfast.Saver | None = None
        self.step = 0

    def save(self, state: State, place: Path) -> None:
        if self.saver is None:
            self.saver = holdfast.Saver(place / "run")
        self.step += 1
        self.saver.save(self.step, state).durable()

    def load(self, state: State, place: Path) -> None:
        holdfast.restore(place / "run", state)


class Bench:
    """GB/s of each way, in each round."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        elements = options.bytes // TENSORS // 4
        self.state = {f"layers.{i}": torch.randn(elements) for i in range(TENSORS)}
        self.bytes = TENSORS * elements * 4
        self.folder = folder
        self.raw = Raw(folder, options.bytes, [(BLOCK, 4)])
        self.rivals = [Holdfast(), *installed(RIVALS, lambda kind: kind())]
        self.writes: dict[str, list[float]] = {RAW: []}
        self.loads: dict[str, list[float]] = {RAW: []}

    def round(self) -> None:
        self.measure_raw()
        for rival in list(self.rivals):
            try:
                self.measure(rival)
            except Exception as error:  # noqa: BLE001: a rival may fail in any way
                if rival.name == OWN:
                    raise
                print(f"  {rival.name}: left out, {type(error).__name__}: {error}")
                self.rivals.remove(rival)
                self.writes.pop(rival.name, None)
                self.loads.pop(rival.name, None)

    def measure_raw(self) -> None:
        self.keep(self.writes, RAW, self.raw.write())
        self.keep(self.loads, RAW, self.raw.read())

    def measure(self, rival: Rival) -> None:
        place = self.folder / type(rival).__name__
        os.sync()
        self.keep(self.writes, rival.name, seconds_of(lambda: self.save(rival, place)))
        os.sync()
        forget(place)
        if os.geteuid() == 0:
            forget_all()
        self.keep(self.loads, rival.name, seconds_of(lambda: rival.load(self.state, place)))
        for path in [place] if rival.name != OWN else (place / "run").glob("step-*"):
            shutil.rmtree(path)

    def save(self, rival: Rival, place: Path) -> None:
        """Returns when all is durable."""
        rival.save(self.state, place)
        rival.wait()
        if rival.name != OWN:
            sync(place)

    def keep(self, rates: dict[str, list[float]], name: str, seconds: float) -> None:
        rates.setdefault(name, []).append(self.bytes / seconds / 1e9)

    def check(self) -> None:
        """Checks that Holdfast restores what it saved, bit for bit."""
        saver = self.rivals[0]
        folder = self.folder / "Holdfast"
        before = {name: tensor.clone() for name, tensor in self.state.items()}
        saver.save(self.state, folder)
        for tensor in self.state.values():
            tensor.zero_()
        saver.load(self.state, folder)
        for name, tensor in self.state.items():
            assert torch.equal(tensor, before[name]), name


def report(bench: Bench) -> tuple[dict, bool]:
    writes, loads = ({name: statistics.median(values) for name, values in rates.items()}
                     for rates in (bench.writes, bench.loads))  # fmt: skip
    print(f"{'':26} {'durable':>8} {'of raw':>7} {'cold load':>10} {'of raw':>7}   GB/s")
    for name in writes:
        print(
            f"  {name:24} {writes[name]:8.2f} {writes[name] / writes[RAW]:7.2f}"
            f" {loads[name]:10.2f} {loads[name] / loads[RAW]:7.2f}"
        )
    others = writes.keys() - {RAW, OWN}
    bars = results.Bars()
    bars.at_least("write, of the best rival", writes[OWN] / max(writes[name] for name in others), 1.5)
    bars.at_least("load, of the best rival", loads[OWN] / max(loads[name] for name in others), 1.0)
    return {"write": writes, "load": loads, "bars": bars.figures}, bars.passed


def main() -> int:
    options = parser(__doc__, bytes=2 << 30, rounds=11, folder=Path("."), json=None).parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="rivals-") as folder:
        bench = Bench(options, Path(folder))
        print(f"{bench.bytes >> 20} MiB in {TENSORS} tensors, {options.rounds} rounds")
        for _ in range(options.rounds):
            bench.round()
        bench.check()
        figures, good = report(bench)
    results.write(options.json, figures)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
