"""Compares an exchange between processes with other libraries: Gloo, and DCP's save and load.

    layout_change_rivals_bench.py [MEGABYTES] [--folder PATH] [--json PATH]      default 1536

Four ranks hold a state and eight shall, each rank a process. The exchange is that of
bench/layout_change_bench.cpp by rings, which is run first.

- Gloo: each pair of ranks sends and receives its boxes by isend and irecv, into memory that was
  touched before. It has no seals, so its speed is compared with that of the copy. Bar: 2.5 times.
- torch.distributed.checkpoint: four ranks save, synced as it does by default, and eight load while
  the files are in the page cache. Its time is compared with that of the copy and the seals. Bar: 5
  times.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from measuring import results
from measuring.options import parser
from measuring.paired import seconds_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

BUILD = Path(os.environ.get("HOLDFAST_BUILD", Path(__file__).parent.parent / "build/release"))
OLD, NEW, SIDE, ROUNDS = 4, 8, 4096, 5
TENSOR = 4 * SIDE * SIDE
GLOO_BAR, DCP_BAR = 2.5, 5


def part(rank: int, ranks: int) -> tuple[int, int]:
    return SIDE * rank // ranks, SIDE * (rank + 1) // ranks


def common(old: int, new: int) -> tuple[int, int]:
    """The rows that a rank has before and another one shall have."""
    (a, b), (c, d) = part(old, OLD), part(new, NEW)
    return max(a, c), min(b, d)


def time_rounds(work: Callable[[], None]) -> list[float]:
    """Seconds of each round but the first, in which pages are touched."""
    took = []
    for _ in range(ROUNDS + 1):
        dist.barrier()
        took.append(seconds_of(lambda: (work(), dist.barrier())))
    return took[1:]


def cut(tensor: torch.Tensor, axis: int, first: int, last: int) -> torch.Tensor:
    return tensor.narrow(axis, first, last - first)


def own(rank: int, ranks: int, axis: int, value: float) -> torch.Tensor:
    """What a rank holds of a tensor that is cut along an axis; nothing if it is none of the ranks."""
    size = SIDE // ranks if rank < ranks else 0
    return torch.full((size, SIDE) if axis == 0 else (SIDE, size), value)


def run_gloo(rank: int, tensors: int) -> list[float]:
    old = [own(rank, OLD, axis_of(t), float(rank)) for t in range(tensors)]
    new = [own(rank, NEW, axis_of(t), 0.0) for t in range(tensors)]
    took = time_rounds(lambda: [exchange_tensor(rank, old[t], new[t], axis_of(t))
                                for t in range(tensors)])  # fmt: skip
    # Two new ranks have the part of one old rank.
    assert all((tensor == rank // 2).all() for tensor in new), "Gloo: wrong bytes"
    return took


def exchange_tensor(rank: int, old: torch.Tensor, new: torch.Tensor, axis: int) -> None:
    """All of a new part comes from one rank. Gloo sends no columns, so they are copied before."""
    low = part(rank, OLD)[0]
    waiting, sent = [], []
    for other in range(OLD):
        first, last = common(other, rank)
        if first < last and other == rank:
            new.copy_(cut(old, axis, first - low, last - low))
        elif first < last:
            waiting.append(dist.irecv(new, other))
    if rank < OLD:
        for other in range(NEW):
            first, last = common(rank, other)
            if other != rank and first < last:
                sent.append(cut(old, axis, first - low, last - low).contiguous())
                waiting.append(dist.isend(sent[-1], other))
    for one in waiting:
        one.wait()


def axis_of(tensor: int) -> int:
    """As tensor parallelism cuts: every second tensor by columns, the others by rows."""
    return tensor % 2


def cut_state(rank: int, ranks: int, tensors: int, value: float) -> dict[str, DTensor]:
    mesh = init_device_mesh("cpu", (ranks,))
    return {f"t{t}": DTensor.from_local(own(rank, ranks, axis_of(t), value), mesh, [Shard(axis_of(t))],
                                        run_check=False)
            for t in range(tensors)}  # fmt: skip


def run_save(rank: int, tensors: int, folder: str) -> list[float]:
    warnings.filterwarnings("ignore", message="Detected an existing checkpoint")
    state = cut_state(rank, OLD, tensors, float(rank))
    return time_rounds(lambda: dcp.save(state, checkpoint_id=folder))


def run_load(rank: int, tensors: int, folder: str) -> list[float]:
    state = cut_state(rank, NEW, tensors, -1.0)
    took = time_rounds(lambda: dcp.load(state, checkpoint_id=folder))
    assert all((tensor.to_local() == rank // 2).all() for tensor in state.values()), "DCP: wrong bytes"
    return took


def run_rank(rank: int, ranks: int, port: int, said: str, work: Callable, *arguments) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank),
                   "WORLD_SIZE": str(ranks)}  # fmt: skip
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    took = work(rank, *arguments)
    if rank == 0:
        Path(said).write_text(json.dumps(took))
    dist.destroy_process_group()


def run_ranks(ranks: int, work: Callable, *arguments) -> list[float]:
    """What rank 0 has measured."""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        port = 20000 + os.getpid() % 20000 + ranks
        mp.start_processes(run_rank, (ranks, port, str(said), work, *arguments), ranks,
                           start_method="spawn")  # fmt: skip
        return json.loads(said.read_text())


def measure_exchange(megabytes: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said.json"
        program = BUILD / "bench/layout_change_bench"
        subprocess.run([program, str(megabytes), "--only", "rings", "--json", said],
                       stdout=subprocess.DEVNULL, check=False)  # fmt: skip
        return json.loads(said.read_text())


def with_rounds(figure: dict[str, Any], rounds: list[float]) -> dict[str, Any]:
    """A figure with its rounds and their quartiles."""
    low, _, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return figure | {"lower": low, "upper": high, "rounds": rounds}


def main() -> int:
    made = parser(__doc__, folder=Path("."), json=None)
    made.add_argument("megabytes", nargs="?", type=int, default=1536)
    chosen = made.parse_args()
    tensors = max(chosen.megabytes // 64, 2)
    exchange = measure_exchange(chosen.megabytes)
    speed = exchange["rings / bare ring: exchange"]["median"]
    whole = exchange["rings: copy and seals"]["median"]
    gloos = [tensors * TENSOR / took / 1e9 for took in run_ranks(NEW, run_gloo, tensors)]
    with tempfile.TemporaryDirectory(dir=chosen.folder, prefix="dcp-bench-") as folder:
        saves = run_ranks(OLD, run_save, tensors, folder)
        loads = run_ranks(NEW, run_load, tensors, folder)
    gloo, saved, loaded = map(statistics.median, (gloos, saves, loads))
    bars = results.Bars()
    bars.show("exchange by rings, copy", speed, "GB/s")
    bars.show("Gloo", gloo, "GB/s")
    bars.at_least("exchange / Gloo", speed / gloo, GLOO_BAR)
    bars.show("exchange by rings, copy and seals", whole, "s")
    bars.show("DCP save by 4 ranks", saved, "s")
    bars.show("DCP load by 8 ranks", loaded, "s")
    bars.at_least("DCP save + load / exchange with seals", (saved + loaded) / whole, DCP_BAR)
    rounds = {"Gloo": gloos, "DCP save by 4 ranks": saves, "DCP load by 8 ranks": loads,
              "exchange / Gloo": [speed / one for one in gloos],
              "DCP save + load / exchange with seals": [(a + b) / whole for a, b in zip(saves, loads, strict=True)]}  # fmt: skip
    results.write(chosen.json, bars.figures | {name: with_rounds(bars.figures[name], each) for name, each in rounds.items()})
    return 0 if bars.passed else 1


if __name__ == "__main__":
    sys.exit(main())
