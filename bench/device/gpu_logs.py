"""The logs for a lost rank on a GPU that two ranks share over Gloo, because NCCL refuses that.

    PYTHONPATH=... python3 bench/device/gpu_logs.py [--json PATH] [--device cpu --small]

stages    Two pipeline stages of a GPT with dropout, 1F1B, deterministic kernels. Each stage is ended by SIGKILL in
          a job of its own, and its replacement makes the steps behind the newest durable one again, alone, from
          messages. All state at the end must have the bits of a job in which nobody died. Gloo sends from main
          memory only, so the stages move what crosses the border there; the norm of all gradients is a collective
          call on the GPU.
added     What the log adds to a step: blocks of steps that keep messages and blocks that do not, in turns, in one
          job (bench/measuring/paired.py).
updates   Two ranks of tensor parallelism with 1.3 GB of gradients in a step. log="auto" must refuse to keep them,
          and say why: because they do not fit into the usual memory, which a kill brings to light, and because
          that takes more than 2 % of a step if the memory is large enough.

`--device cpu --small` runs all of it in a minute on a machine without a GPU; its figures mean nothing.
"""

import argparse
import hashlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "examples")]
from measuring import results  # noqa: E402: it is in another folder
from measuring.events import events_of  # noqa: E402
from measuring.launched import launch  # noqa: E402
from measuring.machines import this_run  # noqa: E402
from measuring.options import parser  # noqa: E402

RANKS, MICRO = 2, 4
SAVED, KILLED, STEPS = 4, 12, 16
BLOCK = 8  # steps
STEP_MS, BAR = 100, 2.0  # the step of which the log may take so many percent
REFUSED_AFTER = 22  # updates: a kind is chosen at the second one, and its cost is looked at after 20 more
LARGE = dict(layers=5, width=1024, context=1024, batch=8, words=8192)  # of each stage
SMALL = dict(layers=1, width=256, context=256, batch=8, words=128)  # messages as long as those that a thread keeps
CUT_LARGE = dict(width=1024, head=64, layers=26, dropout=0.0, context=128, batch=8)  # 1.3 GB of gradients
CUT_SMALL = dict(width=128, head=32, layers=2, dropout=0.0, context=128, batch=8)
TOO_LITTLE, ENOUGH = {False: "1 GiB", True: "1 MiB"}, "24 GiB"  # of memory for the log; False: large


# The ranks


def train_stages(args: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.nn import functional as F

    import holdfast

    sizes = argparse.Namespace(**(SMALL if args.small else LARGE))
    rank = begin(args.device)
    torch.manual_seed(rank)
    model = make_stage(rank, sizes).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rows = torch.randint(sizes.words, (512, sizes.context + 1), generator=torch.Generator().manual_seed(7))
    loader = holdfast.data.loader(torch.utils.data.TensorDataset(rows), sizes.batch, seed=0, epochs=None,
                                  rank=0, world=1)  # fmt: skip
    micro = sizes.batch // MICRO
    border = torch.empty(micro, sizes.context, sizes.width, dtype=torch.bfloat16, requires_grad=True)
    words = torch.zeros(micro, sizes.context, dtype=torch.long)
    logits = torch.empty(micro, sizes.context, sizes.words, requires_grad=True)
    ends = (words, border) if rank == 0 else (border, logits)
    stage = PipelineStage(model, rank, RANKS, torch.device("cpu"), input_args=ends[0], output_args=ends[1])
    schedule = Schedule1F1B(stage, MICRO, loss_fn=lambda out, target: F.cross_entropy(
        out.flatten(0, 1), target.to(out.device).flatten()))
    ck = holdfast.Checkpointer(args.run, model=model, optimizer=optimizer, data=loader, every="never",
                               recover=holdfast.Recover(log="messages", memory="16 GiB"))

    def train(x: torch.Tensor) -> None:
        source, target = x[:, :-1].contiguous(), x[:, 1:].contiguous()
        with torch.autocast(args.device, torch.bfloat16, cache_enabled=False):
            schedule.step(*([source] if rank == 0 else []), **({"target": target} if rank else {}))
        norm = torch.nn.utils.get_total_norm([one.grad for one in model.parameters()]).square()
        dist.all_reduce(norm)
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm.sqrt())
        end_once(args, rank, step)
        optimizer.step()
        optimizer.zero_grad()

    step = ck.resume()
    batches = iter(loader)
    for step in range(step, STEPS):
        ck.run(train, *next(batches))
        ck.step(step)
        if step == SAVED:
            ck.save(step).durable()
    Path(f"{args.run}.end.{rank}").write_text(digest_of(model, optimizer))

    def go_on() -> None:
        nonlocal step
        step += 1
        ck.run(train, *next(batches))
        ck.step(step)

    if args.rounds:
        compare_blocks(args, ck, go_on, rank)
    ck.close(save=False)
    dist.destroy_process_group()


def compare_blocks(args: argparse.Namespace, ck, go_on: Callable[[], None], rank: int) -> None:
    """Writes milliseconds of a step of each block. Both ranks have the same turns."""
    import torch
    from measuring.paired import in_turns

    messages = ck._recovery._membership.messages
    log, sizes = messages._log, []

    def block_that_keeps(kinds: tuple[str, ...]) -> float:
        messages._keep(kinds, dict.fromkeys(("updates", "messages"), ""))
        go_on()
        start = synchronized(torch)
        for _ in range(BLOCK):
            go_on()
        took = 1e3 * (synchronized(torch) - start) / BLOCK
        if kinds:
            sizes.append(log.size)
        return took

    ways = {"messages": lambda: block_that_keeps(("messages",)), "none": lambda: block_that_keeps(())}
    seen = in_turns(ways, args.rounds)
    Path(f"{args.run}.cost.{rank}").write_text(json.dumps({"ms": seen, "bytes": max(sizes)}))


def train_cut(args: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from train_gpt import GPT, TEXT, Windows, backward, cut

    import holdfast

    sizes = argparse.Namespace(**(CUT_SMALL if args.small else CUT_LARGE), device=args.device)
    rank = begin(args.device)
    mesh = init_device_mesh(args.device, (1, 1, RANKS), mesh_dim_names=("pp", "dp", "tp"))
    torch.manual_seed(0)
    model = cut(GPT(sizes).to(args.device), mesh)
    # One by one: torch updates no DTensors together with plain tensors, and tp=2 leaves the norms plain.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    loader = holdfast.data.loader(Windows(TEXT.read_bytes(), sizes.context), sizes.batch, seed=0, epochs=None,
                                  rank=0, world=1)  # fmt: skip
    ck = holdfast.Checkpointer(args.run, model=model, optimizer=optimizer, data=loader, every="never",
                               recover=holdfast.Recover(memory=args.memory))

    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = backward(model, None, x.to(args.device), y.to(args.device))
        if not (step or rank):
            gradients = [one.grad for one in model.parameters()]
            Path(f"{args.run}.gradients").write_text(str(sum(one.numel() * one.element_size() for one in gradients)))
        end_once(args, rank, step)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for step, batch in zip(range(ck.resume(), args.steps), loader):
        ck.run(train, *batch)
        ck.step(step)
        if step == 2 and args.kill > 0:
            ck.save(step).durable()
    ck.close(save=False)
    dist.destroy_process_group()


def begin(device: str) -> int:
    """Makes the process group, and kernels deterministic. Returns the rank."""
    import torch
    import torch.distributed as dist

    torch.use_deterministic_algorithms(True)
    if device == "cpu":
        torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.zeros(1, device=device)  # else a mesh would give each rank a GPU of its own
    return dist.get_rank()


def make_stage(rank: int, sizes: argparse.Namespace):
    """The first or the last stage. What crosses the border is of bfloat16, in main memory."""
    import torch
    from gpu_training import Block
    from torch import nn

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if rank == 0:
                self.embed, self.place = (nn.Embedding(n, sizes.width) for n in (sizes.words, sizes.context))
            first = rank * sizes.layers
            # A stage has names of its own.
            self.blocks = nn.ModuleDict({str(first + i): Block(sizes.width, 16) for i in range(sizes.layers)})
            self.dropout = nn.Dropout(0.1)
            if rank > 0:
                self.norm, self.logits = nn.LayerNorm(sizes.width), nn.Linear(sizes.width, sizes.words)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.to(next(self.parameters()).device)
            x = x.float() if rank else self.embed(x) + self.place.weight[: x.shape[1]]
            for block in self.blocks.values():
                x = self.dropout(block(x))
            return self.logits(self.norm(x)).float() if rank else x.to(torch.bfloat16).cpu()

    return Stage()


def end_once(args: argparse.Namespace, rank: int, step: int) -> None:
    """Ends this process in the step that was asked for, the first time that it is made."""
    mark = Path(f"{args.run}.killed")
    if step == args.kill and rank == args.rank and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def synchronized(torch) -> float:
    """The time when the GPU has done all that it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def digest_of(model, optimizer) -> str:
    """Of all parameters, moments and generators."""
    import torch

    digest = hashlib.sha256()
    slots = [value for state in optimizer.state.values() for value in state.values()]
    for one in [*model.parameters(), *slots]:
        digest.update(one.detach().cpu().contiguous().numpy().tobytes())
    generators = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
    for one in generators:
        digest.update(one.numpy().tobytes())
    return digest.hexdigest()


# The measurements


class Ran:
    """A job that has ended."""

    def __init__(self, run: Path, args: argparse.Namespace, kind: str, *words: object) -> None:
        small = ["--small"] if args.small else []
        start = time.perf_counter()
        code, self.said = launch("-n", RANKS, __file__, "--run", run, "--kind", kind, "--device", args.device,
                                 *small, *words, environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
        print(f"== {run.name}, {time.perf_counter() - start:.0f} s\n{self.said}", end="", flush=True)
        if code:
            raise SystemExit(f"the job {run.name} ended with {code}")
        self.recovered = events_of(run, "recovered")
        self.kept = events_of(run, "messages_kept")
        self.ends = [path.read_text() for path in sorted(run.parent.glob(f"{run.name}.end.*"))]
        self.costs = [json.loads(path.read_text()) for path in sorted(run.parent.glob(f"{run.name}.cost.*"))]


def measure(folder: Path, args: argparse.Namespace) -> Iterator[tuple[str, dict]]:
    whole = Ran(folder / "whole", args, "stages", "--rounds", args.rounds)
    killed = []
    for rank in reversed(range(RANKS)):
        ran = Ran(folder / f"killed-{rank}", args, "stages", "--kill", KILLED, "--rank", rank, "--rounds", 0)
        (told,) = ran.recovered
        killed.append({"rank": rank, "same_bits": ran.ends == whole.ends and len(whole.ends) == RANKS,
                       "recovered": told, "seconds": seconds_in(ran.said)})
        yield "stages", {"killed": killed}
    yield "added", added(whole.costs[0]) | {"told": whole.kept}
    ran = Ran(folder / "cut-killed", args, "cut", "--memory", TOO_LITTLE[args.small], "--steps", 8, "--kill", 5)
    refused = {"memory": refused_for_memory(ran.said) | {"rung": ran.recovered[0]["rung"]}}
    yield "updates", {"refused": refused}
    ran = Ran(folder / "cut-dear", args, "cut", "--memory", ENOUGH, "--steps", REFUSED_AFTER + 3)
    refused["cost"] = {"said": sentence(ran.said, r"to keep updates takes [\d.]+% of a step: they are not kept any more")}
    gradients = int((folder / "cut-dear.gradients").read_text())
    yield "updates", {"gradient_bytes": gradients, "refused": refused}


def refused_for_memory(said: str) -> dict:
    return {"said": sentence(said, r"the gradients of \d+ updates have \d+ bytes, and memory= has room for \d+")}


def added(cost: dict) -> dict:
    from measuring.paired import difference, interval

    ms = cost["ms"]
    return {"step_ms": interval(ms["none"]), "added_ms": difference(ms["messages"], ms["none"]),
            "added_percent": interval([100 * (a / b - 1) for a, b in zip(ms["messages"], ms["none"], strict=True)]),
            "bytes": cost["bytes"], "rounds_ms": ms}


def seconds_in(said: str) -> float:
    found = re.search(r"goes on after ([\d.]+) s", said)
    return float(found[1]) if found else -1.0


def sentence(said: str, pattern: str) -> str:
    """What the job has said of the kind; "" if nothing."""
    found = re.search(pattern, said)
    return found[0] if found else ""


def judge(figures: dict, small: bool) -> bool:
    """Prints what was measured beside what was expected."""
    bars = results.Bars()
    for one in figures["stages"]["killed"]:
        told, what = one["recovered"], f"stage {one['rank']} killed: "
        bars.at_least(what + "the bits of a job in which nobody died", one["same_bits"], 1)
        bars.at_least(what + "rung messages", told["rung"] == "messages", 1)
        bars.show(what + "goes on after", one["seconds"], "s")
    seen = figures["added"]
    bars.show("bytes that a rank keeps in a step", seen["bytes"] / 1e6, "MB")
    bars.show("a step", seen["step_ms"][0], "ms")
    for name, value in (("added to a step", seen["added_percent"]), (f"added, of {STEP_MS} ms", seen["added_ms"])):
        if small:
            bars.show(name, value.median, "%")
        else:
            bars.at_most(name, value, BAR, " %")  # milliseconds are percent of a step of 100 ms
    bars.show("gradients of an update", figures["updates"]["gradient_bytes"] / 1e9, "GB")
    for why, one in figures["updates"]["refused"].items():
        print(f"  {one['said']}")
        if not (small and why == "cost"):
            bars.at_least(f"updates refused for their {why}", one["said"] != "", 1)
    return bars.passed


def main(args: argparse.Namespace) -> int:
    figures: dict = {"run": this_run()}
    with tempfile.TemporaryDirectory() as folder:
        for name, figure in measure(Path(folder), args):
            figures[name] = figure
            results.write(args.json, figures)  # after each, so that an interrupted run keeps its figures
    return 0 if judge(figures, args.small) else 1


if __name__ == "__main__":
    made = parser(__doc__, json=None, rounds=12)
    made.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    made.add_argument("--small", action="store_true", help="small models, as for a CPU")
    for hidden, kind, usual in (("run", Path, None), ("kind", str, ""), ("memory", str, ""), ("steps", int, 0),
                                ("kill", int, -1), ("rank", int, 1)):
        made.add_argument(f"--{hidden}", type=kind, default=usual, help=argparse.SUPPRESS)
    given = made.parse_args()
    if given.run is None:
        sys.exit(main(given))
    (train_stages if given.kind == "stages" else train_cut)(given)
