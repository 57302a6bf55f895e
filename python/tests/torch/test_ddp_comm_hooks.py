"""The state of DDP's communication hooks is saved, and a resumed run continues with it."""

import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import holdfast


def power(model):
    model.register_comm_hook(PowerSGDState(None, 1, start_powerSGD_iter=2), powerSGD_hook)


def script(run, steps, rank, world, register=power):
    """Trains. Returns this rank's parameters, the state of the hook, and what is inexact."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    model = DistributedDataParallel(net) if world > 1 else net
    if world > 1:
        register(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1 steps",
                               writing=holdfast.Writing(space_reserve=0)) as checkpointer:
        for step in range(checkpointer.resume(), steps):
            optimizer.zero_grad()
            torch.manual_seed(100 * step + rank)
            model(torch.randn(4, 16)).square().sum().backward()
            optimizer.step()
            checkpointer.step(step)
    assert checkpointer.report.exact
    state = model._comm_hooks[0][1] if world > 1 else None
    return [p.tolist() for p in net.parameters()], state, checkpointer.report.inexact


def power_on_ranks(rank, world, folder):
    wanted, state, _ = script(f"{folder}/a", 8, rank, world)
    assert state.error_dict and state.iter > 2
    script(f"{folder}/b", 4, rank, world)
    got, again, inexact = script(f"{folder}/b", 8, rank, world)
    same = all(torch.equal(state.error_dict[k], again.error_dict[k]) for k in state.error_dict)
    return got == wanted, same, state.iter == again.iter, inexact


@pytest.mark.parametrize("world", [2, 3])
def test_power_sgd_goes_on_with_the_same_bits(tmp_path, world):
    assert run_ranks(world, power_on_ranks, str(tmp_path)) == [(True, True, True, [])] * world


def test_on_another_number_of_ranks_it_is_left_and_said(tmp_path):
    run_ranks(2, script_alone, str(tmp_path), 3)
    *_, inexact = script(tmp_path, 3, 0, 1)
    assert any(line.startswith("ddp.comm_hooks: the checkpoint has none") for line in inexact)


def script_alone(rank, world, folder, steps):
    script(folder, steps, rank, world)


class Own:
    """A hook state as a user may write it, with a counter and a value that cannot be stored."""

    def __init__(self, start):
        self.count, self.group, self.odd = start, None, lambda: None


class WithDict(Own):
    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def counting(state, bucket):
    state.count += 1
    return allreduce_hook(None, bucket)


def own_on_ranks(rank, world, folder, kind):
    def register(start):
        return lambda model: model.register_comm_hook(kind(start), counting)

    _, state, _ = script(f"{folder}/run", 3, rank, world, register(1000 * rank))
    _, again, inexact = script(f"{folder}/run", 3, rank, world, register(7))
    return state.count == again.count, inexact


@pytest.mark.parametrize("kind", [Own, WithDict])
def test_a_state_of_the_users_comes_back(tmp_path, kind):
    for same, inexact in run_ranks(2, own_on_ranks, str(tmp_path), kind):
        assert same and len(inexact) == (kind is Own)
        assert kind is WithDict or inexact[0].startswith("Own.odd: belongs to a communication hook")
