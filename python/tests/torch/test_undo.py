"""Updates that are taken back (Recover(undo=True)): how many bits come back, and real deaths between updates."""

import json
from pathlib import Path

import pytest
import torch
from recovered_jobs import launch
from torch import nn

import holdfast
from holdfast.launch.decisions import decide
from holdfast.torch.recover.undone_updates import KeptUpdate

JOB = Path(__file__).parent / "undone.py"
STEPS = 9
ELEMENTS = 4000
SQUARES = ("exp_avg_sq", "square_avg", "acc_delta", "sum")  # slots that are never negative

# The shares in % of elements whose bits come back after 30 updates, at least: of parameters, and of the slot
# of which fewest do. The greatest distance of any element is at most a share of the greatest
# element. It is larger where a decay is part of an adaptive step: some elements are divided by something near 0.
NEAR, LESS_NEAR = 2e-6, 1e-4
CASES = {
    "SGD(lr=0.1)": (97, 100, NEAR),
    "SGD(lr=0.1, weight_decay=1e-2)": (60, 100, NEAR),
    "SGD(lr=0.1, momentum=0.9, maximize=True)": (97, 60, NEAR),
    "SGD(lr=0.1, momentum=0.9, weight_decay=1e-2, dampening=0.1)": (95, 60, NEAR),
    "SGD(lr=0.1, momentum=0.9, weight_decay=1e-2, nesterov=True)": (60, 60, NEAR),
    "SGD(lr=0.1, momentum=0.9, nesterov=True, foreach=True)": (95, 60, NEAR),
    "SGD(lr=0.1, momentum=0.9, nesterov=True, fused=True)": (95, 60, NEAR),
    "Adam()": (95, 45, NEAR), "Adam(weight_decay=1e-2)": (90, 45, NEAR), "Adam(fused=True)": (95, 45, NEAR),
    "AdamW(foreach=False)": (95, 45, NEAR), "AdamW(foreach=True)": (95, 45, NEAR),
    "AdamW(fused=True)": (95, 45, NEAR), "AdamW(lr=torch.tensor(1e-3))": (95, 45, NEAR),
    "NAdam()": (90, 45, NEAR), "NAdam(weight_decay=1e-2)": (45, 35, LESS_NEAR),
    "NAdam(weight_decay=1e-2, decoupled_weight_decay=True, foreach=True)": (90, 45, NEAR),
    "RAdam()": (95, 45, NEAR), "RAdam(weight_decay=1e-2)": (90, 45, NEAR),
    "RAdam(weight_decay=1e-2, decoupled_weight_decay=True, foreach=True)": (90, 45, NEAR),
    "Adagrad()": (90, 95, NEAR), "Adagrad(fused=True)": (90, 95, NEAR),
    "Adagrad(weight_decay=1e-2, lr_decay=0.01, initial_accumulator_value=0.1)": (60, 95, LESS_NEAR),
    "RMSprop(lr=1e-3)": (90, 95, NEAR), "RMSprop(lr=1e-3, weight_decay=1e-2)": (40, 90, LESS_NEAR),
    "RMSprop(lr=1e-3, centered=True, foreach=True)": (90, 55, NEAR),
    "RMSprop(lr=1e-3, momentum=0.9, centered=True, weight_decay=1e-2)": (75, 50, NEAR),
    "Adadelta()": (90, 50, NEAR), "Adadelta(foreach=True)": (90, 50, NEAR)}


def made(case, parameters):
    name, options = case[:-1].split("(", 1)
    return eval(f"torch.optim.{name}(parameters, {options})")


def undo_one(case, updates, *, is_sparse=False):
    """The parameter and the slots before the last of some updates, after it, and when it was taken back."""
    torch.manual_seed(0)
    one, scale = nn.Parameter(0.05 * torch.randn(ELEMENTS)), 10 ** (5 * torch.rand(ELEMENTS) - 6)
    optimizer, kept, seen = made(case, [one]), KeptUpdate(), []

    def look():
        state = {name: torch.as_tensor(slot).clone() for name, slot in optimizer.state.get(one, {}).items()
                 if slot is not None}
        seen.append({"parameter": one.detach().clone(), **state})

    for number in range(updates):
        one.grad = torch.randn(ELEMENTS) * scale * (torch.rand(ELEMENTS) < 0.02 if is_sparse else 1)
        if number == updates - 1:
            look()
            kept.keep(optimizer)
        optimizer.step()
    look()
    one.grad.fill_(torch.nan)  # the next backward pass has begun
    kept.take_back()
    look()
    return seen


@pytest.mark.parametrize("case", CASES)
def test_most_bits_of_an_update_come_back_and_the_others_are_near(case):
    of_parameters, of_slots, most = CASES[case]
    for is_sparse in (False, True):
        before, after, now = undo_one(case, 30, is_sparse=is_sparse)
        assert now.keys() == before.keys()
        for name, old in before.items():
            equal = 100 * (now[name] == old).float().mean().item()
            assert now[name].isfinite().all(), name
            assert name not in SQUARES or (now[name] >= 0).all(), name
            if old.dim():
                assert equal >= (of_parameters if name == "parameter" else of_slots), (name, equal)
            assert (now[name] - old).abs().max() <= most * torch.maximum(old.abs(), after[name].abs()).max(), name


@pytest.mark.parametrize("case", CASES)
def test_slots_of_a_first_update_are_what_they_were(case):
    before, _, now = undo_one(case, 1)
    assert now.keys() == before.keys()
    assert all(torch.equal(now[name], old) for name, old in before.items() if name != "parameter")
    assert now["parameter"].isfinite().all()


def test_an_average_that_an_update_does_not_read_is_dropped():
    before, _, now = undo_one("AdamW(betas=(0.0, 0.99))", 30)
    assert not now["exp_avg"].any() and (now["exp_avg_sq"] == before["exp_avg_sq"]).float().mean() > 0.9
    assert (now["parameter"] == before["parameter"]).float().mean() > 0.9
