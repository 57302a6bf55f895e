"""Kills ranks of trainings whose parts are drawn: a step after a recovery has the bits of a training in
which nobody died, or the launcher has said that it may not.

HOLDFAST_COMBINATIONS is the number of trainings, each of which is killed 4 times. The test is left
out unless it is set; make test-all sets it to 25, which takes some minutes.
"""

import json
import os
import random
from pathlib import Path

import pytest
from combined import POINTS, draw
from recovered_jobs import launch

TRAININGS = int(os.environ.get("HOLDFAST_COMBINATIONS", "0"))
SEED = int(os.environ.get("HOLDFAST_SEED", "0")) or random.randrange(2**32)
SCRIPT = Path(__file__).parent / "combined.py"
RANKS, STEPS, KILLS = 2, 10, 4
# What a launcher or a rank says where it does not promise the same bits.
SAID = ("not exact", "may not be", "cannot be replaced", "not saved", "was not given")


def run_of(folder, seed, kills=()):
    """The exit code of a job, what it said, and what each rank noted of each step, newest last."""
    run = folder / ("killed-" + "-".join(kills).replace(":", "_").replace(" ", "_") if kills else "whole")
    code, said = launch([SCRIPT, seed, run, STEPS, ",".join(kills)], ranks=RANKS, said=f"{run}.said")
    noted = [Path(f"{run}.made.{rank}") for rank in range(RANKS)]
    assert all(one.exists() for one in noted), f"{draw(seed)}\n{said}"
    made = [[json.loads(line) for line in one.read_text().splitlines()] for one in noted]
    return code, said, made


def differing(whole, made):
    """What the steps of a killed job have that those of an undisturbed one do not, if anything."""
    for rank in range(RANKS):
        expected = {step: (loss, digest) for step, loss, digest in whole[rank]}
        for step, loss, digest in made[rank]:
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
        kill = f"{dice.randrange(RANKS)}:{dice.randrange(2, STEPS - 1)}:{dice.choice(POINTS)}"
        code, said, made = run_of(tmp_path, seed, [kill])
        where = f"seed {seed}, {parts}, killed {kill}\n{said}"
        assert code == 0, where
        found = differing(whole, made)
        assert not found or any(text in said for text in SAID), f"{found}\n{where}"
