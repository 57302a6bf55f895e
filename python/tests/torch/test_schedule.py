"""When a Checkpointer saves: the option every=."""

import logging

from grouped import grouped
import pytest
import torch
from ranks import run_ranks
from torch import nn

import holdfast


def steps_in(run):
    return sorted(int(path.name.split("-")[1]) for path in run.glob("step-*")
                  if path.name.endswith(path.name.split("-")[1]))


def train(run, steps, **options):
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, **grouped(**options)) as ck:
        start = ck.resume()
        for step in range(start, start + steps):
            loss = model(torch.ones(2, 4)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ck.step(step, loss=loss)
        ck.close(save=False)  # only what was due is saved
    return start


def test_every_n_steps_means_after_so_many_are_done(tmp_path):
    train(tmp_path / "run", 10, every="4 steps")
    assert steps_in(tmp_path / "run") == [3, 7]
    assert train(tmp_path / "run", 5, every="4 steps") == 8
    assert steps_in(tmp_path / "run") == [3, 7, 11]


def test_a_function_decides(tmp_path):
    seen = []

    def every(step, seconds):
        seen.append(seconds)
        return step in (2, 5)

    train(tmp_path / "run", 8, every=every)
    assert steps_in(tmp_path / "run") == [2, 5]
    assert len(seen) == 8 and seen == sorted(seen)


@pytest.mark.parametrize("every", ["auto", "young", "daly", "checkfreq", "coci"])
def test_policies_save_and_say_why(tmp_path, caplog, every):
    # For a job that fails every few milliseconds, a save is due at once.
    with caplog.at_level(logging.INFO, logger="holdfast"):
        train(tmp_path / "run", 200, every=every, mtbf=0.02, slack=0.0, keep=2)
    assert steps_in(tmp_path / "run")
    said = [record.getMessage() for record in caplog.records if "saving" in record.getMessage()]
    assert said and all(": " in line for line in said)


def test_what_makes_no_sense_is_refused_in_a_sentence(tmp_path):
    for options, word in [({"every": "often"}, '^every: "often"; expected'),
                          ({"objective": "speed"}, "speed"),
                          ({"mtbf": -1.0}, "mtbf"),
                          ({"budget": 0, "total_steps": 10}, "budget"),
                          ({"keep": 0}, "^keep=0; expected 1 or more, or None")]:
        with pytest.raises(ValueError, match=word):
            train(tmp_path / "run", 1, **options)


def decide_on_rank_0(rank, world, run):
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    every = (lambda step, seconds: step == 3) if rank == 0 else (lambda step, seconds: False)
    saved = []
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every=every) as ck:
        ck.resume()
        step = 0
        while not saved and step < 20_000:  # the decision is announced a tenth of a second ahead
            optimizer.step()
            before = ck.stall
            ck.step(step)
            if ck.stall != before:
                saved.append(step)
            torch.distributed.barrier()
            step += 1
    return saved


def test_rank_0_decides_for_all(tmp_path):
    saved = run_ranks(2, decide_on_rank_0, tmp_path / "run")
    assert saved[0] == saved[1] and len(saved[0]) == 1
