"""A ck.step() in the wrong line of a training loop is told of, with its line. No other one is.

A loop is written as the letters of what it does in turn: F forward, B backward, U update, Z and z
clear gradients, G clips them, S a scheduler's step, E the update of an average, C ck.step().
"""

import random

import pytest
import torch
from grouped import grouped
from long_tests import first_of
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import holdfast

UPDATE = "before the update of the optimizer"
SCHEDULER = "before the step of the scheduler"
AVERAGE = "before the update of the average"


class Script:
    def __init__(self, run, init_scale=None, **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.scaler = init_scale and torch.amp.GradScaler("cpu", init_scale=init_scale)
        options = {"scaler": self.scaler} | options
        self.ck = holdfast.Checkpointer(run, model=self.model, optimizer=self.optimizer,
                                        scheduler=self.scheduler, ema=self.ema, every="1 steps",
                                        **options, **grouped(space_reserve=0))
        self.number = self.ck.resume()

    def do(self, letters):
        for letter in letters:
            self.one(letter)

    def one(self, letter):
        if letter == "F":
            self.loss = self.model(torch.randn(3, 4)).square().mean()
        elif letter == "B":
            (self.scaler.scale(self.loss) if self.scaler else self.loss).backward()
        elif letter == "U" and self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        elif letter == "U":
            self.optimizer.step()
        elif letter in "Zz":
            self.optimizer.zero_grad(set_to_none=letter == "Z")
        elif letter == "G":
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        elif letter == "S":
            self.scheduler.step()
        elif letter == "E":
            self.ema.update_parameters(self.model)
        elif letter == "C":
            self.ck.step(self.number)
            self.number += 1


def told(caplog):
    found = [line for line in caplog.messages if "ck.step() comes before" in line]
    caplog.clear()
    return found


def loops(run, letters, steps=6, lives=2, **options):
    """Trains with that loop in two processes, as it were. `letters` may be a function of the step."""
    for _ in range(lives):
        script = Script(run, **options)
        for number in range(steps):
            script.do(letters if isinstance(letters, str) else letters(number))
        script.ck.close(save=False)


@pytest.mark.parametrize(("letters", "what"), first_of([
    ("CFBUZSE", UPDATE), ("FBUZCSE", SCHEDULER), ("FBUZSCE", AVERAGE), ("CZFBUSE", UPDATE),
    ("FBCUZSE", UPDATE), ("ZFBGCUSE", UPDATE), ("FBUZECS", SCHEDULER)], 3))
def test_a_wrong_place_is_told_once_in_each_process(tmp_path, caplog, letters, what):
    loops(tmp_path, letters)
    first, second = told(caplog)
    assert first == second and what in first
    assert first.startswith(f"{__file__}:") and len(first) < 300


@pytest.mark.parametrize("letters", first_of([
    "FZBGUSEC", "FBUSECz", "SFBUZEC", "FBUSEZC", "FBUSECZ", "FBSUZEC", "EFBUZSC"], 3))
def test_a_right_place_is_not(tmp_path, caplog, letters):
    loops(tmp_path, letters)
    assert not caplog.records


@pytest.mark.parametrize("every", first_of([3, 2, 5], 1))
@pytest.mark.parametrize("clear", ["Z", "z"])
def test_accumulated_gradients_are_no_wrong_place(tmp_path, caplog, every, clear):
    update = f"FBU{clear}SEC"
    loops(tmp_path / "1", lambda n: update if n % every == every - 1 else "FBC", 12)
    loops(tmp_path / "2", lambda n: update if n % every == 0 else "FBC", 12)
    loops(tmp_path / "3", lambda n: (clear * (n % every == 0)) + "FB" + "USE" *
          (n % every == every - 1) + "C", 12)
    assert not told(caplog)


def test_neither_are_accumulations_of_any_length(tmp_path, caplog):
    for seed in range(8):
        choose = random.Random(seed)
        loops(tmp_path / str(seed), lambda n: "FBUZSEC" if choose.random() < 0.8 else "FBC", lives=1)
    loops(tmp_path / "first", lambda n: "FBUZSEC" if n else "FBC", lives=1)
    assert not told(caplog)


def test_a_scaler_that_leaves_out_the_first_update_is_none(tmp_path, caplog):
    loops(tmp_path / "given", "FBUZSEC", init_scale=2.0**127, lives=1)
    loops(tmp_path / "forgotten", "FBUZSEC", init_scale=2.0**127, lives=1, scaler=None)
    assert not told(caplog)
    loops(tmp_path / "top", "CFBUZSE", init_scale=4.0)
    assert len(told(caplog)) == 2


def test_a_scheduler_and_an_average_that_begin_later_are_none(tmp_path, caplog):
    loops(tmp_path / "1", lambda n: "FBUZSEC" if n else "FBUZC", lives=1)
    loops(tmp_path / "2", lambda n: "FBUZECS" if n % 3 == 2 else "FBUZEC", 12)  # each epoch
    assert not told(caplog)


def test_a_save_of_what_training_begins_with_is_none(tmp_path, caplog):
    script = Script(tmp_path)
    script.ck.step(0)  # another line than that in the loop
    script.number = 1
    for _ in range(6):
        script.do("FBUZSEC")
    script.ck.close(save=False)
    assert not told(caplog)


@pytest.mark.parametrize("is_top", [True, False])
def test_a_closure_is_seen_too(tmp_path, caplog, is_top):
    script = Script(tmp_path)

    def closure():
        script.do("ZFB")
        return script.loss

    for _ in range(6):
        script.do("C" * is_top)
        script.optimizer.step(closure)
        script.do("SE" + "C" * (not is_top))
    script.ck.close(save=False)
    assert len(told(caplog)) == is_top


def test_optimizers_that_take_turns_are_none(tmp_path, caplog):
    torch.manual_seed(0)
    models = {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}
    optimizers = {name: torch.optim.Adam(one.parameters()) for name, one in models.items()}
    with holdfast.Checkpointer(tmp_path, model=models, optimizer=optimizers, every="1 steps",
                               **grouped(space_reserve=0)) as ck:
        ck.resume()
        for number in range(8):
            optimizer = optimizers["ab"[number % 2]]
            optimizer.zero_grad()
            models["b"](models["a"](torch.randn(2, 4))).mean().backward()
            optimizer.step()
            ck.step(number)
    assert not told(caplog)
