"""Compares Holdfast with the libraries whose files it reads.

    formats_bench.py [--bytes N] [--rounds N] [--parts PART,...] [--folder PATH] [--json FILE]

Parts, by default all of them:

- npz, hdf5, tensorflow and dcp: converting stored npz, contiguous HDF5, a TensorFlow checkpoint and a folder of
  torch.distributed.checkpoint (DCP) to safetensors, beside a plain copy of the same bytes with
  fsync, and beside the library itself with save_file. Bars: 0.7 of the copy, faster than the
  library, at most 64 MiB of memory more than for a tiny file.
- gzip: reading HDF5 with gzip, beside h5py, and converting it, beside h5py with save_file. Bars: as fast.
- flips: flipping bits in HDF5 with one patch, beside element by element with h5py. Bar: 20 times as fast.

All ways run in turns, and medians are compared. A file of figures keeps the parts that are not measured
again, and on which machine each part was measured. TensorFlow is left out unless make test-all has
installed it (scripts/foreign_environment.sh tensorflow).
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from measuring.disk import sync
from measuring.figures_file import Figures
from measuring.options import parser
from measuring.paired import in_turns, seconds_of
from measuring.results import Bars, progress

import holdfast

ROOT = Path(__file__).parents[1]
BUILD = Path(holdfast._native.__file__).parents[2]
PROGRAM = BUILD / "bin" / "holdfast"
PATCHES = BUILD / "bench" / "patch_bench"
TENSORS = 50
BLOCK = 4 << 20
TENSORFLOW = """
import os, sys, time
import safetensors.numpy
import tensorflow as tf
start = time.perf_counter()
reader = tf.train.load_checkpoint(sys.argv[1])
names = [n for n in reader.get_variable_to_shape_map() if not n.startswith("_")]
safetensors.numpy.save_file({n: reader.get_tensor(n) for n in names}, sys.argv[2])
os.fsync(os.open(sys.argv[2], os.O_RDONLY))
print(time.perf_counter() - start)
"""


def plain_copy(source: Path, target: Path) -> None:
    with open(source, "rb", buffering=0) as read, open(target, "wb", buffering=0) as written:
        block = memoryview(bytearray(BLOCK))
        while count := read.readinto(block):
            written.write(block[:count])
    sync(target)


def from_npz(source: Path, target: Path) -> None:
    with np.load(source) as file:
        safetensors.numpy.save_file({name: file[name] for name in file.files}, target)
    sync(target)


def from_hdf5(source: Path, target: Path) -> None:
    with h5py.File(source) as file:
        safetensors.numpy.save_file({name: file[name][()] for name in file}, target)
    sync(target)


def from_dcp(source: Path, target: Path) -> None:
    kept = dcp.FileSystemReader(source).read_metadata().state_dict_metadata
    state = {name: torch.empty(one.size) for name, one in kept.items()}
    dcp.load(state, checkpoint_id=source, no_dist=True)
    safetensors.torch.save_file(state, target)
    sync(target)


def from_tensorflow(python: Path, source: Path, target: Path) -> float:
    """Returns the seconds without those for importing TensorFlow."""
    words = [python, "-c", TENSORFLOW, source / "ckpt", target]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return float(done.stdout)


def peak_memory(*words) -> int:
    """The most memory that a call of the program takes, in bytes.

    The system's own figure for a child begins at the memory of this process, so the peak of the
    child is read while it runs.
    """
    process = subprocess.Popen([PROGRAM, *map(str, words)], stdout=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError):  # it ends just now
            has_begun = PROGRAM.name in os.readlink(f"/proc/{process.pid}/exe")
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                if has_begun and line.startswith("VmHWM:"):
                    peak = int(line.split()[1])
        time.sleep(0.001)
    assert process.returncode == 0, words
    return peak * 1024


class Bench:
    def __init__(self, options, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.bars = Bars()

    def arrays(self) -> dict[str, np.ndarray]:
        random = np.random.default_rng(1)
        rows = max(self.options.bytes // TENSORS // 4096, 1)
        return {f"w{i}": random.random((rows, 1024), dtype=np.float32) for i in range(TENSORS)}

    def timed(self, work: Callable[[], object]) -> float:
        """The seconds that the work takes, or those that it says it took."""
        os.sync()
        said: list[object] = []
        seconds = seconds_of(lambda: said.append(work()))
        return said[0] if isinstance(said[0], float) else seconds

    def in_turns(self, ways: dict[str, Callable[[], object]]) -> dict[str, float]:
        timed = {name: lambda work=work: self.timed(work) for name, work in ways.items()}
        seen = in_turns(timed, self.options.rounds)
        return {name: statistics.median(times) for name, times in seen.items()}

    def convert(self, name: str, source: Path, library: Callable | None,
                compressed: bool = False) -> None:  # fmt: skip
        target, plain = self.folder / "target.safetensors", self.folder / "plain.safetensors"
        holdfast.convert(source, plain)

        def fresh(work, *paths):
            target.unlink(missing_ok=True)
            return work(*paths, target)

        ways = {"copy": lambda: fresh(plain_copy, plain),
                "ours": lambda: fresh(holdfast.convert, source)}  # fmt: skip
        if library:
            ways["library"] = lambda: fresh(library, source)
        seen = self.in_turns(ways)
        for way, took in seen.items():
            print(f"  {name} to safetensors, {way}: {plain.stat().st_size / took / 1e9:.2f} GB/s")
        if not compressed:  # a copy does not decode
            self.bars.at_least(f"{name}: convert, of a plain copy", seen["copy"] / seen["ours"], 0.7)
        if library:
            self.bars.at_least(f"{name}: convert, of the library", seen["library"] / seen["ours"], 1)
        target.unlink()
        small = self.folder / "small.npz"
        np.savez(small, w=np.ones(3))
        base = peak_memory("convert", small, self.folder / "small.safetensors")
        peak = peak_memory("convert", source, target)
        self.bars.at_most(f"{name}: memory of convert", (peak - base) / 2**20, 64, " MiB")
        for path in (target, plain, small, self.folder / "small.safetensors"):
            path.unlink()

    def npz(self) -> None:
        path = self.folder / "a.npz"
        np.savez(path, **self.arrays())
        self.convert("npz", path, from_npz)

    def hdf5(self) -> None:
        self.convert("HDF5", self.plain_hdf5(), from_hdf5)

    def plain_hdf5(self) -> Path:
        path = self.folder / "a.h5"
        with h5py.File(path, "w") as file:
            for name, array in self.arrays().items():
                file[name] = array
        return path

    def tensorflow(self) -> None:
        python = ROOT / ".cache" / "tensorflow" / "bin" / "python"
        path, checkpoint = self.plain_hdf5(), self.folder / "tensorflow"
        words = ["convert", path, checkpoint, "--format", "tensorflow"]
        subprocess.run([PROGRAM, *words], check=True, stdout=subprocess.DEVNULL)
        path.unlink()
        found = python.exists() and subprocess.run(
            [python, "-c", "import safetensors, tensorflow"], capture_output=True
        ).returncode == 0  # fmt: skip
        if not found:
            print("  TensorFlow with safetensors is not installed and is left out")
        library = (lambda *paths: from_tensorflow(python, *paths)) if found else None
        self.convert("TensorFlow", checkpoint, library)

    def dcp(self) -> None:
        checkpoint = self.folder / "dcp"
        state = {name: torch.from_numpy(array) for name, array in self.arrays().items()}
        dcp.save(state, checkpoint_id=checkpoint, no_dist=True)
        del state
        self.convert("DCP", checkpoint, from_dcp)

    def gzip(self) -> None:
        path = self.folder / "gzip.h5"
        random = np.random.default_rng(1)
        rows = max(self.options.bytes // 4 // 4 // 1024, 1)
        # Weights of limited precision, which compress to about two thirds.
        weights = random.standard_normal((rows, 1024), np.float32).view(np.uint32)
        weights = (weights & np.uint32(0xFFFFF000)).view(np.float32)
        with h5py.File(path, "w") as file:
            file.create_dataset("w", data=weights, compression="gzip")

        def ours():
            return holdfast.open(path).read("w")

        def theirs():
            with h5py.File(path) as file:
                return file["w"][()]

        assert np.array_equal(np.asarray(ours()), theirs())
        seen = self.in_turns({"ours": ours, "h5py": theirs})
        for way, took in seen.items():
            print(f"  gzip HDF5, read by {way}: {weights.nbytes / took / 1e9:.2f} GB/s")
        self.bars.at_least("gzip HDF5: read, of h5py", seen["h5py"] / seen["ours"], 1)
        self.convert("gzip HDF5", path, from_hdf5, compressed=True)
        path.unlink()
        with h5py.File(path, "w") as file:
            file.create_dataset("w", data=weights, compression="gzip", shuffle=True)
        self.convert("gzip HDF5, shuffled", path, from_hdf5, compressed=True)

    def flips(self) -> None:
        path = self.folder / "flips.h5"
        rows = max(self.options.bytes // 4 // 4096, 1)
        with h5py.File(path, "w") as file:
            file["w"] = np.zeros((rows, 1024), np.float32)

        def rate(*words) -> float:
            done = subprocess.run([*map(str, words)], check=True, capture_output=True, text=True)
            return float(done.stdout)

        seen = in_turns({
            "ours": lambda: rate(PATCHES, "--file", path, "--tensor", "w", "--flips", 100_000),
            "h5py": lambda: rate(sys.executable, ROOT / "bench/rivals/hdf5_flips.py", path, "w", 5000),
        }, self.options.rounds)  # fmt: skip
        rates = {name: statistics.median(one) for name, one in seen.items()}
        for way, one in rates.items():
            print(f"  HDF5, bits flipped by {way}: {one:,.0f} a second")
        self.bars.at_least("flips in HDF5: of h5py", rates["ours"] / rates["h5py"], 20)


PARTS = {"npz": Bench.npz, "hdf5": Bench.hdf5, "tensorflow": Bench.tensorflow, "dcp": Bench.dcp,
         "gzip": Bench.gzip, "flips": Bench.flips}  # fmt: skip


def parse() -> argparse.Namespace:
    made = parser(__doc__, bytes=2_000_000_000, rounds=5, folder=Path("."), json=None)
    made.add_argument("--parts", default=",".join(PARTS))
    given = made.parse_args()
    given.parts = given.parts.split(",")
    if unknown := [one for one in given.parts if one not in PARTS]:
        made.error(f"--parts {unknown[0]}; expected some of {', '.join(PARTS)}")
    return given


def main() -> int:
    options = parse()
    figures, passed = Figures(options.json), True
    print(f"{options.bytes / 1e9:.1f} GB in {TENSORS} tensors, {options.rounds} rounds")
    for part in options.parts:
        progress(f"{part} ...")
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="formats-") as folder:
            bench = Bench(options, Path(folder))
            PARTS[part](bench)
        figures.keep(part, bench.bars.figures | {"bytes": options.bytes, "rounds": options.rounds})
        passed &= bench.bars.passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
