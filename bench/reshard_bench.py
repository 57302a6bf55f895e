"""Compares `holdfast reshard` with a bare copy of the same bytes, and with DCP.

    reshard_bench.py [--bytes N] [--rounds N] [--folder PATH] [--json PATH]

A step that tp=4,pp=2 has cut becomes one of tp=2,pp=4. Beside it, in turns:

- a bare copy of a file of as many bytes, with direct I/O (raw_io_bench --copy). Bar: 0.8 of it;
- torch.distributed.checkpoint: a folder of the same tensors is loaded and saved again. DCP has no
  re-cut without a load and a save. Bar: 1.5 times as fast as that.

Memory: at most 512 MiB. All files are cold when they are read.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from measuring import results
from measuring.disk import forget_all
from measuring.options import parser
from measuring.paired import in_turns, seconds_of
from safetensors.torch import save_file

BUILD = Path(os.environ.get("HOLDFAST_BUILD", Path(__file__).parent.parent / "build/release"))
PROGRAM = BUILD / "bin" / "holdfast"
RAW = BUILD / "bench" / "raw_io_bench"
DCP = """
import os, sys, time, torch
import torch.distributed.checkpoint as dcp
reader = dcp.FileSystemReader(sys.argv[1])
shapes = reader.read_metadata().state_dict_metadata
start = time.perf_counter()
state = {name: torch.empty(of.size, dtype=of.properties.dtype) for name, of in shapes.items()}
dcp.load(state, storage_reader=reader, no_dist=True)
dcp.save(state, checkpoint_id=sys.argv[2], no_dist=True)
print(time.perf_counter() - start)
"""


def layer_shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    return {"ln_1.weight": (hidden,), "ln_1.bias": (hidden,), "ln_2.weight": (hidden,),
            "ln_2.bias": (hidden,), "attn.c_attn.weight": (hidden, 3 * hidden),
            "attn.c_attn.bias": (3 * hidden,), "attn.c_proj.weight": (hidden, hidden),
            "attn.c_proj.bias": (hidden,), "mlp.c_fc.weight": (hidden, 4 * hidden),
            "mlp.c_fc.bias": (4 * hidden,), "mlp.c_proj.weight": (4 * hidden, hidden),
            "mlp.c_proj.bias": (hidden,)}


def make_tensors(total: int) -> dict[str, torch.Tensor]:
    """GPT-2 with moments, of about as many bytes. Four stages need four layers."""
    hidden = 1024 if total >= 3e9 else 256
    count = sum(torch.Size(shape).numel() for shape in layer_shapes(hidden).values())
    layers = max(4, 4 * round(total / (4 * 4 * 3 * count)))
    names = {f"h.{i}.{name}": shape for i in range(layers)
             for name, shape in layer_shapes(hidden).items()}
    names |= {"wte.weight": (1024, hidden), "wpe.weight": (1024, hidden), "ln_f.weight": (hidden,),
              "ln_f.bias": (hidden,)}
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for name, shape in names.items():
        tensors["model." + name] = torch.rand(shape, generator=generator)
        for slot in ("exp_avg", "exp_avg_sq"):
            tensors[f"optimizer.{name}.{slot}"] = torch.rand(shape, generator=generator)
    return tensors


class Bench:
    def __init__(self, options, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.bars = results.Bars()

    def prepare(self) -> None:
        tensors = make_tensors(self.options.bytes)
        self.bytes = sum(tensor.nbytes for tensor in tensors.values())
        dcp.save(tensors, checkpoint_id=self.folder / "dcp", no_dist=True)
        save_file(tensors, self.folder / "gpt2.safetensors")
        del tensors
        self.run(self.folder / "gpt2.safetensors", self.folder / "cut", "tp=4,pp=2")

    @staticmethod
    def run(source: Path, target: Path, to: str) -> None:
        subprocess.run([PROGRAM, "reshard", source, target, "--to", to], check=True,
                       stdout=subprocess.DEVNULL)

    def ours(self) -> float:
        target = self.folder / "again"
        forget_all()
        took = seconds_of(lambda: self.run(self.folder / "cut", target, "tp=2,pp=4"))
        shutil.rmtree(target)
        return self.bytes / took / 1e9

    def copy(self) -> float:
        forget_all()
        done = subprocess.run([RAW, f"--copy={self.folder / 'gpt2.safetensors'}",
                               f"--folder={self.folder}"], check=True, capture_output=True,
                              text=True)
        return float(done.stdout)

    def dcp(self) -> float:
        target = self.folder / "saved"
        forget_all()
        done = subprocess.run([sys.executable, "-c", DCP, self.folder / "dcp", target], check=True,
                              capture_output=True, text=True)
        shutil.rmtree(target)
        return self.bytes / float(done.stdout.split()[-1]) / 1e9

    def measure(self) -> None:
        self.prepare()
        seen = in_turns({"reshard": self.ours, "bare copy": self.copy, "DCP load + save": self.dcp},
                        self.options.rounds)
        print(f"{self.bytes / 1e9:.2f} GB, tp=4,pp=2 -> tp=2,pp=4, {self.options.rounds} rounds; "
              "medians in GB/s")
        for name, rates in seen.items():
            self.bars.show(name, statistics.median(rates), "GB/s")
            self.bars.figures[name] = {"GB/s": rates}
        ratios = [a / b for a, b in zip(seen["reshard"], seen["bare copy"], strict=True)]
        self.bars.at_least("of a bare copy", statistics.median(ratios), 0.8)
        ratios = [a / b for a, b in zip(seen["reshard"], seen["DCP load + save"], strict=True)]
        self.bars.at_least("as fast as DCP load + save, times", statistics.median(ratios), 1.5)
        peak = self.peak_memory()
        self.bars.at_most("memory, MiB", peak, 512)

    def peak_memory(self) -> float:
        """The most memory that a call of reshard takes, in MiB."""
        words = [str(PROGRAM), "reshard", str(self.folder / "cut"), str(self.folder / "peak"),
                 "--to", "tp=2,pp=4"]
        code = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, "
                "stdout=subprocess.DEVNULL); "
                "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
        done = subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True,
                              text=True)
        shutil.rmtree(self.folder / "peak")
        return int(done.stdout) / 1024


def main() -> int:
    options = parser(__doc__, bytes=4_000_000_000, rounds=5, folder=Path("."), json=None).parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="reshard-bench-") as folder:
        bench = Bench(options, Path(folder))
        bench.measure()
    results.write(options.json, bench.bars.figures)
    return 0 if bench.bars.passed else 1


if __name__ == "__main__":
    sys.exit(main())
