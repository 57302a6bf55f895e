"""resume() in the middle of a run goes back, and removes all that the undone steps have left."""

import copy

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from training import Toy

import holdfast


class Net(nn.Module):
    """A model whose second layer is used from the third step on, so it has no moments before."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, step):
        return self.b(self.a(x)) if step >= 2 else self.a(x)


OPTIMIZERS = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "lbfgs": lambda params: torch.optim.LBFGS(params, max_iter=2),
    "odd keys": lambda params: Keys(params),
}


class Keys(torch.optim.Optimizer):
    """An optimizer with slots whose keys are not simple names,
    and with state that has no parameter."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    def step(self, closure=None):
        with torch.enable_grad():
            closure()
        self.state["updates"] = {"count": self.state.get("updates", {"count": 0})["count"] + 1}
        for p in self.param_groups[0]["params"]:
            if p.grad is None:
                continue
            state = self.state[p]
            if not state:
                state["exp.avg"], state[0] = torch.zeros_like(p), torch.zeros_like(p)
                state["nested"], state[1, "x"] = {"a.b": torch.zeros(3)}, 0
            state["exp.avg"].lerp_(p.grad, 0.1)
            state[0].add_(p.grad.square())
            state["nested"]["a.b"] += 1
            state[1, "x"] += self.state["updates"]["count"]
            with torch.no_grad():
                p -= 0.1 * state["exp.avg"] / (state[0].sqrt() + state[1, "x"])


def train(model, optimizer, steps, checkpointer=None):
    for step in steps:
        def closure(step=step):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4) + step, step).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        if checkpointer is not None:
            checkpointer.step(step)


def made(kind):
    torch.manual_seed(0)
    model = Net()
    return model, OPTIMIZERS[kind](model.parameters())


def contents(model, optimizer):
    """All values of the model and its optimizer, by name and in order."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    state = {names.get(key, key): sorted(value.items(), key=repr)
             for key, value in optimizer.state.items()}
    return repr(list(model.state_dict().items())), repr(sorted(state.items(), key=repr))


def checkpoints(run, model, optimizer, every="1000 steps"):
    return holdfast.Checkpointer(run, model=model, optimizer=optimizer, every=every,
                                 writing=holdfast.Writing(space_reserve=0),
                                 failures=holdfast.Failures(signals=False))


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("at", [0, 1, 3])
def test_going_back_is_as_if_nothing_had_been(tmp_path, kind, at):
    torch.set_printoptions(precision=20)
    model, optimizer = made(kind)
    train(model, optimizer, range(8))
    wanted = contents(model, optimizer)
    model, optimizer = made(kind)
    with checkpoints(tmp_path, model, optimizer) as ck:
        ck.resume()
        train(model, optimizer, range(at))
        before = copy.deepcopy(contents(model, optimizer))
        ck.save(at).durable()
        train(model, optimizer, range(at, 6))
        assert ck.resume() == at + 1
        assert contents(model, optimizer) == before
        train(model, optimizer, range(at, 8))
        assert contents(model, optimizer) == wanted


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_new_process_goes_on_with_the_same_bits(tmp_path, kind):
    torch.set_printoptions(precision=20)
    model, optimizer = made(kind)
    train(model, optimizer, range(8))
    wanted = contents(model, optimizer)
    for steps in (range(5), range(5, 8)):
        model, optimizer = made(kind)
        with checkpoints(tmp_path, model, optimizer) as ck:
            assert ck.resume() == steps.start
            train(model, optimizer, steps)
            ck.save(steps.stop - 1)
    assert contents(model, optimizer) == wanted


@pytest.mark.parametrize("plain", [True, False])
def test_steps_are_made_again_with_the_batches_that_they_had(tmp_path, plain):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.arange(40.0).view(20, 2, 1)
    data = (DataLoader(data, None, shuffle=True) if plain else
            holdfast.data.loader(data, 1, epochs="each"))
    read, goes_back = {}, True
    with holdfast.Checkpointer(tmp_path, model=model, optimizer=optimizer, data=data,
                               every="3 steps", writing=holdfast.Writing(space_reserve=0)) as ck:
        step = ck.resume()
        while data.epoch < 2:
            for batch in data:
                if step == 8 and goes_back:
                    step, goes_back = ck.resume(), False
                    break
                assert read.setdefault(step, batch.sum()) == batch.sum()
                model(batch).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                ck.step(step)
                step += 1
    assert sorted(read) == list(range(40))


def test_without_a_checkpoint_steps_cannot_be_undone(tmp_path):
    model, optimizer = made("adamw")
    with checkpoints(tmp_path, model, optimizer) as ck:
        assert ck.resume() == ck.resume() == 0
        train(model, optimizer, range(3), ck)
        with pytest.raises(holdfast.NotFoundError, match="resume: there is no checkpoint, and "
                                                         "step 2 is made; expected"):
            ck.resume()
        ck.save(2)
        assert ck.resume() == 3


def test_gradients_of_steps_that_are_undone_are_gone(tmp_path):
    toy = Toy()
    with toy.checkpointer(tmp_path) as ck:
        ck.resume()
        toy.train(ck, [0])
        ck.resume()
        assert all(p.grad is None for p in toy.model.parameters())


def test_two_slots_of_one_name_are_refused(tmp_path):
    toy = Toy()
    with toy.checkpointer(tmp_path, every="1000 steps") as ck:
        toy.step()
        state = toy.optimizer.state[toy.model[0].bias]
        state[0] = state["0"] = torch.zeros(3)
        with pytest.raises(ValueError, match="optimizer.0.bias.0"):
            ck.save(0)


def on_ranks(rank, world, run):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    with checkpoints(run, model, optimizer) as ck:
        ck.resume()
        ck.save(0).durable()
        for _ in range(5):
            step()
        assert ck.resume() == 1
        return ck.report.inexact, len(optimizer.state)


def test_going_back_on_ranks_leaves_ddp_as_it_is(tmp_path):
    assert run_ranks(2, on_ranks, str(tmp_path)) == [([], 0), ([], 0)]


class Momentum(torch.optim.Optimizer):
    """Slots under a number and in a list, and one slot that differs by rank."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state[0], state["list"] = torch.zeros_like(p), [torch.zeros_like(p)]
                state["own"] = torch.zeros(3)
            state[0].add_(p.grad)
            state["list"][0].add_(state[0])
            state["own"] += 1 + (dist.get_rank() if dist.is_initialized() else 0)
            p.sub_(state["list"][0] + state["own"].sum(), alpha=0.1)


def sharded(rank, world, run, start, steps):
    torch.manual_seed(0)
    model = nn.Linear(4, 6, bias=False)
    if world > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = Momentum(model.parameters())
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1000 steps",
                               writing=holdfast.Writing(space_reserve=0),
                               failures=holdfast.Failures(signals=False),
                               layout=holdfast.Layout(rules={"optimizer.*.own": "own"})) as ck:
        assert ck.resume() == start
        for step in range(start, steps):
            optimizer.zero_grad()
            model(torch.ones(2, 4) * step).sum().backward()
            optimizer.step()
        ck.save(steps - 1).durable()
    state = optimizer.state[model.weight]
    tensors = [model.weight, state[0], state["list"][0]]
    whole = [t.full_tensor() if world > 1 else t for t in tensors]
    return [t.tolist() for t in whole], state["own"].tolist(), sorted(map(str, state))


def test_slots_by_numbers_and_in_lists_are_cut_as_their_parameter_is(tmp_path):
    wanted = run_ranks(2, sharded, str(tmp_path / "a"), 0, 5)
    assert [own for _, own, _ in wanted] == [[5.0] * 3, [10.0] * 3]
    saved = run_ranks(2, sharded, str(tmp_path / "b"), 0, 3)
    assert run_ranks(2, sharded, str(tmp_path / "b"), 3, 5) == wanted
    run_ranks(2, sharded, str(tmp_path / "c"), 0, 3)
    tensors, own, keys = sharded(0, 1, tmp_path / "c", 3, 3)
    assert tensors == saved[0][0] and keys == ["0", "list", "own"]
