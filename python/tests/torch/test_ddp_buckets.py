"""A resumed DDP run on three or more ranks has the same bits as one that was not interrupted."""

import copy
import hashlib
from collections import OrderedDict

import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.torch.state.ddp_buckets import BucketOrders


class Net(nn.Module):
    """Uses its layers in another order than it declares them,
    so that DDP's new bucket order matters."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(23, 23) for _ in range(6)])

    def forward(self, x):
        for k in (3, 0, 5, 1, 4, 2):
            x = torch.tanh(self.layers[k](x))
        return x


def start(how, state=None):
    torch.manual_seed(0)
    model = Net()
    if state is not None:
        model.load_state_dict(state["model"])
    ddp = DistributedDataParallel(model, **how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if state is not None:
        optimizer.load_state_dict(state["optimizer"])
    return ddp, optimizer, BucketOrders(ddp)


def train(ddp, optimizer, rank, steps, accumulate=1):
    for step in steps:
        for micro in range(accumulate):
            seed = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
            x = torch.randn(8, 23, generator=seed)
            if micro < accumulate - 1:
                with ddp.no_sync():
                    ddp(x).pow(2).mean().backward()
            else:
                ddp(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def digest(ddp, optimizer):
    made = hashlib.sha256()
    for parameter in ddp.parameters():
        for tensor in (parameter, *optimizer.state[parameter].values()):
            made.update(tensor.detach().numpy().tobytes())
    return made.hexdigest()


def resume(rank, world, how, before, restore, accumulate=1):
    """True if a run that stops after `before` steps ends with the same
    bits as one that does not."""
    ddp, optimizer, buckets = start(how)
    train(ddp, optimizer, rank, range(before), accumulate)
    order = buckets.state()
    state = copy.deepcopy({"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict()})
    train(ddp, optimizer, rank, range(before, 6), accumulate)
    wanted = digest(ddp, optimizer)
    ddp, optimizer, buckets = start(how, state)
    if restore:
        assert buckets.restore(order) == []
        assert buckets.state() == order  # a save right after the resume has the same order, too
        assert all(p.grad is None for p in ddp.parameters())
    train(ddp, optimizer, rank, range(before, 6), accumulate)
    return wanted == digest(ddp, optimizer)


SMALL = {"bucket_cap_mb": 0.005}


@pytest.mark.parametrize("world", [3, 4])
@pytest.mark.parametrize("before", [1, 2, 4])
def test_a_resumed_run_has_the_same_bits(world, before):
    assert all(run_ranks(world, resume, SMALL, before, True))


@pytest.mark.parametrize("how", [
    {}, {**SMALL, "gradient_as_bucket_view": True}, {**SMALL, "find_unused_parameters": True},
])
def test_it_has_with_each_kind_of_bucket(how):
    assert all(run_ranks(3, resume, how, 4, True))


@pytest.mark.parametrize("before", [1, 2, 4])
def test_it_has_with_a_static_graph(before):
    assert all(run_ranks(3, resume, {**SMALL, "static_graph": True}, before, True))


def test_it_has_when_gradients_are_accumulated_without_reducing():
    assert all(run_ranks(3, resume, SMALL, 1, True, 3))


@pytest.mark.parametrize("how", [SMALL, {**SMALL, "gradient_as_bucket_view": True}])
def test_without_the_order_the_bits_differ(how):
    assert not all(run_ranks(3, resume, how, 4, False))


def orders_of_odd_states(rank, world):
    ddp, optimizer, buckets = start(SMALL)
    assert buckets.state() == [("", None)]  # there is no order before the first pass
    assert buckets.restore([("", None)]) == []
    assert buckets.restore([("", ["layers.0.weight"])]) == [
        "model: the saved bucket order is of other parameters"]
    train(ddp, optimizer, rank, range(4))
    names = buckets.state()[0][1]
    assert sorted(names) == sorted(name for name, _ in ddp.module.named_parameters())
    ddp(torch.zeros(1, 23)).sum().backward()
    assert buckets.restore(buckets.state()) == []  # the order is already right
    assert "gradients already" in buckets.restore([("", names[::-1])])[0]
    inner = nn.ModuleDict({"a": ddp, "b": nn.Linear(1, 1)})
    assert [name for name, _ in BucketOrders(inner).state()] == ["a"]
    assert [name for name, _ in BucketOrders({"g": ddp, "d": inner}).state()] == ["g", "d.a"]


def test_orders_that_are_not_there_or_not_of_this_model_are_told():
    run_ranks(3, orders_of_odd_states)


def orders_of_stages(rank, world):
    """Each of two stages gets its own order back, in whatever order the stages were saved."""
    orders = []
    for _ in range(2):
        torch.manual_seed(0)
        stages = [DistributedDataParallel(nn.Sequential(OrderedDict({name: Net()})), **SMALL)
                  for name in "ab"]
        buckets = BucketOrders(stages)
        if not orders:
            for stage in stages:
                stage(torch.ones(1, 23)).sum().backward()
            orders = buckets.state()
        else:
            assert buckets.restore(orders[::-1]) == []
            assert buckets.state() == orders
    return [(name, names[0]) for name, names in orders]


def test_stages_get_their_own_orders_back():
    wanted = [("", "a.layers.2.bias"), ("", "b.layers.2.bias")]
    assert run_ranks(2, orders_of_stages) == [wanted] * 2
