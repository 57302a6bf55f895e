"""Recovery on a GPU: two DDP ranks share it over Gloo, one is killed, and the bits are compared.

    PYTHONPATH=... python3 bench/device/gpu_recovery.py [--json PATH]

NCCL refuses two ranks on one GPU, so Gloo carries the gradients. Prints whether all losses and the
end are equal to those of a run in which nobody died, how long the recovery took, and what the gate
costs a step: the median of the differences between steps with ck.run() and plain ones, in turns.
"""

import hashlib
import json
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measuring import results  # noqa: E402: it is in the folder above
from measuring.launched import launch  # noqa: E402
from measuring.machines import this_run  # noqa: E402
from measuring.options import parser  # noqa: E402

STEPS, WIDTH, LAYERS, BATCH = 30, 2048, 8, 512
BAR_MS = 3.0


def train(run: Path, kill: int) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import holdfast

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(*(layer for _ in range(LAYERS)
                          for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.1)))).cuda()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(rank)
    data = torch.randn(BATCH * 64, WIDTH)
    loader = holdfast.data.loader(torch.utils.data.TensorDataset(data), BATCH, seed=1, epochs=None)
    ck = holdfast.Checkpointer(run, model=model, optimizer=optimizer, data=loader, every="never")
    mark = run.with_suffix(".killed")

    def step_of(x: torch.Tensor) -> torch.Tensor:
        loss = (model(x) - x).pow(2).mean()
        loss.backward()
        if step == kill and rank == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    times: dict[bool, list[float]] = {True: [], False: []}
    with open(f"{run}.losses.{rank}", "a") as losses:
        for step, (x,) in zip(range(ck.resume(), STEPS), loader):
            x = x.cuda()
            torch.cuda.synchronize()
            start = time.perf_counter()
            loss = ck.run(step_of, x)
            torch.cuda.synchronize()
            times[True].append(time.perf_counter() - start)
            losses.write(json.dumps([step, loss.item().hex()]) + "\n")
            losses.flush()
            ck.step(step, loss=loss)
    digest = hashlib.sha256()
    for one in [*net.parameters(), *(v for s in optimizer.state.values() for v in s.values())]:
        digest.update(one.detach().cpu().contiguous().numpy().tobytes())
    digest.update(torch.cuda.get_rng_state().numpy().tobytes())
    Path(f"{run}.end.{rank}").write_text(digest.hexdigest())
    # The cost of the gate: plain steps and steps by run(), in turns.
    for turn in range(40):
        x = data[:BATCH].cuda()
        for with_gate in (turn % 2 == 0, turn % 2 == 1):
            torch.cuda.synchronize()
            start = time.perf_counter()
            ck.run(step_of, x) if with_gate else step_of(x)
            torch.cuda.synchronize()
            times[with_gate].append(time.perf_counter() - start)
    gate = [1e3 * (a - b) for a, b in zip(times[True][-40:], times[False], strict=True)]
    Path(f"{run}.cost.{rank}").write_text(json.dumps(
        {"step_ms": 1e3 * statistics.median(times[False]), "gate_ms": statistics.median(gate)}))
    ck.close(save=False)
    dist.destroy_process_group()


def run_job(run: Path, kill: int) -> tuple[str, list[str]]:
    _, said = launch("-n", 2, __file__, "--run", run, "--kill", kill)
    ends = [Path(f"{run}.end.{rank}") for rank in range(2)]
    return said, [one.read_text() if one.exists() else "" for one in ends]


def main(report: Path | None) -> int:
    with tempfile.TemporaryDirectory() as folder:
        said, whole = run_job(Path(folder) / "whole", -1)
        print(said, end="")
        cost = json.loads((Path(folder) / "whole.cost.0").read_text())
        said, killed = run_job(Path(folder) / "killed", 12)
        print(said, end="")
    found = re.search(r"goes on after ([\d.]+) s", said)
    same = whole == killed and all(whole)
    figures = {"run": this_run(), "same_bits": same, "recovery_s": float(found[1]) if found else None, **cost}
    print(json.dumps(figures))
    results.write(report, figures)
    results.Bars().at_most("gate, ms of a step", cost["gate_ms"], BAR_MS)
    print(f"  the bits of a run in which nobody died: {'PASS' if same else 'FAIL'}")
    return 0 if same else 1


if __name__ == "__main__":
    made = parser(__doc__, json=None)
    made.add_argument("--run", type=Path, help="used by the ranks themselves")
    made.add_argument("--kill", type=int, default=-1, help="likewise")
    given = made.parse_args()
    if given.run is not None:
        train(given.run, given.kill)
    else:
        sys.exit(main(given.json))
