"""The GPT of train_gpt.py, whose TP x PP x DP changes while it trains.

    holdfast launch -n 4 examples/elastic_gpt.py runs/elastic tp=2,pp=2
    holdfast resize runs/elastic --to dp=3             # in another terminal, as often as you like

All processes live on, every tensor keeps its bits, and the loop goes on with the next batch. Stop it
in any way and start it again with any other configuration: it continues from its checkpoint.
"""

import argparse

import torch
import torch.distributed as dist
from train_gpt import GPT, TEXT, Windows, backward, cut, pipeline

import holdfast

SIZES = argparse.Namespace(width=64, head=16, layers=4, dropout=0.0, context=64, batch=24, device="cpu")


def build(mesh):
    """The model for a mesh with the axes pp, dp and tp."""
    model = cut(GPT(SIZES), mesh)
    return {"model": model, "schedule": pipeline(model, mesh, SIZES) if mesh.shape[0] > 1 else None}


def main(args: argparse.Namespace) -> None:
    torch.manual_seed(0)
    job = holdfast.Elastic(build, args.parallel, device="cpu", sizes={3: "dp=3", 2: "dp=2", 1: "dp=1"})
    optimizer = torch.optim.AdamW(job.model.parameters(), lr=1e-3, foreach=False)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=20)
    data = Windows(TEXT.read_bytes(), SIZES.context)
    loader = holdfast.data.loader(data, SIZES.batch, last="join", elastic=job)
    ck = holdfast.Checkpointer(args.run, model=job, optimizer=optimizer, scheduler=warm_up, data=loader,
                               every="200 steps")  # fmt: skip

    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor | None:
        loss = backward(job.model, job.schedule, x, y)
        if loss is not None:  # what ranks exchange comes before the update
            dist.all_reduce(loss, group=job.mesh.get_group("dp"))
            loss /= job.mesh["dp"].size()
        optimizer.step()
        warm_up.step()
        optimizer.zero_grad()
        return loss

    for step, batch in zip(range(ck.resume(), args.steps), loader):
        loss = ck.run(train, *batch)
        speaks = loss is not None and job.mesh.get_local_rank("dp") + job.mesh.get_local_rank("tp") == 0
        if speaks and step % 10 == 0:
            print(f"step {step:5}  {job.parallel}  loss {loss.item():.4f}", flush=True)
        ck.step(step, loss=loss)
    ck.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="the run directory")
    parser.add_argument("parallel", help="the configuration at first, such as tp=2,pp=2,dp=1")
    parser.add_argument("--steps", type=int, default=1000)
    main(parser.parse_args())
