"""All modules together:
a run that stops and continues in new objects has the same bits as one that does not stop."""

import hashlib

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import holdfast
from holdfast.torch.state.ddp_buckets import BucketOrders
from holdfast.torch.state.stateful import Stateful
from holdfast.torch.state.tensor_state import TensorState
from holdfast.torch.values import generators
from holdfast.torch.values.dtypes import SavedTensor


class Net(nn.Module):
    """BatchNorm, dropout, a tied weight, and a spectral norm, whose buffers change in forward."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))
        self.drop = nn.Dropout(0.3)
        self.again = nn.Linear(16, 16)
        self.again.weight = self.inner.weight

    def forward(self, x):
        x = self.drop(torch.relu(self.norm(self.inner(x))))
        return self.again(self.drop(torch.tanh(self.spectral(x))))


class Run:
    """The objects that a training script makes at its start."""

    def __init__(self, rank, world, how):
        torch.manual_seed(rank)
        self.net = Net()
        if how.get("bf16"):
            self.net = self.net.bfloat16()
        self.dtype = self.net.inner.weight.dtype
        self.model = self.net
        if world > 1:
            self.model = DistributedDataParallel(
                self.net, bucket_cap_mb=0.001, broadcast_buffers=how.get("broadcast", True))
        kind = torch.optim.SGD if how.get("sgd") else torch.optim.AdamW
        more = {"momentum": 0.9} if how.get("sgd") else {"fused": how.get("fused")}
        self.optimizer = kind(self.model.parameters(), lr=0.01, **more)
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=4)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2,
                                           enabled=how.get("scaler", False))
        self.ema = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9),
                                 use_buffers=True)
        self.buckets = BucketOrders(self.model)
        self.state = TensorState(self.model, self.optimizer)
        self.holders = [Stateful(key, getattr(self, key)) for key in ("scheduler", "scaler", "ema")]
        torch.manual_seed(100 + rank)
        self.accumulate = how.get("accumulate", 1)

    def step(self):
        for _ in range(self.accumulate):
            x = torch.randn(8, 16).to(self.dtype)
            self.scaler.scale(self.model(x).float().pow(2).mean()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.ema.update_parameters(self.net)

    def save(self, folder):
        tensors = {p.name: p.tensor for p in self.state.pieces()}
        objects = {"optimizer": self.state.objects(), "generators": generators.capture(),
                   "buckets": self.buckets.state()}
        for holder in self.holders:
            objects[holder.key], pieces = holder.capture()
            tensors |= {p.name: p.tensor for p in pieces}
        with holdfast.Saver(folder, writing=holdfast.Writing(space_reserve=0)) as saver:
            saver.save(1, tensors, objects)

    def resume(self, folder, first):
        """Restores what this rank saved in `folder`,
        and what all ranks share from rank 0's `first`."""
        contents = holdfast.open(folder)
        saved = {name: SavedTensor.of(info) for name, info in contents.items()}
        objects = contents.objects
        self.state.allocate_slots(saved, objects["optimizer"])
        shared = {p.name: p.tensor for p in self.state.pieces() if p.copies != "own"}
        own = {p.name: p.tensor for p in self.state.pieces() if p.copies == "own"}
        for holder in self.holders:
            own |= {p.name: p.tensor for p in holder.allocate(objects[holder.key], saved)}
        assert sorted(own | shared) == sorted({contents[name].name for name in contents})
        holdfast.restore(first, shared)
        holdfast.restore(folder, own)
        assert self.state.load_objects(objects["optimizer"]) == []
        for holder in self.holders:
            holder.load()
        assert self.buckets.restore(objects["buckets"]) == []
        generators.restore(objects["generators"])

    def digest(self):
        made = hashlib.sha256()
        for piece in [*self.state.pieces(), *self.holders[2].capture()[1]]:
            made.update(piece.name.encode())
            made.update(piece.tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        made.update(repr([self.scheduler.state_dict(), self.scaler.state_dict(),
                          self.optimizer.param_groups[0]["lr"]]).encode())
        return made.hexdigest()


def stop_and_go_on(rank, world, folder, how, stops):
    """True if a run that stops and continues in new objects has the
    digests of one without stops."""
    whole = Run(rank, world, how)
    wanted = []
    for _ in range(7):
        whole.step()
        wanted.append(whole.digest())
    run = Run(rank, world, how)
    seen = []
    for step in range(7):
        if step in stops:
            run.save(f"{folder}/{step}-{rank}")
            if world > 1:
                dist.barrier()
            run = Run(rank + 50, world, how)  # begins with other weights and other generators
            run.resume(f"{folder}/{step}-{rank}", f"{folder}/{step}-0")
        run.step()
        seen.append(run.digest())
    return seen == wanted


HOW = {
    "adamw": {}, "fused": {"fused": True}, "sgd": {"sgd": True}, "scaler": {"scaler": True},
    "accumulated": {"accumulate": 4}, "bf16": {"bf16": True},
}


@pytest.mark.parametrize("name", HOW)
@pytest.mark.parametrize("stops", [(3,), (1, 2, 5)])
def test_a_run_goes_on_with_the_same_bits(tmp_path, name, stops):
    assert stop_and_go_on(0, 1, tmp_path, HOW[name], stops)


@pytest.mark.parametrize("how", [{}, {"broadcast": False}, {"sgd": True, "accumulate": 2}])
def test_a_run_of_three_ranks_goes_on_with_the_same_bits(tmp_path, how):
    assert all(run_ranks(3, stop_and_go_on, str(tmp_path), how, (1, 4)))
