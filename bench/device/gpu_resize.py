"""A change of the configuration on a GPU: 4.0 GB of state go from one process to two (tp=2) and back.

    PYTHONPATH=... python3 bench/device/gpu_resize.py [--json PATH]

Both processes share the GPU over Gloo, because NCCL refuses that. Prints how long training stood still, by
phases, what was moved, whether that is the least possible, and how much of the GPU's memory each process had at
most, beside the larger state: once with old and new tensors side by side, once with `in_parts=True`.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "examples")]
from measuring import results  # noqa: E402: it is in another folder
from measuring.launched import launch  # noqa: E402
from measuring.machines import this_run  # noqa: E402
from measuring.options import parser  # noqa: E402

SIZES = argparse.Namespace(width=1024, head=64, layers=26, dropout=0.0, context=128, batch=8, device="cuda")
CHANGES = ("tp=2,pp=1,dp=1", "tp=1,pp=1,dp=1")  # the last one leaves one process
BETWEEN = 8  # steps before each change is asked for, and after the last one
MOST = 10_000  # steps; the second process takes seconds to start
STILL_S, PEAK = 0.5, 1.1  # the bars


def train(run: Path, in_parts: bool) -> None:
    import torch
    import torch.distributed as dist
    from train_gpt import GPT, TEXT, Windows, backward, cut

    import holdfast

    torch.manual_seed(0)
    job = holdfast.Elastic(lambda mesh: {"model": cut(GPT(SIZES).to("cuda:0"), mesh)}, "tp=1,pp=1,dp=1",
                           device="cuda:0", backend="gloo", in_parts=in_parts or None)
    # One by one: torch updates no DTensors together with plain tensors, and tp=2 leaves the norms plain.
    optimizer = torch.optim.AdamW(job.model.parameters(), lr=1e-4, foreach=False)
    loader = holdfast.data.loader(Windows(TEXT.read_bytes(), SIZES.context), SIZES.batch, elastic=job)
    ck = holdfast.Checkpointer(run, model=job, optimizer=optimizer, data=loader, every="never")

    def step_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = backward(job.model, None, x.cuda(), y.cuda())
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    start = ck.resume()
    # A process that joins has seen none of the first change.
    wanted, changed_at = list(CHANGES if start == 0 else CHANGES[1:]), start - 1
    for step, batch in zip(range(start, MOST), loader):
        loss = ck.run(step_of, *batch)
        if wanted and step == changed_at + BETWEEN and dist.get_rank() == 0:
            job.resize(wanted[0])
        before = job.parallel
        torch.cuda.synchronize()
        held = bytes_of(job, optimizer)
        torch.cuda.reset_peak_memory_stats()
        ck.step(step, loss=loss)
        if job.parallel != before:
            torch.cuda.synchronize()
            note(run, step=step, to=job.parallel, held=held, now=bytes_of(job, optimizer),
                 peak=torch.cuda.max_memory_allocated())
            changed_at = step
            del wanted[:1]
        if not wanted and step == changed_at + BETWEEN:
            break
    ck.close(save=False)


def bytes_of(job, optimizer) -> int:
    """The bytes of the state that this process has on the GPU."""
    parts = [*job.model.parameters(), *job.model.buffers()]
    parts += [one for slots in optimizer.state.values() for one in slots.values() if hasattr(one, "is_cuda")]
    local = [one.to_local() if hasattr(one, "to_local") else one for one in parts]
    return sum(one.untyped_storage().nbytes() for one in local if one.is_cuda)


def note(run: Path, **seen) -> None:
    with open(f"{run}.seen.{os.getpid()}", "a") as file:
        print(json.dumps(seen), file=file)


def run_job(run: Path, in_parts: bool) -> list[dict]:
    """What each change took."""
    code, said = launch("-n", 1, "--most", 2, __file__, "--run", run, *(["--in-parts"] if in_parts else []))
    if code:
        raise SystemExit(f"the job ended with {code}:\n{said[-4000:]}")
    lines = [line for path in (run / "events").glob("*.jsonl") for line in path.read_text().splitlines()]
    changes = sorted((one for one in map(json.loads, lines) if one.get("event") == "resized"),
                     key=lambda one: one["step"])
    seen = [json.loads(line) for path in run.parent.glob(f"{run.name}.seen.*")
            for line in path.read_text().splitlines()]
    for change in changes:
        told = [one for one in seen if one["to"] == change["to"]]
        change["peak"] = max(one["peak"] for one in told)
        change["state"] = max(max(one["held"], one["now"]) for one in told)
    return changes


def main(report: Path | None) -> int:
    bars, figures = results.Bars(), {"run": this_run()}
    with tempfile.TemporaryDirectory() as folder:
        for in_parts in (False, True):
            name = "in parts" if in_parts else "side by side"
            changes = figures[name] = run_job(Path(folder) / name.replace(" ", "-"), in_parts)
            assert len(changes) == len(CHANGES), changes
            for one in changes:
                what = f"{one['old']} -> {one['to']}, {name}"
                bars.show(f"{what}: moved", one["moved"] / 1e9, "GB")
                bars.at_most(f"{what}: moved, of the least possible", one["moved"] / max(1, one["bound"]), 1.0)
                (bars.show if in_parts else bars.at_most)(
                    f"{what}: stood still", one["stood_still"], *([] if in_parts else [STILL_S]), "s")
                peak = one["peak"] / one["state"]
                if in_parts:
                    bars.at_most(f"{what}: memory, of the larger state", peak, PEAK)
                else:
                    bars.show(f"{what}: memory, of the larger state", peak)
    results.write(report, figures)
    return 0 if bars.passed else 1


if __name__ == "__main__":
    made = parser(__doc__, json=None)
    made.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    made.add_argument("--in-parts", action="store_true", help=argparse.SUPPRESS)
    args = made.parse_args()
    sys.exit(train(args.run, args.in_parts) if args.run else main(args.json))
