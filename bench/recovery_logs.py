"""A rank of which nobody has a replica is lost. Part of bench/recovery_bench.py, which runs this training:

    holdfast launch -n 4 bench/recovery_logs.py FOLDER KIND LOG STEPS SAVED KILLED

KIND is `stages` (each rank is a stage of a pipeline, 1F1B, MICRO micro-batches) or `shards` (FSDP2 over all ranks).
LOG is messages (messages-2: two processes share the replay), updates or none. Step SAVED is saved, and is durable
before the next one begins; rank 1 ends itself in step KILLED, once. Compute is paced: the forward pass of a
micro-batch sleeps PACE seconds on each rank, and the backward pass twice that. Rank 0 writes FOLDER/steps: each step,
and when it was done.
"""

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from measuring.events import events_of
from measuring.paired import interval
from measuring.results import progress

RANKS, MICRO, PACE = 4, 8, 0.005
SAVED, KILLED, STEPS = 4, 54, 58  # SWIFT: a kill 50 steps behind a checkpoint
ROUNDS, PAIRS = 3, 8
CALM_RANKS, CALM_STEPS, CALM_PACE = 2, 40, 0.0037  # steps of 100 ms: (8 + 1) * 3 * 3.7 ms
WIDTH, BATCH = 256, 64
NEVER = 1_000_000
SHARED = (2, 4)  # processes that share the replay of a stage
WAYS = [("stages", "messages"), *(("stages", f"messages-{many}") for many in SHARED), ("stages", "none"),
        ("shards", "updates"), ("shards", "none")]  # fmt: skip


def measure(folder: Path, keep: Callable[[dict], object]) -> None:
    """Kills in each way, and what the log of messages costs if nobody dies. Keeps what it has after each round."""
    folder.mkdir()
    out: dict = {"ranks": RANKS, "micro": MICRO, "replayed steps": KILLED - SAVED - 1, "ways": {}, "calm": []}
    for number in range(ROUNDS):
        for kind, log in WAYS:
            seen = killed(folder / f"{kind}-{log}-{number}", kind, log)
            out["ways"].setdefault(f"{kind}, {log}", []).append(seen)
            progress(f"{kind}, {log}: {seen}")
        keep(out)
    for number in range(PAIRS):
        order = ("messages", "none") if number % 2 else ("none", "messages")
        out["calm"].append({log: calm(folder / f"calm-{log}-{number}", log) for log in order})
        progress(f"calm: {out['calm'][-1]}")
        keep(out)


def run(folder: Path, ranks: int, *words: object, pace: float = PACE) -> dict[int, float]:
    """When each step was done for the first time."""
    folder.mkdir()
    subprocess.run([sys.executable, "-m", "holdfast.launch", "-n", str(ranks), __file__, str(folder), *map(str, words)],
                   check=True, env=os.environ | {"OMP_NUM_THREADS": "1", "PACE": str(pace)},
                   stdout=sys.stderr)  # fmt: skip
    done: dict[int, float] = {}
    for line in (folder / "steps").read_text().splitlines():
        step, at = line.split()
        done.setdefault(int(step), float(at))
    return done


def killed(folder: Path, kind: str, log: str) -> dict[str, float | str]:
    """The seconds of a step, from the last step before a kill to the next new one, and of the replay."""
    done = run(folder, RANKS, kind, log, STEPS, SAVED, KILLED)
    (told,) = events_of(folder / "run", "recovered")
    steps = [done[step] - done[step - 1] for step in range(SAVED + 2, KILLED)]
    return {"rung": told["rung"], "step": statistics.median(steps), "stood": done[KILLED] - done[KILLED - 1],
            "replayed": told.get("replayed", 0.0), "log bytes": told["log_bytes"],
            "helpers": told["helpers"], "sums": told["sums"]}  # fmt: skip


def calm(folder: Path, log: str) -> float:
    """The seconds of a step of two stages while nobody dies, without the first ones."""
    done = run(folder, CALM_RANKS, "stages", log, CALM_STEPS, NEVER, NEVER, pace=CALM_PACE)
    return statistics.median(done[step] - done[step - 1] for step in range(8, CALM_STEPS))


def replay_ratio(seen: dict, way: str) -> list[float]:
    """Seconds of the replay beside those that the job took for the same steps."""
    return [one["replayed"] / (seen["replayed steps"] * one["step"]) for one in seen["ways"][way]]


def shared_ratio(seen: dict, many: int) -> list[float]:
    """Seconds of a replay that is shared beside 1 / `many` of one that is not, and its sums."""
    alone = statistics.median(one["replayed"] for one in seen["ways"]["stages, messages"])
    return [one["replayed"] / (alone / many + one["sums"]) for one in seen["ways"][f"stages, messages-{many}"]]


def _helpers_text(seen: dict) -> str:
    """What helpers gain; "" if it was not measured."""
    found = [many for many in SHARED if f"stages, messages-{many}" in seen["ways"]]
    if not found:
        return ""
    rows = {many: seen["ways"][f"stages, messages-{many}"] for many in found}
    shares = " and ".join(f"{interval(replay_ratio(seen, f'stages, messages-{many}'))}" for many in found)
    bars = " and ".join(f"{interval(shared_ratio(seen, many))}" for many in found)
    sums = " and ".join(f"{statistics.median(one['sums'] for one in rows[many]):.2f}" for many in found)
    return (f"If {' and '.join(map(str, found))} processes share the replay (`Recover(helpers=)`), it takes {shares} of the "
            f"pipeline's time: {bars} times its share of the replay by one and the seconds for sums, which are {sums}. ")  # fmt: skip


def logs_text(seen: dict) -> str:
    """The paragraph of the page; "" if it was not measured."""
    if not seen or not seen["calm"]:
        return ""
    steps, micro, ranks = seen["replayed steps"], seen["micro"], seen["ranks"]
    alone, updates = (interval(replay_ratio(seen, way)) for way in ("stages, messages", "shards, updates"))
    stood = {way: interval([one["stood"] for one in rows]) for way, rows in seen["ways"].items()}
    added = interval([100 * (one["messages"] / one["none"] - 1) for one in seen["calm"]])
    step = 1e3 * statistics.median(one["none"] for one in seen["calm"])
    kept = statistics.median(one["log bytes"] for one in seen["ways"]["stages, messages"]) / 1e6
    return (
        f"**Where nobody has a replica** (SWIFT's setting: a kill {steps + 1} steps behind the newest checkpoint). {ranks} "
        f"ranks, paced, {micro} micro-batches in a step. A lost stage makes {steps} steps again from messages "
        f"({kept:.0f} MB are read) in {alone} of the time that the pipeline took for them; alone it has no bubble, and {micro} / "
        f"({micro} + {ranks - 1}) is {micro / (micro + ranks - 1):.2f}. {_helpers_text(seen)}A lost shard of FSDP2 makes their updates again in "
        f"{updates} of that time. Training stands still for {stood['stages, messages']} s with the log of messages, and "
        f"{stood['stages, none']} s if all ranks start again from the checkpoint; {stood['shards, updates']} s with the log of "
        f"updates, and {stood['shards, none']} s without. While nobody dies, the log of messages adds {added} % to steps "
        f"of {step:.0f} ms (two stages, {len(seen['calm'])} pairs of runs; `bench/recovery_bench.py --parts logs`).\n"
    )


# The training


def main(folder: Path, kind: str, log: str, steps: int, saved: int, killed: int) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    import holdfast

    pace, (log, _, many) = float(os.environ["PACE"]), log.partition("-")

    class Paced(torch.autograd.Function):
        @staticmethod
        def forward(_: object, x: torch.Tensor) -> torch.Tensor:
            time.sleep(pace)
            return x.clone()

        @staticmethod
        def backward(_: object, gradient: torch.Tensor) -> torch.Tensor:
            time.sleep(2 * pace)
            return gradient

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Paced.apply(x + self.second(torch.relu(self.first(x))))

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential()
    model.add_module(f"stage{rank if kind == 'stages' else ''}", Block())  # a stage has names of its own
    loss_of = nn.MSELoss()
    if kind == "shards":
        model = fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = holdfast.data.loader(torch.utils.data.TensorDataset(torch.randn(4096, WIDTH)), BATCH, seed=0, epochs=None,
                                  rank=0, world=1)  # fmt: skip
    if kind == "stages":
        one = torch.empty(BATCH // MICRO, WIDTH)
        stage = PipelineStage(model, rank, world, torch.device("cpu"), input_args=one.clone().requires_grad_(rank > 0),
                              output_args=one.clone().requires_grad_())  # fmt: skip
        schedule = Schedule1F1B(stage, MICRO, loss_fn=loss_of)
    ck = holdfast.Checkpointer(folder / "run", model=model, optimizer=optimizer, data=loader, every="never",
                               recover=holdfast.Recover(log=None if log == "none" else log, helpers=int(many or 0)))  # fmt: skip

    def make_gradients(x: torch.Tensor) -> None:
        if kind == "stages":
            schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank == world - 1 else {}))
            return
        for part in x.chunk(MICRO):
            loss_of(model(part), part).backward()

    def train(x: torch.Tensor) -> None:
        make_gradients(x)
        mark = folder / "killed"
        if rank == 1 and step == killed and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()

    with (folder / "steps").open("a") as lines:
        for step, (x,) in zip(range(ck.resume(), steps), loader):
            ck.run(train, x)
            if rank == 0:
                lines.write(f"{step} {time.monotonic()}\n")
                lines.flush()
            ck.step(step)
            if step == saved:
                ck.save(step).durable()
    ck.close(save=False)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4], *map(int, sys.argv[4:7]))
