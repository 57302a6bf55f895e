"""Two convolutions with batch normalization that learn small pictures of handwritten digits.

    python examples/train_digits.py --steps 400 --save base.pt
    python examples/train_digits.py --resume base.pt --log log.jsonl
    python examples/train_digits.py --resume base.pt --log log.jsonl --launcher ddp --ranks 4
    torchrun --nproc-per-node 4 examples/train_digits.py --resume base.pt --launcher ddp
    python examples/train_digits.py --model resnet50 --device cuda --steps 100 --save base.pt
    python examples/train_digits.py --resume base.pt --log log.jsonl --launcher pipeline --ranks 2

This is the training of docs/studies/corruption.md: one trial of a campaign loads a checkpoint that has
flipped bits, trains 40 steps and writes what happened. The same checkpoint gives the same bits
every time. With --serve the process, and all ranks of its job, stay for the next trial:

    holdfast campaign run base.pt --flips 1 --checksums consistent --trials 9 -o bits --serve -- \\
        python examples/train_digits.py --serve

The log has a JSON line for each step. The line of step 0 has the accuracy on the test set after
loading, and the last line has the final one. The pictures are in examples/data; nothing is
downloaded.
"""

import argparse
import csv
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

DATA = Path(__file__).resolve().parent / "data/digits.csv.gz"
SEED = 0
TESTED = 360  # the last samples of the file are the test set
STATES = (1, 10, 40)  # the steps after which --state keeps the parameters


class Digits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))

    def first(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)

    def second(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(F.relu(self.bn2(self.conv2(x))).flatten(1))


class PlainDigits(Digits):
    """The same without batch normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.Identity(), nn.Identity()


class Bottleneck(nn.Module):
    """Three convolutions with a shortcut around them."""

    def __init__(self, inward: int, width: int, stride: int) -> None:
        super().__init__()
        outward = 4 * width
        self.conv1 = nn.Conv2d(inward, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outward, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outward)
        self.downsample = None
        if stride != 1 or inward != outward:
            self.downsample = nn.Sequential(
                nn.Conv2d(inward, outward, 1, stride, bias=False), nn.BatchNorm2d(outward))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        short = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return F.relu(self.bn3(self.conv3(x)) + short)


class ResNet50(nn.Module):
    """ResNet-50 for small pictures: its first convolution does not shrink them, and no pooling
    follows it, as is usual for pictures of this size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inward = 64
        for number, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 1):
            layer = nn.Sequential()
            for block in range(blocks):
                stride = 2 if number > 1 and block == 0 else 1
                layer.append(Bottleneck(inward, width, stride))
                inward = 4 * width
            self.add_module(f"layer{number}", layer)
        self.fc = nn.Linear(inward, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


MODELS = {"digits": Digits, "plain": PlainDigits, "resnet50": ResNet50}


@cache
def read_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All pictures, with values from 0 to 1, and their labels."""
    with gzip.open(DATA, "rt") as file:
        rows = torch.tensor([[int(cell) for cell in row] for row in csv.reader(file)])
    return rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64]


@cache
def digits_on(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = read_digits()
    return images.to(device), labels.to(device)


@cache
def order_of(epoch: int) -> torch.Tensor:
    """The order in which an epoch reads the training set."""
    generator = torch.Generator().manual_seed(SEED + epoch)
    return torch.randperm(len(read_digits()[0]) - TESTED, generator=generator)


def batch_of(step: int, size: int) -> torch.Tensor:
    """The numbers of the samples of a step. The last samples of an epoch that fill no batch are
    left out."""
    epoch, place = divmod(step, (len(read_digits()[0]) - TESTED) // size)
    return order_of(epoch)[place * size : (place + 1) * size]


def accuracy_of(model: nn.Module, device: str) -> float:
    """The share of the test set that the model tells right."""
    images, labels = (part[-TESTED:] for part in digits_on(device))
    model.eval()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean().item()
    model.train()
    return right


class Alone:
    """A job of one process."""

    rank, world = 0, 1

    def __init__(self, args: argparse.Namespace) -> None:
        pass

    def distribute(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        return model, optimizer

    def choose(self, batch: torch.Tensor) -> torch.Tensor:
        """The samples of a batch that this rank trains on."""
        return batch[self.rank :: self.world]

    def backward(self, model: nn.Module, images: torch.Tensor,
                 labels: torch.Tensor) -> torch.Tensor:
        """Computes gradients. Returns the loss of this rank."""
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        return loss.detach()

    def mean(self, loss: torch.Tensor) -> torch.Tensor:
        """The mean over all ranks."""
        return loss

    def complete(self, model: Digits) -> None:
        """Gives rank 0 the parameters that only other ranks have trained."""

    def close(self) -> None:
        pass


class Ddp(Alone):
    """A rank of a job with PyTorch's DistributedDataParallel."""

    def __init__(self, args: argparse.Namespace) -> None:
        import torch.distributed as dist

        self._dist = dist
        self._options = {"broadcast_buffers": False} if args.no_broadcast else {}
        place = os.environ.get("DIGITS_MEETING")  # Ranks sets it, torchrun does not
        numbers = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        dist.init_process_group("gloo", init_method=place or "env://", **numbers)
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def distribute(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, **self._options), optimizer

    def mean(self, loss: torch.Tensor) -> torch.Tensor:
        loss = loss / self.world
        self._dist.all_reduce(loss)
        return loss

    def close(self) -> None:
        self._dist.destroy_process_group()


class Horovod(Alone):
    """A rank of a job with Horovod's DistributedOptimizer."""

    def __init__(self, args: argparse.Namespace) -> None:
        # Horovod puts the gradients that are ready at the same time into one buffer, and where a
        # gradient lies in the buffer decides the order of its sums. Without this setting, chance
        # would change the last bits of a run on 4 ranks.
        os.environ["HOROVOD_FUSION_THRESHOLD"] = "0"
        import horovod.torch as hvd

        hvd.init()
        self._hvd = hvd
        self.rank, self.world = hvd.rank(), hvd.size()
        self._divisor = float(self.world) if args.divide_first else 1.0

    def distribute(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        names = list(model.named_parameters())
        return model, self._hvd.DistributedOptimizer(
            optimizer, named_parameters=names, gradient_predivide_factor=self._divisor)

    def mean(self, loss: torch.Tensor) -> torch.Tensor:
        return self._hvd.allreduce(loss, name="loss")

    def close(self) -> None:
        self._hvd.shutdown()


class Stage(nn.Module):
    """A part of the model. It shares the parameters, and takes and returns one tensor."""

    def __init__(self, model: Digits, last: bool) -> None:
        super().__init__()
        self.parts = nn.ModuleList([model.conv2, model.bn2, model.fc] if last else
                                   [model.conv1, model.bn1])  # fmt: skip
        self._compute = [model.second if last else model.first]  # in a list, it is no submodule

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._compute[0](x)


class Pipeline(Ddp):
    """A rank of a pipeline of two stages with torch.distributed.pipelining. Each rank loads the
    whole checkpoint and trains its stage."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args)
        self._parts, self._samples = args.microbatches, args.batch // args.microbatches
        self._last = self.rank == self.world - 1

    def distribute(self, model: Digits, optimizer: torch.optim.Optimizer):
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

        # Without these shapes, the pipeline learns them from an extra forward pass, which would
        # change the running statistics of BatchNorm.
        sent = torch.empty(self._samples, 8, 4, 4, requires_grad=True)
        shapes = (sent, torch.empty(self._samples, 10, requires_grad=True)) if self._last else (
            torch.empty(self._samples, 1, 8, 8), sent)  # fmt: skip
        stage = PipelineStage(Stage(model, self._last), self.rank, self.world,
                              torch.device("cpu"), *shapes)  # fmt: skip
        self._schedule = ScheduleGPipe(stage, self._parts, loss_fn=F.cross_entropy)
        return model, optimizer

    def choose(self, batch: torch.Tensor) -> torch.Tensor:
        return batch

    def backward(self, model: nn.Module, images: torch.Tensor,
                 labels: torch.Tensor) -> torch.Tensor:
        if not self._last:
            self._schedule.step(images)
            return torch.zeros(())
        losses: list[torch.Tensor] = []
        self._schedule.step(target=labels, losses=losses)
        return torch.stack(losses).mean().detach()

    def mean(self, loss: torch.Tensor) -> torch.Tensor:
        self._dist.broadcast(loss, self.world - 1)
        return loss

    def complete(self, model: Digits) -> None:
        for tensor in Stage(model, last=True).state_dict().values():
            self._dist.broadcast(tensor, self.world - 1)


class Ranks:
    """The other ranks of a job whose rank 0 this process becomes."""

    def __init__(self, count: int, launcher: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        common = {"OMP_NUM_THREADS": "1", "DIGITS_MEETING": f"file://{self._folder.name}/store"}
        if launcher == "horovod":
            common |= self._meet_horovod(count)
        self._processes = [
            subprocess.Popen([sys.executable, *sys.argv], stdin=subprocess.DEVNULL,
                             env=os.environ | common | self._numbers(rank, count))
            for rank in range(1, count)
        ]
        os.environ.update(common | self._numbers(0, count))

    def _numbers(self, rank: int, count: int) -> dict[str, str]:
        horovod = {"RANK": rank, "SIZE": count, "LOCAL_RANK": rank, "LOCAL_SIZE": count,
                   "CROSS_RANK": 0, "CROSS_SIZE": 1}
        out = {f"HOROVOD_{name}": str(number) for name, number in horovod.items()}
        return out | {"RANK": str(rank), "WORLD_SIZE": str(count)}

    def _meet_horovod(self, count: int) -> dict[str, str]:
        """Starts the server through which Horovod's ranks find each other, as horovodrun does."""
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousServer

        self._server = RendezvousServer(0)
        port = self._server.start()
        self._server.init(get_host_assignments(parse_hosts(f"localhost:{count}"), count))
        # A busy machine may take longer than Horovod's 30 seconds to start all ranks.
        return {"HOROVOD_GLOO_TIMEOUT_SECONDS": "600", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port), "HOROVOD_GLOO_IFACE": "lo",
                "HOROVOD_HOSTNAME": "localhost", "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo"}

    def wait(self) -> None:
        for process in self._processes:
            process.wait()


def make_optimizer(args: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    if args.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=0.002)
    return torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)


def load(path: str, model: nn.Module, optimizer: torch.optim.Optimizer, device: str) -> int:
    """Returns the number of steps that were made before."""
    loaded = torch.load(path, map_location=device)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    return loaded["step"]


def save(args: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer,
         step: int) -> None:
    dtype = getattr(torch, args.precision)

    def cast(value: object) -> object:
        if isinstance(value, dict):
            return {key: cast(each) for key, each in value.items()}
        # Only tensors of float32 are cast. A counter, such as Adam's step, keeps its dtype.
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 0:
            return value.to(dtype)
        return value

    torch.save({"model": cast(model.state_dict()), "optimizer": cast(optimizer.state_dict()),
                "step": step}, args.save)


def parameters_of(model: nn.Module, step: int) -> dict[str, torch.Tensor]:
    """A copy of the parameters of each layer, as one tensor."""
    return {f"step-{step}.{name}": torch.cat([each.detach().flatten() for each in
                                              layer.parameters()])
            for name, layer in model.named_children() if any(True for _ in layer.parameters())}  # fmt: skip


def train(args: argparse.Namespace, ranks: Alone, checkpoint: str | None, log: str | None,
          state: str | None) -> float:
    """Trains from a checkpoint, or from the beginning. Returns the final accuracy on rank 0."""
    torch.manual_seed(SEED)
    model = MODELS[args.model]().to(args.device)
    wrapped, optimizer = ranks.distribute(model, make_optimizer(args, model))
    begin = load(checkpoint, model, optimizer, args.device) if checkpoint else 0
    first = ranks.rank == 0
    right, kept = accuracy_of(model, args.device) if first else 0.0, {}
    with open(log if log and first else os.devnull, "w") as lines:
        print(json.dumps({"step": 0, "accuracy": right}), file=lines)
        for step in range(1, args.steps + 1):
            loss = ranks.mean(update(args, ranks, wrapped, optimizer, begin + step - 1)).item()
            line = {"step": step, "loss": loss}  # Python's NaN and Infinity stay as they are
            if step == args.steps or (step in STATES and state):
                ranks.complete(model)
            if step in STATES and state and first:
                kept |= parameters_of(model, step)
            if step == args.steps and first:
                right = line["accuracy"] = accuracy_of(model, args.device)
            print(json.dumps(line), file=lines)
    if state and first:
        torch.save(kept, state)
    if args.save and first:
        save(args, model, optimizer, begin + args.steps)
    return right


def update(args: argparse.Namespace, ranks: Alone, model: nn.Module,
           optimizer: torch.optim.Optimizer, step: int) -> torch.Tensor:
    """Makes one step. Returns the loss of this rank."""
    images, labels = digits_on(args.device)
    own = ranks.choose(batch_of(step, args.batch))
    optimizer.zero_grad()
    loss = ranks.backward(model, images[own], labels[own])
    optimizer.step()
    return loss


def serve_trials(args: argparse.Namespace, ranks: Alone) -> None:
    """Trains once for each request of `holdfast campaign run --serve`, which every rank gets."""
    from holdfast.campaign import serve

    def trial(checkpoint: str, log: str, state: str | None = None) -> None:
        train(args, ranks, checkpoint, log, state)

    serve(trial)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resume", metavar="CHECKPOINT", help="go on from this file")
    parser.add_argument("--log", help="write a JSON line for each step to this file")
    parser.add_argument("--state", help=f"write the parameters after steps {STATES} to this file")
    parser.add_argument("--model", choices=tuple(MODELS), default="digits")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32, help="samples in a step, over all ranks")
    parser.add_argument("--optimizer", choices=("sgd", "adam"), default="sgd")
    parser.add_argument("--save", metavar="PATH", help="write a checkpoint at the end")
    parser.add_argument("--precision", choices=("float16", "bfloat16", "float32", "float64"),
                        default="float32", help="the dtype in which --save stores numbers")
    parser.add_argument("--launcher", choices=tuple(LAUNCHERS), default="none")
    parser.add_argument("--ranks", type=int,
                        help="start so many ranks; without it torchrun or horovodrun has done so")
    parser.add_argument("--no-broadcast", action="store_true",
                        help="DDP leaves the running statistics of each rank alone")
    parser.add_argument("--divide-first", action="store_true",
                        help="Horovod divides gradients before it sums them, as DDP does")
    parser.add_argument("--microbatches", type=int, default=4,
                        help="into how many parts a pipeline cuts a batch")
    parser.add_argument("--serve", action="store_true",
                        help="serve the trials of holdfast campaign run --serve")
    args = parser.parse_args()
    for fault in faults_of(args):
        parser.error(fault)
    return args


def faults_of(args: argparse.Namespace) -> Iterator[str]:
    """What is wrong with the options, a sentence each."""
    samples = len(read_digits()[0]) - TESTED
    if args.steps < 1 or not 1 <= args.batch <= samples:
        yield f"--steps and --batch: expected at least 1, and a batch of at most {samples} samples"
    if args.device == "cuda" and (args.launcher != "none" or not torch.cuda.is_available()):
        yield "--device cuda: expected a GPU, and a job of one process"
    if args.serve and args.save:
        yield "--serve and --save: expected only one of them"
    if args.ranks is not None and (args.ranks < 1 or args.launcher == "none"):
        yield "--ranks: expected at least 1, and --launcher ddp, horovod or pipeline"
    if issubclass(LAUNCHERS[args.launcher], Ddp) and args.ranks is None and "RANK" not in os.environ:
        yield f"--launcher {args.launcher}: there is no RANK; expected --ranks, or a start by torchrun"
    if args.launcher != "pipeline":
        return
    if args.model != "digits":
        yield f"--launcher pipeline: --model {args.model}; expected digits"
    if args.save:
        yield "--save and --launcher pipeline: no rank has the whole optimizer; expected only one of them"
    ranks = args.ranks or int(os.environ["WORLD_SIZE"])
    if ranks != 2:
        yield f"--launcher pipeline: {ranks} ranks; expected 2, one for each stage"
    if args.microbatches < 1 or args.batch % args.microbatches:
        yield f"--microbatches: {args.microbatches}; expected a divisor of --batch, which is {args.batch}"


LAUNCHERS = {"none": Alone, "ddp": Ddp, "horovod": Horovod, "pipeline": Pipeline}


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False  # torch's own convolutions are faster for such small ones
    torch.use_deterministic_algorithms(True)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with it
    started = None
    if args.ranks and "RANK" not in os.environ:
        started = Ranks(args.ranks, args.launcher)
    ranks = LAUNCHERS[args.launcher](args)
    if args.serve:
        serve_trials(args, ranks)
    else:
        begun = time.monotonic()
        right = train(args, ranks, args.resume, args.log, args.state)
        if ranks.rank == 0:
            print(f"{args.steps} steps in {time.monotonic() - begun:.2f} s, {100 * right:.1f} % of "
                  "the test set are right")
    ranks.close()
    if started:
        started.wait()


if __name__ == "__main__":
    main()
