"""The training of bench/recovery_bench.py: the GPT of examples/train_gpt.py on several ranks.

    holdfast launch -n 4 bench/recovery_training.py FOLDER --steps 160
    torchrun --nproc-per-node 4 bench/recovery_training.py FOLDER --steps 160 --every young
    horovodrun ... bench/recovery_training.py FOLDER --steps 160 --horovod --commits 1
    bench/recovery_torchft.py 4 bench/recovery_training.py FOLDER --steps 160 --torchft

Under holdfast launch and torchrun it is the same loop, because ck.run() is a plain call under
torchrun. With --horovod it is Horovod's own loop, with its elastic state; with --torchft it is
torchft's, with its manager, and each rank is a replica group of one process. Every rank writes a
line to the pipe FOLDER/lines after each step: its number, its process, the step, when the update was
allowed to begin, when the step was done (both on the clock that all processes of a machine share),
the loss, and with torchft over how many ranks the step has averaged.

--pace is the time for which each step sleeps in its forward pass. It stands for the computation of
a device of which this machine has too few. It is added to the step, so it hides no other cost.
"""

import argparse
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))
from train_gpt import GPT, TEXT, Windows, loss_of  # noqa: E402

SEED = 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pace", type=float, default=0.2, help="seconds of sleep in each step")
    parser.add_argument("--every", default="never", help="how often to save")
    parser.add_argument("--mtbf", type=float, help="mean seconds between failures, if known")
    parser.add_argument("--no-recovery", action="store_true")
    parser.add_argument("--horovod", action="store_true")
    parser.add_argument("--commits", type=int, default=1,
                        help="with Horovod: the number of steps from one commit to the next; 0 for none")
    parser.add_argument("--torchft", action="store_true")
    parser.add_argument("--patience", type=float, default=5.0,
                        help="with torchft: seconds after which a collective call of Gloo is given up")
    parser.add_argument("--batch", type=int, default=8, help="samples in a step, over all ranks")
    for name, value in (("width", 128), ("head", 32), ("layers", 4), ("context", 64)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dropout", type=float, default=0.1)
    return parser.parse_args()


class Lines:
    """Writes a line after each step."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._pipe = os.open(folder / "lines", os.O_WRONLY)
        self._rank = rank
        self.allowed = 0.0  # when the last update was allowed to begin

    def note(self, *_: object) -> None:
        self.allowed = time.monotonic()

    def write(self, step: int, loss: torch.Tensor, averaged: int | None = None) -> None:
        line = {"rank": self._rank, "pid": os.getpid(), "step": step, "allowed": self.allowed,
                "done": time.monotonic(), "loss": loss.item().hex(), "averaged": averaged}  # fmt: skip
        os.write(self._pipe, json.dumps(line).encode() + b"\n")


def make_model(args: argparse.Namespace, rank: int) -> tuple[GPT, torch.optim.Optimizer]:
    torch.manual_seed(SEED)
    model = GPT(args)
    torch.manual_seed(SEED + 1 + rank)  # so that ranks have different dropout
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)


class Batches:
    """The samples of a rank in each step, for the rivals that have no loader which they restore."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._data, self._batch = Windows(TEXT.read_bytes(), args.context), args.batch
        dice = torch.Generator().manual_seed(SEED)
        self._order = torch.randperm(len(self._data), generator=dice).tolist()

    def of(self, step: int, rank: int, ranks: int) -> list[torch.Tensor]:
        own = self._batch // ranks
        first = step * self._batch + rank * own
        pairs = [self._data[self._order[(first + i) % len(self._order)]] for i in range(own)]
        return [torch.stack(one) for one in zip(*pairs)]


def train_with_holdfast(args: argparse.Namespace) -> None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    import holdfast

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    net, optimizer = make_model(args, rank)
    model = DistributedDataParallel(net)
    loader = holdfast.data.loader(Windows(TEXT.read_bytes(), args.context), args.batch,
                                  seed=SEED, epochs=None)
    ck = holdfast.Checkpointer(args.folder / "run", model=model, optimizer=optimizer, data=loader,
                               every=args.every, schedule=holdfast.Schedule(mtbf=args.mtbf),
                               recover=False if args.no_recovery else None)
    lines = Lines(args.folder, rank)

    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        time.sleep(args.pace)
        loss = loss_of(model(x), y)
        loss.backward()
        mean = loss.detach()
        dist.all_reduce(mean)
        optimizer.step()
        optimizer.zero_grad()
        return mean / world

    start = ck.resume()
    register_optimizer_step_pre_hook(lines.note)  # behind Holdfast's, so that the gate is passed
    for step, batch in zip(range(start, args.steps), loader):
        loss = ck.run(train, *batch)
        lines.write(step, loss)
        ck.step(step, loss=loss)
    ck.close(save=False)
    dist.destroy_process_group()


def train_with_horovod(args: argparse.Namespace) -> None:
    import horovod.torch as hvd

    hvd.init()
    model, optimizer = make_model(args, hvd.rank())
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    batches = Batches(args)
    lines: list[Lines] = []  # made once: the number of a rank may change, its process does not

    @hvd.elastic.run
    def train(state) -> None:
        lines.append(Lines(args.folder, hvd.rank()))
        while state.step < args.steps:
            x, y = batches.of(state.step, hvd.rank(), hvd.size())
            time.sleep(args.pace)
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            mean = hvd.allreduce(loss.detach(), name="loss")
            optimizer.step()
            optimizer.zero_grad()
            lines[-1].write(state.step, mean)
            state.step += 1
            if args.commits and state.step % args.commits == 0:
                state.commit()

    train(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0))


def train_with_torchft(args: argparse.Namespace) -> None:
    import torchft

    class Averaging(torchft.DistributedDataParallel):
        """torchft's wrapper with a hook that survives. The hook of torchft 0.2.0 fails with an
        AssertionError if a collective call fails, so that all survivors would die with the lost rank."""

        @staticmethod
        def _comm_hook(manager: torchft.Manager,
                       bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
            manager.allreduce(bucket.buffer()).wait()  # tells the manager if it fails
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

    rank, ranks = (int(os.environ[name]) for name in ("REPLICA_GROUP_ID", "NUM_REPLICA_GROUPS"))
    model, optimizer = make_model(args, rank)
    batches, lines = Batches(args), Lines(args.folder, rank)
    # torchrun would have such a store for each replica group.
    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def state() -> dict:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def load(state: dict) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=args.patience)),
        load_state_dict=load, state_dict=state, min_replica_size=ranks // 2 + 1, rank=0, world_size=1,
        store_addr="localhost", store_port=store.port, replica_id=f"rank_{rank}",
        init_sync=False,  # the seed gives all ranks the same model
    )  # fmt: skip
    ddp, wrapped = Averaging(manager, model), torchft.Optimizer(manager, optimizer)
    wait_for_all(args.folder, rank, ranks)
    while manager.current_step() < args.steps:
        x, y = batches.of(manager.current_step(), rank, ranks)
        wrapped.zero_grad()  # asks for a quorum, beside the forward pass
        time.sleep(args.pace)
        loss = loss_of(ddp(x), y)
        loss.backward()
        mean = loss.detach()
        manager.allreduce(mean).wait()
        step = manager.current_step()  # that of its peers, if this is a new process
        wrapped.step()
        if manager.current_step() > step:  # else the step was given up, and is made again
            lines.write(step, mean, manager.num_participants())
    manager.shutdown(wait=False)


def wait_for_all(folder: Path, rank: int, ranks: int) -> None:
    """Waits until a process of each rank was here once. Otherwise torchft begins with those that are
    there, and a rank that starts slowly would miss the first steps."""
    (folder / f"ready-{rank}").touch()
    while not all((folder / f"ready-{other}").exists() for other in range(ranks)):
        time.sleep(0.01)


def choose_training(args: argparse.Namespace) -> None:
    if args.horovod:
        train_with_horovod(args)
    elif args.torchft:
        train_with_torchft(args)
    else:
        train_with_holdfast(args)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    choose_training(parse())
