"""Trainings under `holdfast launch` whose ranks cannot be replaced: all start again from the newest
checkpoint when one dies, and end with the same bits."""

from pathlib import Path

import pytest
from long_tests import LONG
from recovered_jobs import launch

SCRIPT = Path(__file__).parent / "restarted.py"
SECOND = "this is a second Checkpointer of the program"


def run(folder, how, kills=""):
    """What the two ranks end with, and what was said."""
    code, said = launch([SCRIPT, how, folder / how, kills], ranks=2, said=folder / f"{how}.said")
    assert code == 0, said
    return [(folder / f"{how}.end.{rank}").read_text() for rank in range(2)], said


@pytest.mark.parametrize("how, kills, why, warned", [
    ("second", "0:0:3,1:1:5", SECOND, True),
    pytest.param("both", "1:0:3,0:1:5", SECOND, True, marks=LONG),
    pytest.param("off", "1:0:3,0:0:5,1:0:6", "recover=False", False, marks=LONG),
    pytest.param("plain", "1:0:3,0:0:5", "steps are not made by ck.run()", True, marks=LONG),
])
def test_all_ranks_start_again_and_end_with_the_same_bits(tmp_path, how, kills, why, warned):
    (tmp_path / "whole").mkdir()
    whole, calm = run(tmp_path / "whole", how)
    warning = f"{why}: if a rank dies, all ranks start again from the newest checkpoint; expected"
    assert calm.count(warning) == int(warned), calm
    end, said = run(tmp_path, how, kills)
    assert end == whole, said
    restarts = kills.count(",") + (how != "second")
    assert said.count(f"all ranks start again from the newest checkpoint: {why}\n") == restarts, said
    assert said.count("goes on after") == kills.count(",") + 1, said
    assert said.count("replica, exact") == (how == "second"), said


def test_what_a_checkpoint_does_not_have_makes_a_restart_not_exact(tmp_path):
    (tmp_path / "whole").mkdir()
    whole, _ = run(tmp_path / "whole", "cache")
    end, said = run(tmp_path, "cache", "1:0:5")
    assert end != whole
    assert "checkpoint, not exact: model.0.seen: a buffer that is not persistent" in said, said
