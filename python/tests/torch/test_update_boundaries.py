"""Which calls of step() save. Calls in the middle of an update of any optimizer do not, unless a
save cannot wait. If no hook reports updates, every call may save."""

import logging
import os
import signal

from command import saved_steps
from grouped import grouped
import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

import holdfast


class Pair:
    """Two parts with an optimizer each. The second updates after every `every` steps."""

    def __init__(self, every, seed=0, names=("a", "b")):
        torch.manual_seed(seed)
        self.every = every
        self.model = nn.ModuleDict({name: nn.Linear(8, 8) for name in names})
        self.optimizers = {name: torch.optim.AdamW(self.model[name].parameters(), lr=0.01)
                           for name in names}

    def checkpointer(self, run, **options):
        return holdfast.Checkpointer(run, model=self.model, optimizer=self.optimizers, keep=None,
                                     **grouped(**({"every": "1 steps", "space_reserve": 0}
                                                  | options)))

    def step(self, number):
        batch = torch.full((2, 8), float(number % 7))
        for name, part in self.model.items():
            (part(batch) ** 2).mean().backward()
            if name == "a" or (number + 1) % self.every == 0:
                self.optimizers[name].step()
                self.optimizers[name].zero_grad()

    def train(self, run, last, start=None, **options):
        """Resumes and trains up to step `last`, then closes the checkpointer."""
        with self.checkpointer(run, **options) as checkpointer:
            first = checkpointer.resume()
            for number in range(first if start is None else start, last + 1):
                self.step(number)
                checkpointer.step(number)
            return first, checkpointer.report

    def state(self):
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}


def assert_resumes_alike(run, every, steps, make=Pair):
    """Resumes from the newest step and checks that it ends with the bits
    of an uninterrupted training."""
    whole, again = make(every), make(every, seed=9)
    for number in range(steps):
        whole.step(number)
    first, report = again.train(run, steps - 1)
    assert first > 0 and not report.inexact
    for name, tensor in whole.state().items():
        assert torch.equal(tensor, again.state()[name]), name


def test_a_step_where_one_of_two_optimizers_accumulates_is_no_boundary(tmp_path):
    Pair(4).train(tmp_path / "run", 10)
    assert saved_steps(tmp_path / "run") == [3, 7, 10]  # the end, with its gradients
    assert_resumes_alike(tmp_path / "run", 4, 14)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_nobody_accumulates_keep_no_save_waiting(tmp_path, set_to_none):
    """As in a GAN: one optimizer steps seldom,
    and its loss also leaves gradients in the other model."""
    pair = Pair(1)
    with pair.checkpointer(tmp_path / "run") as checkpointer:
        checkpointer.resume()
        for number in range(8):
            pair.optimizers["a"].zero_grad(set_to_none=set_to_none)
            pair.model["a"](torch.ones(2, 8)).mean().backward()
            pair.optimizers["a"].step()
            if number % 4 == 0:
                pair.optimizers["b"].zero_grad(set_to_none=set_to_none)
                pair.model["b"](pair.model["a"](torch.ones(2, 8))).mean().backward()
                pair.optimizers["b"].step()
            checkpointer.step(number)
    assert saved_steps(tmp_path / "run") == list(range(8))


def test_a_save_that_has_waited_for_long_is_made_with_the_gradients(tmp_path, caplog):
    Pair(1000).train(tmp_path / "run", 20)
    assert saved_steps(tmp_path / "run") == [16, 20]  # the second is the end
    assert "in the middle" in caplog.text
    assert_resumes_alike(tmp_path / "run", 24, 26, lambda every, seed=0: Pair(every, seed))


def accumulate(model, optimizer, checkpointer, steps, every, stop=None):
    for number in steps:
        (model(torch.full((2, 8), float(number))) ** 2).mean().backward()
        if (number + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad()
        if number == stop:
            os.kill(os.getpid(), signal.SIGTERM)
        checkpointer.step(number)


def one_optimizer(seed=0):
    torch.manual_seed(seed)
    model = nn.Linear(8, 8)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def rare_checkpointer(run, model, optimizer):
    return holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1000 steps",
                                 writing=holdfast.Writing(space_reserve=0))


def test_a_stop_does_not_wait_for_the_end_of_an_accumulation(tmp_path):
    model, optimizer = one_optimizer()
    checkpointer = rare_checkpointer(tmp_path / "run", model, optimizer)
    checkpointer.resume()
    with pytest.raises(SystemExit) as stopped:
        accumulate(model, optimizer, checkpointer, range(100), 50, stop=60)
    assert stopped.value.code == 143 and saved_steps(tmp_path / "run") == [60]
    model, optimizer = one_optimizer(9)
    with rare_checkpointer(tmp_path / "run", model, optimizer) as checkpointer:
        assert checkpointer.resume() == 61 and not checkpointer.report.inexact
        accumulate(model, optimizer, checkpointer, range(61, 120), 50)
    whole, its_optimizer = one_optimizer()
    for number in range(120):
        (whole(torch.full((2, 8), float(number))) ** 2).mean().backward()
        if (number + 1) % 50 == 0:
            its_optimizer.step()
            its_optimizer.zero_grad()
    assert torch.equal(whole.weight, model.weight)
    assert torch.equal(whole.weight.grad, model.weight.grad)


def test_the_same_number_for_all_micro_batches_hears_of_a_stop_too(tmp_path):
    model, optimizer = one_optimizer()
    checkpointer = rare_checkpointer(tmp_path / "run", model, optimizer)
    checkpointer.resume()
    with pytest.raises(SystemExit):
        for number in range(100):
            model(torch.ones(1, 8)).sum().backward()
            if number == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            checkpointer.step(0)
    assert number == 3


def test_the_last_step_is_saved_in_the_middle_too(tmp_path):
    model, optimizer = one_optimizer()
    with holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer,
                               every="1000 steps", writing=holdfast.Writing(space_reserve=0),
                               schedule=holdfast.Schedule(total_steps=6)) as checkpointer:
        checkpointer.resume()
        accumulate(model, optimizer, checkpointer, range(6), 4)
    assert saved_steps(tmp_path / "run") == [5]


def test_a_long_accumulation_is_waited_for(tmp_path):
    model, optimizer = one_optimizer()
    with holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer, every="40 steps",
                               writing=holdfast.Writing(space_reserve=0)) as checkpointer:
        checkpointer.resume()
        accumulate(model, optimizer, checkpointer, range(100), 30)
    assert saved_steps(tmp_path / "run") == [59, 89, 99]


def stop_in_the_middle(rank, world, folder, kind, victim):
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    model = DistributedDataParallel(model) if kind == "ddp" else fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    checkpointer = holdfast.Checkpointer(f"{folder}/run", model=model, optimizer=optimizer,
                                         every="1000 steps",
                                         writing=holdfast.Writing(space_reserve=0))
    start = checkpointer.resume()
    inexact, gradient = list(checkpointer.report.inexact), None
    if start:
        gradient = next(model.parameters()).grad
        checkpointer.close()
        return start, inexact, None if gradient is None else float(gradient.sum())
    try:
        for number in range(100_000):
            last = number == 9
            if kind == "ddp" and not last:
                with model.no_sync():
                    model(torch.full((2, 8), float(rank + 1))).mean().backward()
            else:
                if kind != "ddp":
                    model.set_requires_gradient_sync(last)
                model(torch.full((2, 8), float(rank + 1))).mean().backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
            if rank == victim and number == 20:
                os.kill(os.getpid(), signal.SIGTERM)
            checkpointer.step(number)
    except SystemExit:
        gradient = next(model.parameters()).grad
        return number, inexact, None if gradient is None else float(gradient.sum())
    return None


@pytest.mark.parametrize("victim", [0, 1])
def test_ranks_stop_in_the_middle_together_each_with_its_gradients(tmp_path, victim):
    stopped = run_ranks(2, stop_in_the_middle, str(tmp_path), "ddp", victim)
    resumed = run_ranks(2, stop_in_the_middle, str(tmp_path), "ddp", victim)
    number = stopped[0][0]
    assert number >= 20
    assert [(n, i) for n, i, _ in resumed] == [(number + 1, [])] * 2
    assert [g for *_, g in resumed] == [g for *_, g in stopped]
    assert resumed[0][2] != resumed[1][2]


def test_gradients_that_cannot_be_saved_are_named(tmp_path):
    run_ranks(2, stop_in_the_middle, str(tmp_path), "fsdp", 0)
    resumed = run_ranks(2, stop_in_the_middle, str(tmp_path), "fsdp", 0)
    assert all("FSDP has not reduced" in " ".join(inexact) for _, inexact, _ in resumed)


def pair_on_ranks(rank, world, run):
    """Only rank 1 has the second optimizer, which accumulates."""
    Pair(4, names=("a", "b") if rank else ("a",)).train(run, 10)


def test_what_is_the_middle_on_one_rank_is_so_on_all(tmp_path):
    run_ranks(2, pair_on_ranks, str(tmp_path / "run"))
    assert saved_steps(tmp_path / "run") == [3, 7, 10]


class Wrapper:
    """A wrapper like Fabric's and accelerate's:
    it has all attributes of the optimizer inside it."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, closure=None):
        return self.optimizer.step(closure)

    def zero_grad(self):
        self.optimizer.zero_grad()

    def __getattr__(self, name):
        return getattr(self.optimizer, name)


class Hidden(Wrapper):
    """The same, but the optimizer inside is under a name that Holdfast does not know."""

    def __init__(self, optimizer):
        self.within = optimizer

    def __getattr__(self, name):
        return getattr(self.__dict__["within"], name)

    def step(self, closure=None):
        return self.within.step(closure)

    def zero_grad(self):
        self.within.zero_grad()


class PlainSGD:
    """Looks like an optimizer but is no torch.optim.Optimizer, so torch calls no hooks for it."""

    def __init__(self, params, silent=False):
        self.param_groups = [{"params": list(params), "lr": 0.1}]
        self.state = {}
        self.silent = silent  # torch does not count its writes, as those of a CUDA graph

    def state_dict(self):
        return {"state": {}, "param_groups": []}

    def load_state_dict(self, state):
        pass

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                (p.data if self.silent else p).add_(p.grad, alpha=-0.1)

    def zero_grad(self):
        for p in self.param_groups[0]["params"]:
            p.grad = None


def train_wrapped(run, make, every=1, steps=6, stop=None):
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    optimizer = make(model.parameters())
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1 steps",
                               keep=None,
                               writing=holdfast.Writing(space_reserve=0)) as checkpointer:
        checkpointer.resume()
        accumulate(model, optimizer, checkpointer, range(steps), every, stop)
    return model


@pytest.mark.parametrize("wrapper", [Wrapper, Hidden])
def test_the_optimizer_inside_a_wrapper_tells_of_updates(tmp_path, wrapper, caplog):
    with caplog.at_level(logging.WARNING):
        train_wrapped(tmp_path, lambda p: wrapper(torch.optim.SGD(p, lr=0.1)), every=2)
    assert saved_steps(tmp_path) == [1, 3, 5]
    assert "hook" not in caplog.text


def test_an_object_without_hooks_is_saved_where_its_parameters_have_moved(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        model = train_wrapped(tmp_path, PlainSGD, every=2)
    assert saved_steps(tmp_path) == [1, 3, 5]
    assert caplog.text.count("no hook tells") == 1
    assert torch.equal(holdfast.load(tmp_path)["model.weight"], model.weight)


def test_an_object_without_hooks_hears_of_a_stop(tmp_path):
    with pytest.raises(SystemExit) as stopped:
        train_wrapped(tmp_path, lambda p: PlainSGD(p, silent=True), stop=4, steps=100)
    assert stopped.value.code == 143
    assert saved_steps(tmp_path)[-1] == 4


def post_local_sgd(rank, world, run):
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                      PeriodicModelAverager(period=4, warmup_steps=100))
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1 steps",
                               keep=None,
                               writing=holdfast.Writing(space_reserve=0)) as checkpointer:
        checkpointer.resume()
        accumulate(model, optimizer, checkpointer, range(4), 1)


def test_post_local_sgd_is_saved(tmp_path):
    run_ranks(2, post_local_sgd, str(tmp_path))
    assert saved_steps(tmp_path) == [0, 1, 2, 3]


def test_updates_that_nothing_tells_of_are_taken_for_one_a_step(tmp_path, caplog):
    """Updates like those that a CUDA graph replays:
    neither hooks nor version counters show them."""
    model, optimizer = one_optimizer()
    with holdfast.Checkpointer(tmp_path, model=model, optimizer=optimizer, every="1 steps",
                               keep=None,
                               writing=holdfast.Writing(space_reserve=0)) as checkpointer:
        checkpointer.resume()
        for number in range(24):
            for parameter in model.parameters():
                parameter.data.add_(1)
            checkpointer.step(number)
    assert saved_steps(tmp_path)[-1] == 23 and 0 not in saved_steps(tmp_path)
    assert caplog.text.count("no hook tells") == 1
    assert torch.equal(holdfast.load(tmp_path)["model.weight"], model.weight)
