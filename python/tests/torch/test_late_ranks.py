"""Ranks that others wait for are named while the wait goes on, and when it ends."""

import logging
import time
from pathlib import Path

from long_tests import LONG
from ranks import run_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import Toy

from holdfast.torch.loop import transport


class Seen(logging.Handler):
    """Collects warnings, and touches a file when one comes."""

    def __init__(self, run):
        super().__init__(logging.WARNING)
        self.file, self.seen = Path(f"{run}.seen"), []
        logging.getLogger("holdfast").addHandler(self)

    def emit(self, record):
        self.seen.append(record.getMessage())
        self.file.touch()

    def first(self, words):
        return next((text for text in self.seen if words in text), None)


def uneven(rank, world, run, how):
    """Rank 0 closes after three steps, and the others continue. Returns warnings and errors."""
    toy = Toy(DistributedDataParallel(nn.Linear(4, 4)))
    checkpointer = toy.checkpointer(run, every="1000 steps", timeout=4)
    checkpointer.resume()
    seen = Seen(run)
    try:
        for step in range(3):
            toy.step()
            checkpointer.step(step)
            if how == "steps":
                # Slow steps, so that rank 0 announces decisions only a few steps ahead.
                time.sleep(0.3)
        if rank == 0:
            checkpointer.close()
        elif how == "save":
            checkpointer.save(3)
        else:
            for step in range(3, 1000):
                toy.step()
                checkpointer.step(step)
    except Exception as error:
        return seen.first("has waited"), type(error).__name__, str(error)


def check_uneven(tmp_path, how, to):
    first, *others = run_ranks(3, uneven, str(tmp_path / "run"), how)
    text, kind, why = first
    assert "ranks 1, 2" in text and "close()" in text
    assert kind == "TimeoutError" and "ranks 1, 2" in why
    for text, kind, why in others:
        assert "for rank 0 to come" in text and to in text
        assert "different numbers of steps" in text and "compiling" in text
        assert kind == "UnavailableError" and "rank 0 is gone" in why


@LONG
def test_ranks_that_make_fewer_steps_are_named(tmp_path):
    check_uneven(tmp_path, "steps", "to step ")


def test_ranks_that_do_not_come_to_a_save_are_named(tmp_path):
    check_uneven(tmp_path, "save", "the save after step 3")


def on_rank_0_alone(rank, world, run):
    transport._LATE = 0.5
    seen = Seen(run)
    while rank > 0 and not seen.file.exists():
        time.sleep(0.02)
    if rank > 0:
        return None
    try:
        Toy(nn.Linear(4, 4)).checkpointer(run)
    except Exception:
        return seen.first("to connect")


def test_ranks_without_a_checkpointer_are_named(tmp_path):
    text = run_ranks(3, on_rank_0_alone, str(tmp_path / "run"))[0]
    assert "ranks 1, 2 to connect" in text
