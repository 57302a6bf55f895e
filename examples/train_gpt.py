"""A small GPT that learns four books of old English, byte by byte.

    python examples/train_gpt.py runs/gpt
    torchrun --nproc-per-node 4 examples/train_gpt.py runs/gpt                       # DDP
    holdfast launch -n 4 examples/train_gpt.py runs/gpt             # goes on when a rank dies
    torchrun --nproc-per-node 8 examples/train_gpt.py runs/gpt --dp 2 --tp 2 --pp 2  # a mesh

Stop it in any way and start it again, on any number of processes and with any other mesh: it
continues with the next batch. On the same number of processes the losses are the same bit for bit.
"""

import argparse
import json
import math
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import holdfast

TEXT = Path(__file__).parent / "data" / "wisdom.txt"
MICRO_BATCHES = 4  # the number of micro-batches in a pipeline


class Block(nn.Module):
    """Attention and a feed-forward network, each with a residual connection."""

    def __init__(self, width: int, head: int, dropout: float) -> None:
        super().__init__()
        self.head = head
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        # The number of heads is -1, because with tensor parallelism a rank has only some heads.
        q, k, v = (
            f(y).unflatten(-1, (-1, self.head)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """A GPT over bytes, or one pipeline stage of it. A stage keeps the names of the whole model."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, args.width)
        self.place = nn.Embedding(args.context, args.width)
        blocks = (Block(args.width, args.head, args.dropout) for _ in range(args.layers))
        self.blocks = nn.ModuleDict({str(i): block for i, block in enumerate(blocks)})
        self.norm = nn.LayerNorm(args.width)
        self.logits = nn.Linear(args.width, 256)

    def keep_stage(self, stage: int, stages: int) -> None:
        """Removes the layers that belong to other stages of the pipeline."""
        layers = len(self.blocks)
        for i in range(layers):
            if i * stages // layers != stage:
                del self.blocks[str(i)]
        if stage > 0:
            self.embed = self.place = None
        if stage < stages - 1:
            self.norm = self.logits = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embed is not None:
            x = self.embed(x) + self.place.weight[: x.shape[1]]
        for block in self.blocks.values():
            x = block(x)
        return x if self.logits is None else self.logits(self.norm(x))


class Windows(torch.utils.data.Dataset):
    """The text in windows of `context` bytes. The target is the same window one byte later."""

    def __init__(self, text: bytes, context: int) -> None:
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.context = context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        piece = self.text[index * self.context : (index + 1) * self.context + 1]
        return piece[:-1], piece[1:]


def loss_of(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def cut(model: GPT, mesh: DeviceMesh) -> nn.Module:
    """Cuts the model down to what this rank holds of it: its stage, and its part of each matrix."""
    pp, dp, tp = mesh.shape
    model.keep_stage(mesh.get_local_rank("pp"), pp)
    if tp > 1:
        column, row = ColwiseParallel(), RowwiseParallel()
        plan = {"q": column, "k": column, "v": column, "out": row, "up": column, "down": row}
        for block in model.blocks.values():
            heads = block.q.out_features // block.head
            if heads % tp > 0:
                raise ValueError(f"{heads} heads, and tp={tp}; expected a divisor")
            parallelize_module(block, mesh["tp"], plan)
    if dp == 1:
        return model
    if tp == pp == 1:
        return DistributedDataParallel(model, process_group=mesh.get_group("dp"))
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def pipeline(model: nn.Module, mesh: DeviceMesh, args: argparse.Namespace) -> ScheduleGPipe:
    """The schedule that passes micro-batches through the pipeline stages."""
    stage, stages = mesh.get_local_rank("pp"), mesh.shape[0]
    size = args.batch // mesh.shape[1] // MICRO_BATCHES
    tokens = torch.zeros(size, args.context, dtype=torch.long)
    hidden = torch.zeros(size, args.context, args.width, requires_grad=True)
    logits = torch.zeros(size, args.context, 256)
    # The shapes are given here. Otherwise every new process would find them by a forward pass on
    # uninitialized memory.
    made = PipelineStage(
        model,
        stage,
        stages,
        torch.device(args.device),
        input_args=(hidden if stage > 0 else tokens).to(args.device),
        output_args=(hidden if stage < stages - 1 else logits).to(args.device),
        group=mesh.get_group("pp"),
    )
    return ScheduleGPipe(made, MICRO_BATCHES, loss_fn=loss_of)


def backward(model: nn.Module, schedule: ScheduleGPipe | None, x, y) -> torch.Tensor | None:
    """Runs forward and backward. Returns the loss on the last pipeline stage, else None."""
    if schedule is None:
        loss = loss_of(model(x), y)
        loss.backward()
        return loss.detach()
    losses: list[torch.Tensor] = []
    schedule.step(*([x] if model.embed is not None else []), target=y, losses=losses)
    return torch.stack(losses).mean().detach() if losses else None


def main(args: argparse.Namespace) -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # makes cuBLAS deterministic
    torch.use_deterministic_algorithms(True)
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    mesh = None
    if "RANK" in os.environ:  # under torchrun
        dist.init_process_group()
        args.dp = args.dp or dist.get_world_size() // (args.pp * args.tp)
        mesh = init_device_mesh(
            args.device, (args.pp, args.dp, args.tp), mesh_dim_names=("pp", "dp", "tp")
        )
    replica = mesh.get_local_rank("dp") if mesh else 0

    torch.manual_seed(args.seed)  # so that all ranks begin with the same model
    model = GPT(args).to(args.device)
    if mesh:
        model = cut(model, mesh)
    schedule = pipeline(model, mesh, args) if args.pp > 1 else None
    torch.manual_seed(args.seed + 1 + replica)  # so that replicas have different dropout

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, foreach=False)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=20)
    data = Windows(TEXT.read_bytes(), args.context)
    loader = holdfast.data.loader(
        data, args.batch, seed=args.seed, last="join", num_workers=args.workers,
        rank=replica, world=args.dp or 1,
    )  # fmt: skip

    ck = holdfast.Checkpointer(
        args.run, model=model, optimizer=optimizer, scheduler=warm_up, data=loader,
        every=args.every, schedule=holdfast.Schedule(mtbf=args.mtbf),
    )  # fmt: skip

    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor | None:
        loss = backward(model, schedule, x.to(args.device), y.to(args.device))
        if mesh and loss is not None:  # what ranks exchange comes before the update
            dist.all_reduce(loss, group=mesh.get_group("dp"))
            loss /= args.dp
        optimizer.step()
        warm_up.step()
        optimizer.zero_grad()
        return loss

    start = ck.resume()
    for step, batch in zip(range(start, args.steps), loader):
        loss = ck.run(train, *batch)
        report(step, loss, mesh, args)
        ck.step(step, loss=loss)
    ck.close()


def report(step: int, loss: torch.Tensor | None, mesh: DeviceMesh | None, args) -> None:
    """Prints the mean loss of all replicas. With --losses, writes all bits of it to that file."""
    if loss is None:
        return
    if mesh and mesh.get_local_rank("dp") + mesh.get_local_rank("tp") > 0:
        return
    if step % 10 == 0 or step == args.steps - 1:
        bits = loss.item() / math.log(2)
        print(f"step {step:5}  loss {loss.item():.4f}  ({bits:.2f} bits per byte)", flush=True)
    if args.losses:
        with open(args.losses, "a") as file:
            file.write(json.dumps({"step": step, "loss": loss.item().hex()}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="the run directory")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", default="50 steps", help="how often to save")
    parser.add_argument("--mtbf", type=float, help="mean seconds between failures, if known")
    parser.add_argument("--dp", type=int, default=0,
                        help="data-parallel replicas (default: processes / (tp * pp))")
    parser.add_argument("--tp", type=int, default=1, help="tensor-parallel degree")
    parser.add_argument("--pp", type=int, default=1, help="pipeline stages")
    parser.add_argument("--batch", type=int, default=24,
                        help="samples in a step, over all replicas")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--head", type=int, default=16, help="the width of a head")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="processes that read data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--losses",
                        help="a file to which every loss is written, one JSON line for each step")
    main(parser.parse_args())
    if dist.is_initialized():
        dist.destroy_process_group()
