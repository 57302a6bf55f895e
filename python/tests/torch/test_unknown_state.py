"""Optimizers, schedulers and scalers that take part in a training and were not given are named,
once, at a save. What is given, also inside of something else, is not."""

import logging
import warnings

import pytest
import torch
from grouped import grouped
from torch import nn
from torch.optim import lr_scheduler

import holdfast


class Script:
    """Two models with an optimizer each, and what else a test adds."""

    def __init__(self):
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.opt_a = torch.optim.AdamW(self.a.parameters(), lr=0.1)
        self.opt_b = torch.optim.SGD(self.b.parameters(), lr=0.1)
        self.given = {"model": self.a, "optimizer": self.opt_a}

    def update(self, model, optimizer):
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def train(self, run, step, steps=4):
        """Trains, and saves each step. Returns what was found beside the saved state."""
        with holdfast.Checkpointer(run, every="1 steps", **self.given,
                                   **grouped(space_reserve=0)) as ck:
            ck.resume()
            for number in range(steps):
                step(number)
                ck.step(number)
            return ck._changes.find_unknown()


@pytest.mark.parametrize("is_saved", [True, False])
@pytest.mark.parametrize("comes_first", [True, False])
def test_a_second_optimizer_is_named_although_the_first_one_steps(tmp_path, caplog, is_saved,
                                                                  comes_first):
    """As that of the discriminator of a GAN, whose model is given or not."""
    script = Script()
    if is_saved:
        script.given["model"] = {"a": script.a, "b": script.b}
    pairs = [(script.a, script.opt_a), (script.b, script.opt_b)]

    def step(number):
        for pair in reversed(pairs) if comes_first else pairs:
            script.update(*pair)

    assert list(script.train(tmp_path, step)) == ["optimizer SGD"]
    told = [line for line in caplog.messages if line.startswith("optimizer: SGD takes part")]
    assert len(told) == 1
    assert ("it updates model.b.weight" if is_saved else "parameters in model=") in told[0]


def test_optimizers_that_are_no_part_of_the_training_are_not_named(tmp_path, caplog):
    script = Script()

    def step(number):
        if number == 0:
            script.update(script.b, script.opt_b)  # another training, before the first ck.step()
        script.update(script.b, torch.optim.SGD(script.b.parameters(), lr=0.1))  # as in MAML
        script.update(script.a, script.opt_a)

    assert not script.train(tmp_path, step, steps=6)
    assert not [line for line in caplog.messages if not line.startswith("module: script.b")]


def test_an_optimizer_of_another_checkpointer_is_not_named(tmp_path, caplog):
    script = Script()
    with holdfast.Checkpointer(tmp_path / "b", model=script.b, optimizer=script.opt_b):
        def step(number):
            script.update(script.b, script.opt_b)
            script.update(script.a, script.opt_a)

        assert not script.train(tmp_path / "a", step)
    assert not [line for line in caplog.messages if "takes part" in line]


class Outer(torch.optim.Optimizer):
    """Makes the steps of an optimizer that it keeps under a name of its own."""

    def __init__(self, within):
        self.within = within
        super().__init__([{"params": list(within.param_groups[0]["params"])}], {})

    def step(self, closure=None):
        self.within.step()


class Several:
    """Several optimizers that look like one."""

    def __init__(self, *within):
        self.within, self.state = within, {}

    @property
    def param_groups(self):
        return [group for one in self.within for group in one.param_groups]

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def step(self):
        for one in self.within:
            one.step()

    def zero_grad(self):
        for one in self.within:
            one.zero_grad()


def test_optimizers_inside_of_a_given_one_are_not_named(tmp_path, caplog):
    script = Script()
    outer = script.given["optimizer"] = Outer(script.opt_a)
    assert not script.train(tmp_path / "1", lambda number: script.update(script.a, outer))
    script.given |= {"model": {"a": script.a, "b": script.b},
                     "optimizer": Several(script.opt_a, script.opt_b)}

    def step(number):
        (script.a(torch.randn(2, 4)) + script.b(torch.randn(2, 4))).mean().backward()
        script.given["optimizer"].step()
        script.given["optimizer"].zero_grad()

    assert not script.train(tmp_path / "2", step)
    assert not [line for line in caplog.messages if "takes part" in line]


SCHEDULERS = {
    "StepLR": lambda opt: lr_scheduler.StepLR(opt, 3),
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, 1.0, 50),
    "CosineAnnealingWarmRestarts": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 3),
    "SequentialLR": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt), lr_scheduler.StepLR(opt, 3)], [2]),
    "ChainedScheduler": lambda opt: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(opt), lr_scheduler.StepLR(opt, 3)]),
}


class Holder:
    """An object of a user that has the state of what it holds."""

    def __init__(self, held):
        self.held = [held]

    def state_dict(self):
        return self.held[0].state_dict()

    def load_state_dict(self, state):
        self.held[0].load_state_dict(state)


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_scheduler_that_was_not_given_is_named_alone(tmp_path, caplog, kind):
    for given in [{}, {"scheduler": lambda one: one}, {"scheduler": lambda one: {"x": one}},
                  {"objects": lambda one: {"mine": Holder(one)}}]:
        script = Script()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about its own SequentialLR
            scheduler = SCHEDULERS[kind](script.opt_a)
        script.given |= {name: make(scheduler) for name, make in given.items()}

        def step(number):
            script.update(script.a, script.opt_a)
            scheduler.step()

        found = script.train(tmp_path / str(len(caplog.messages)) / str(given), step)
        assert list(found) == ([] if given else [f"scheduler {kind}"])
    assert len([line for line in caplog.messages if "takes part" in line]) == 1


def test_a_scheduler_that_makes_no_step_is_not_named_before_it_does(tmp_path):
    """As one that makes a step at the end of an epoch."""
    script = Script()
    scheduler = lr_scheduler.StepLR(script.opt_a, 1)
    step = lambda number: script.update(script.a, script.opt_a)  # noqa: E731
    assert not script.train(tmp_path / "1", step)

    def end_of_epoch(number):
        step(number)
        if number == 4:
            scheduler.step()

    assert not script.train(tmp_path / "2", end_of_epoch, steps=4)
    assert list(script.train(tmp_path / "3", end_of_epoch, steps=6)) == ["scheduler StepLR"]


def test_a_scheduler_that_leaves_no_mark_is_found_a_while_later(tmp_path, monkeypatch):
    monkeypatch.setattr("holdfast.torch.loop.unknown_state._LATER", 0.0)
    script = Script()
    scheduler = lr_scheduler.ReduceLROnPlateau(script.opt_a)

    def step(number):
        script.update(script.a, script.opt_a)
        scheduler.step(1.0)

    assert list(script.train(tmp_path, step)) == ["scheduler ReduceLROnPlateau"]


@pytest.mark.parametrize("is_given", [True, False])
def test_a_scaler_that_was_not_given_is_named(tmp_path, caplog, is_given):
    script = Script()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    if is_given:
        script.given["scaler"] = scaler

    def step(number):
        scaler.scale(script.a(torch.randn(2, 4)).square().mean()).backward()
        scaler.step(script.opt_a)
        scaler.update()
        script.opt_a.zero_grad()

    with caplog.at_level(logging.WARNING):
        assert list(script.train(tmp_path, step)) == ([] if is_given else ["scaler GradScaler"])
    assert len(caplog.records) == (not is_given)
