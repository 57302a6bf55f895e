"""A small ResNet that learns to tell drawn shapes apart. It has all that makes a bit-equal restart
difficult: batch statistics, dropout, random augmentation, momentum, averaged weights, loss scaling.

    python examples/train_resnet.py runs/resnet
    python examples/train_resnet.py runs/resnet --amp float16 --accumulate 4 --ema --workers 2
    torchrun --nproc-per-node 3 examples/train_resnet.py runs/resnet

Stop it in any way and start it again: the losses are the same bit for bit. The pictures are
generated from a seed, so nothing is downloaded. The loader is torch's own DataLoader.
"""

import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler

import holdfast

SIZE = 24
CLASSES = ("disc", "ring", "square", "frame", "cross", "stripes")


class Shapes(torch.utils.data.Dataset):
    """Coloured shapes of random size and position. Reading one may flip it, and adds noise."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        kind = index % len(CLASSES)
        image = self.draw(kind, torch.Generator().manual_seed(index))
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image + 0.3 * torch.randn(image.shape), kind

    def draw(self, kind: int, generator: torch.Generator) -> torch.Tensor:
        x, y, radius, *colour = torch.rand(6, generator=generator).tolist()
        radius = 0.15 + 0.2 * radius
        line = torch.linspace(0, 1, SIZE)
        dx = (line - radius - x * (1 - 2 * radius)).abs()[None, :] / radius
        dy = (line - radius - y * (1 - 2 * radius)).abs()[:, None] / radius
        far, wide = (dx**2 + dy**2).sqrt(), torch.maximum(dx, dy)
        inside = {
            "disc": far < 1,
            "ring": (far < 1) & (far > 0.6),
            "square": wide < 1,
            "frame": (wide < 1) & (wide > 0.6),
            "cross": (wide < 1) & (torch.minimum(dx, dy) < 0.3),
            "stripes": (wide < 1) & (dy * 4 % 2 < 1),
        }[CLASSES[kind]]
        return inside * (0.3 + 0.7 * torch.tensor(colour))[:, None, None]


class Residual(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, inward: int, outward: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inward, outward, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outward),
            nn.ReLU(),
            nn.Conv2d(outward, outward, 3, padding=1, bias=False),
            nn.BatchNorm2d(outward),
        )
        self.shortcut = nn.Conv2d(inward, outward, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.path(x) + self.shortcut(x))


def resnet(width: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        Residual(width, width, 1),
        Residual(width, 2 * width, 2),
        Residual(2 * width, 4 * width, 2),
        nn.AvgPool2d(SIZE // 4),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(4 * width, len(CLASSES)),
    )


def main(args: argparse.Namespace) -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # makes cuBLAS deterministic
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)  # so that all ranks begin with the same model
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    model = resnet(args.width, args.dropout).to(args.device)
    data, sampler, rank = Shapes(args.samples), None, 0
    if "RANK" in os.environ:  # under torchrun
        dist.init_process_group()
        rank = dist.get_rank()
        model = DistributedDataParallel(model)
        sampler = DistributedSampler(data, seed=args.seed)
        torch.manual_seed(args.seed + 1 + rank)

    optimizer = torch.optim.SGD(model.parameters(), lr=args.rate, momentum=0.9, nesterov=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    scaler = torch.amp.GradScaler(args.device, enabled=args.amp == "float16")
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99)) if args.ema else None
    plain = DataLoader(
        data, args.batch, shuffle=sampler is None, sampler=sampler, num_workers=args.workers
    )
    loader = holdfast.data.resumable(plain, epochs=args.epochs)

    ck = holdfast.Checkpointer(
        args.run, model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, ema=ema,
        data=loader, every=args.every, schedule=holdfast.Schedule(mtbf=args.mtbf),
    )  # fmt: skip
    start = ck.resume()
    for step, (images, labels) in enumerate(loader, start):
        with torch.autocast(args.device, getattr(torch, args.amp or "bfloat16"), bool(args.amp)):
            loss = F.cross_entropy(model(images.to(args.device)), labels.to(args.device))
        scaler.scale(loss / args.accumulate).backward()
        if (step + 1) % args.accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()
            if ema:
                ema.update_parameters(model)
        if rank == 0:
            report(step, loss.item(), args)
        ck.step(step, loss=loss)  # a save waits for the end of an accumulation
    ck.close()


def report(step: int, loss: float, args: argparse.Namespace) -> None:
    """Prints the loss of this rank. With --losses, writes all bits of it to that file."""
    if step % 10 == 0:
        print(f"step {step:5}  loss {loss:.4f}", flush=True)
    if args.losses:
        with open(args.losses, "a") as file:
            file.write(json.dumps({"step": step, "loss": loss.hex()}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="the run directory")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--every", default="20 steps", help="how often to save")
    parser.add_argument("--mtbf", type=float, help="mean seconds between failures, if known")
    parser.add_argument("--samples", type=int, default=1500, help="samples in an epoch")
    parser.add_argument("--batch", type=int, default=32, help="samples in a step of one rank")
    parser.add_argument("--accumulate", type=int, default=1, help="batches in an update")
    parser.add_argument("--amp", choices=("bfloat16", "float16"), help="mixed precision")
    parser.add_argument("--ema", action="store_true", help="keep averaged weights")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="processes that read data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--losses",
                        help="a file to which every loss is written, one JSON line for each step")
    main(parser.parse_args())
    if dist.is_initialized():
        dist.destroy_process_group()
