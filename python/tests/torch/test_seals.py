"""Damage that replicas and file checksums bless: a restore sees it by the seals, and mends it.

A bit that flips in memory after a tensor was sealed and before its digest was computed is written
with a good digest. After a restart all ranks load the same wrong value, so that comparing them
shows nothing.
"""

import logging
import subprocess
from pathlib import Path

import torch
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast

STEPS = 3


def train(rank, world, run, steps=STEPS, seal="staged"):
    """Trains, or only resumes; returns the parameters, the next step and the warnings."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("holdfast").addHandler(handler)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1 steps", keep=None,
                               writing=holdfast.Writing(space_reserve=0, seal=seal),
                               failures=holdfast.Failures(signals=False)) as ck:
        start = ck.resume()
        resumed = {name: p.detach().clone().numpy() for name, p in model.module.named_parameters()}
        for step in range(start, steps):
            torch.manual_seed(step)
            model(torch.randn(4, 32)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            ck.step(step)
        trained = {name: p.detach().clone().numpy() for name, p in model.module.named_parameters()}
    return {"start": start, "resumed": resumed, "trained": trained, "lines": lines}


PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"


def inject(run, *options):
    done = subprocess.run([PROGRAM, "inject", f"{run}@{STEPS - 1}", "--in-place", "--seed", "7",
                           *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def same(a, b):
    return all((a[name].tobytes() == b[name].tobytes()) for name in a)


def test_four_replicas_load_the_same_wrong_bit_and_the_seal_mends_it(tmp_path):
    golden = run_ranks(4, train, tmp_path / "run", STEPS, "source")[0]["trained"]
    said = inject(tmp_path / "run", "--tensors", "model.2.weight", "--bits", "30",
                  "--checksums", "consistent")
    assert "model.2.weight" in said
    found = run_ranks(4, train, tmp_path / "run")
    for rank in found:
        assert rank["start"] == STEPS
        assert same(rank["resumed"], golden), "a wrong bit came through"
        (line,) = [line for line in rank["lines"] if "mended in memory" in line]
        assert "model.2.weight" in line and "bit 30" in line
        assert "damaged between seal and file" in line


def test_damage_that_no_seal_can_mend_is_passed_over(tmp_path):
    run_ranks(2, train, tmp_path / "run")
    before = run_ranks(2, train, tmp_path / "run")[0]["resumed"]
    inject(tmp_path / "run", "--flips", "20", "--checksums", "consistent")
    found = run_ranks(2, train, tmp_path / "run", STEPS - 1)
    assert all(rank["start"] == STEPS - 1 for rank in found), "an older step is taken"
    assert not same(found[0]["resumed"], before)
    assert any("passed over" in line and "seal" in line for line in found[0]["lines"])


def test_damage_before_the_seal_is_seen_by_nobody(tmp_path):
    """The limit: who seals a wrong bit blesses it."""
    golden = run_ranks(2, train, tmp_path / "run")[0]["trained"]
    inject(tmp_path / "run", "--tensors", "model.2.weight", "--bits", "30", "--checksums", "sealed")
    found = run_ranks(2, train, tmp_path / "run")
    assert all(rank["start"] == STEPS and not same(rank["resumed"], golden) for rank in found)
