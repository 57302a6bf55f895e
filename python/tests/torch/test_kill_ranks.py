"""Kills one of several real ranks at a random time. The run continues from a whole step that is not
older than the newest one at the kill, with the same bits as a run that was not killed.

HOLDFAST_RANK_KILLS is the number of kills (default 3).
"""

import os
import random
import signal
import threading

import pytest
from ranks import RankError, run_ranks
from training import How, Script, settle_matmul

import holdfast

KILLS = int(os.environ.get("HOLDFAST_RANK_KILLS", "3"))
RANKS = 3
HOW = How(net="resnet", ema=True, ddp={"bucket_cap_mb": 0.001})


def die_after(seconds):
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()


def live(rank, world, folder, seed, victim, in_start, seconds):
    """Trains until one of the ranks is killed, while it starts or while it trains."""
    settle_matmul()
    script = Script(HOW, seed, rank, world)
    if rank == victim and in_start:
        die_after(seconds)
    checkpointer = script.checkpointer(f"{folder}/run")
    start = checkpointer.resume()
    assert not checkpointer.report.inexact
    if rank == victim and not in_start:
        die_after(seconds)
    with open(f"{folder}/losses-{rank}", "a") as file:
        file.write(f"\nstart {start}\n")
        for step, batch in enumerate(script.data, start):
            loss = script.step(step, batch)
            checkpointer.step(step, loss=loss)
            file.write(f"{step} {loss.item().hex()} .\n")  # a line without this end was cut off
            file.flush()


def losses_of(rank, world, steps):
    settle_matmul()
    return Script(HOW, 0, rank, world).train(steps)


def newest(run):
    try:
        return holdfast.open(run).objects is not None and max(
            int(folder.name.removeprefix("step-")) for folder in run.glob("step-*[0-9]"))
    except (holdfast.NotFoundError, ValueError):
        return -1


def lines_of(path):
    """The first step of each process, and the losses of all processes by step."""
    starts, losses = [], {}
    for line in path.read_text().splitlines():
        words = line.split()
        if words[:1] == ["start"]:
            starts.append(int(words[1]))
        elif words[2:] == ["."]:
            losses.setdefault(int(words[0]), set()).add(words[1])
    return starts, losses


def kill_often(folder, kills, dice):
    """Kills one rank after the other. Returns the newest step after each kill."""
    found = []
    for number in range(kills):
        in_start = number > 0 and dice.random() < 0.3
        # A run that is resumed must not depend on the seed of the new process.
        seed = 1000 * number if found and found[-1] >= 0 else 0
        how = (seed, dice.randrange(RANKS), in_start, dice.random() ** 2 * 0.5)
        with pytest.raises(RankError, match="exit code -9"):
            run_ranks(RANKS, live, str(folder), *how, timeout=60)
        found.append(newest(folder / "run"))
    return found


def test_a_run_of_which_any_rank_is_killed_goes_on(tmp_path):
    seed = random.randrange(2**32)
    print("seed", seed)
    found = kill_often(tmp_path, KILLS, random.Random(seed))
    assert found == sorted(found)
    seen = [lines_of(tmp_path / f"losses-{rank}") for rank in range(RANKS)]
    last = max((step for _, losses in seen for step in losses), default=0)
    wanted = run_ranks(RANKS, losses_of, last + 1, timeout=100)
    for rank, (starts, losses) in enumerate(seen):
        assert all(start - 1 in [-1, *found] for start in starts)
        assert {step: {wanted[rank][step]} for step in losses} == losses
