"""Kills ranks of trainings whose parts are drawn: a step after a recovery has the bits of a training in
which nobody died, or the line of the recovery says that it may not.

HOLDFAST_COMBINATIONS is the number of trainings, each of which is killed 4 times. The test is left
out unless it is set; make test-all sets it to 25, which takes some minutes.
"""

import itertools
import json
import os
import random
import re
from pathlib import Path

import pytest
from combined import POINTS, draw
from long_tests import LONG
from recovered_jobs import launch

TRAININGS = int(os.environ.get("HOLDFAST_COMBINATIONS", "0"))
SEED = int(os.environ.get("HOLDFAST_SEED", "0")) or random.randrange(2**32)
SCRIPT = Path(__file__).parent / "combined.py"
STEPS, KILLS = 10, 4


def run_of(folder, seed, kills=()):
    """The exit code of a job, what it said, and what each rank noted of each step, newest last."""
    run = folder / ("killed-" + "-".join(kills).replace(":", "_").replace(" ", "_") if kills else "whole")
    ranks = draw(seed)["ranks"]
    code, said = launch([SCRIPT, seed, run, STEPS, ",".join(kills)], ranks=ranks, said=f"{run}.said")
    noted = [Path(f"{run}.made.{rank}") for rank in range(ranks)]
    assert all(one.exists() for one in noted), f"{draw(seed)}\n{said}"
    assert {one.name for one in Path(f"{run}.killed").iterdir()} == set(kills), f"{draw(seed)}\n{said}"
    made = [[json.loads(line) for line in one.read_text().splitlines()] for one in noted]
    return code, said, made


def differing(whole, made):
    """What the steps of a killed job have that those of an undisturbed one do not, if anything."""
    for rank, (expected_of, made_of) in enumerate(zip(whole, made, strict=True)):
        expected = {step: (loss, digest) for step, loss, digest in expected_of}
        for step, loss, digest in made_of:
            if (loss, digest) != expected[step]:
                names = [name for name in digest if digest[name] != expected[step][1].get(name)]
                return f"rank {rank}, step {step}: loss {loss} / {expected[step][0]}, {names}"
    return ""


@pytest.mark.skipif(not TRAININGS, reason="HOLDFAST_COMBINATIONS is not set; takes minutes")
@pytest.mark.parametrize("number", range(TRAININGS))
def test_no_recovery_is_wrong_without_a_word(tmp_path, number):
    seed = SEED + number
    dice, parts = random.Random(seed), draw(seed)
    code, said, whole = run_of(tmp_path, seed)
    assert code == 0, f"{parts}\n{said}"
    for _ in range(KILLS):
        kill = f"{dice.randrange(parts['ranks'])}:{dice.randrange(1, STEPS - 1)}:{dice.choice(POINTS)}"
        code, said, made = run_of(tmp_path, seed, [kill])
        where = f"seed {seed}, {parts}, killed {kill}\n{said}"
        assert code == 0, where
        recovered = re.findall("goes on after .*?: (?:replica|checkpoint), (not exact|exact)", said)
        assert recovered, where
        found = differing(whole, made)
        assert not found or "not exact" in recovered, f"{found}\n{where}"


@LONG
@pytest.mark.parametrize("kill, source", [("0:6:forward", "checkpoint"), ("1:3:end", "replica")])
def test_an_average_of_buffers_that_ranks_write_apart_is_not_exact(tmp_path, kill, source):
    wanted = {"average": "top of the loop", "table": "written", "ranks": 2, "norm": "none",
              "syncs": "parameters of rank 0 by data", "optimizer": "adamw", "extra": "micro batches"}
    seed = next(seed for seed in itertools.count(880201) if wanted.items() <= draw(seed).items())
    (_, _, whole), (code, said, made) = run_of(tmp_path, seed), run_of(tmp_path, seed, [kill])
    assert code == 0, said
    assert "average.module.table" in differing(whole, made)
    assert f": {source}, not exact: " in said and "ema.module.table" in said, said
