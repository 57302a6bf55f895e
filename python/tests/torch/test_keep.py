"""Tests which steps a Checkpointer keeps: its default fills no disk and removes nothing dear."""

import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"


def run_steps(run, first, last, *, saved=(), resume=True, total=None, **options):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1 steps",
                               writing=holdfast.Writing(space_reserve=0),
                               schedule=holdfast.Schedule(total_steps=total), **options) as ck:
        if resume:
            ck.resume()
        for step in range(first, last):
            model(torch.ones(2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step in saved:
                ck.save(step).durable()
            else:
                ck.step(step)


def steps_in(run):
    return sorted(int(path.name.removeprefix("step-")) for path in run.glob("step-????????"))


def test_by_default_the_newest_automatic_saves_stay(tmp_path):
    run_steps(tmp_path / "run", 0, 10)
    assert steps_in(tmp_path / "run") == [7, 8, 9]


def test_what_the_program_saved_and_what_is_pinned_stays(tmp_path):
    run = tmp_path / "run"
    run_steps(run, 0, 5, saved=[2])
    subprocess.run([PROGRAM, "pin", run, "3"], check=True, capture_output=True)
    run_steps(run, 5, 10, saved=[6])
    assert steps_in(run) == [2, 3, 6, 7, 8, 9]


def test_steps_of_other_rules_stay(tmp_path):
    run = tmp_path / "run"
    run_steps(run, 0, 6, keep=None)
    run_steps(run, 6, 12)
    assert steps_in(run) == [0, 1, 2, 3, 4, 5, 9, 10, 11]
    run_steps(run, 12, 13, keep=2)  # a rule that the user gives counts for all steps
    assert steps_in(run) == [11, 12]


def test_the_end_of_a_training_stays(tmp_path):
    run = tmp_path / "run"
    run_steps(run, 0, 5, total=5)
    run_steps(run, 5, 10)
    assert steps_in(run) == [4, 7, 8, 9]


def test_copies_in_a_tier_follow_the_same_rule(tmp_path):
    # A tier gets the step that is newest when its turn comes, and surely the last one of a
    # process; so the step to keep is the last of the first process.
    run_steps(tmp_path / "run", 0, 2, saved=[1], tiers=[tmp_path / "copies"])
    run_steps(tmp_path / "run", 2, 8, tiers=[tmp_path / "copies"])
    assert steps_in(tmp_path / "run") == [1, 5, 6, 7]
    found = {int(path.name.removeprefix("step-")[:8]) for path in (tmp_path / "copies").iterdir()
             if path.name.startswith("step-")}
    assert 1 in found and 7 in found and len(found) <= 4


def test_wrong_values_are_refused(tmp_path):
    for keep in ("all", 1.5):
        with pytest.raises(TypeError, match="expected a number, a Keep, \"auto\" or None"):
            run_steps(tmp_path / "run", 0, 1, keep=keep)
