"""Compares an exchange by rings with Gloo: the same bytes between the same ranks.

Four ranks hold equal parts of the rows of some tensors, and eight shall. With Gloo, each pair of
ranks sends and receives its parts by isend and irecv, into memory that was touched before, without
seals. The exchange is that of bench/layout_change_bench.cpp, which is run first.

    gloo_bench.py [MEGABYTES] [--json FILE]      default 1536
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

BUILD = Path(os.environ.get("HOLDFAST_BUILD", Path(__file__).parent.parent / "build/release"))
OLD, NEW, SIDE, ROUNDS = 4, 8, 4096, 5
BAR = 2.5


def part(rank: int, ranks: int) -> tuple[int, int]:
    return SIDE * rank // ranks, SIDE * (rank + 1) // ranks


def common(old: int, new: int) -> tuple[int, int]:
    """The rows that a rank has before and another one shall have."""
    (a, b), (c, d) = part(old, OLD), part(new, NEW)
    return max(a, c), min(b, d)


def run_rank(rank: int, tensors: int, port: int, said: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=NEW)
    low, high = part(rank, OLD) if rank < OLD else (0, 0)
    start, end = part(rank, NEW)
    old = [torch.full((high - low, SIDE), float(rank)) for _ in range(tensors)]
    new = [torch.zeros(end - start, SIDE) for _ in range(tensors)]
    took = []
    for _ in range(ROUNDS + 1):
        dist.barrier()
        begun = time.perf_counter()
        for t in range(tensors):
            exchange_tensor(rank, old[t], low, new[t], start)
        dist.barrier()
        took.append(time.perf_counter() - begun)
    if rank == 0:
        Path(said).write_text(json.dumps(took[1:]))
    dist.destroy_process_group()


def exchange_tensor(rank: int, old: torch.Tensor, low: int, new: torch.Tensor, start: int) -> None:
    waiting = []
    for other in range(OLD):
        first, last = common(other, rank)
        if first >= last:
            continue
        place = new[first - start : last - start]
        if other == rank:
            place.copy_(old[first - low : last - low])
        else:
            waiting.append(dist.irecv(place, other))
    if rank < OLD:
        for other in range(NEW):
            first, last = common(rank, other)
            if other != rank and first < last:
                waiting.append(dist.isend(old[first - low : last - low], other))
    for one in waiting:
        one.wait()


def measure_gloo(tensors: int) -> list[float]:
    """Gigabytes a second of all new parts, by round."""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        port = 20000 + os.getpid() % 20000
        mp.start_processes(run_rank, (tensors, port, str(said)), NEW, start_method="spawn")
        return [tensors * SIDE * SIDE * 4 / took / 1e9 for took in json.loads(said.read_text())]


def measure_exchange(megabytes: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said.json"
        program = BUILD / "bench/layout_change_bench"
        subprocess.run([program, str(megabytes), "--json", said], stdout=subprocess.DEVNULL,
                       check=False)
        return json.loads(said.read_text())["rings / bare ring: exchange"]["median"]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("megabytes", nargs="?", type=int, default=1536)
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    own = measure_exchange(chosen.megabytes)
    gloo = statistics.median(measure_gloo(max(chosen.megabytes // 64, 2)))
    ratio = own / gloo
    passed = ratio >= BAR
    print(f"exchange by rings   {own:.2f} GB/s")
    print(f"Gloo                {gloo:.2f} GB/s")
    print(f"exchange / Gloo     {ratio:.2f}; expected at least {BAR}  {'PASS' if passed else 'FAIL'}")
    if chosen.json:
        chosen.json.write_text(json.dumps({"exchange": own, "gloo": gloo, "passed": passed}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
