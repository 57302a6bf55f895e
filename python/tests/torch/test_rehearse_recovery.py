"""`holdfast rehearse` kills one rank of a job of `holdfast launch`, for what a step may do in front of its
update or around it: every step of every rank has the bits of an undisturbed job, or the line of the
recovery names what may not be."""

import re
import sys
from pathlib import Path

import pytest
from long_tests import LONG
from rehearsed import rehearse_alone

SCRIPT = Path(__file__).with_name("recovered.py")
IN_FRONT = ["schedules first", "counts in the step", "encoder", "own average", "codebook"]


@pytest.mark.parametrize("how, not_exact", [
    (IN_FRONT, ""),
    pytest.param(["schedules first"], "", marks=LONG),  # and an option is multiplied
    pytest.param(["schedules at the top", "averages at the top"], "", marks=LONG),
    pytest.param(["counts in the step"], "", marks=LONG),
    pytest.param(["by hand"], "", marks=LONG),
    pytest.param(["encoder"], "", marks=LONG),
    pytest.param(["codebook"], "", marks=LONG),
    pytest.param(["power"], "", marks=LONG),
    # The kill may come before the rank has told its buddy what it had drawn or kept: then nobody knows.
    pytest.param(["keeps gradients"], None, marks=LONG),
    pytest.param(["draws behind"], None, marks=LONG),
    pytest.param(["draws first", "scaler"], None, marks=LONG),
    pytest.param(["other loader"], "more_samples: was not given as data=", marks=LONG),
    pytest.param(["other anew"], "shuffled: was not given as data=", marks=LONG),
    pytest.param(["counts calls"], "counter.total: other values on a replacement", marks=LONG),
], ids=str)
def test_a_rank_that_is_killed_alone_changes_no_bit_without_a_word(tmp_path, how, not_exact):
    died, compared_to, difference, said = rehearse_alone(
        [sys.executable, "-m", "holdfast.launch", "-n", "2", SCRIPT, "ddp", tmp_path / "run", "50", "",
         *how], tmp_path)
    assert died == ["rank-1.killed"] and compared_to == 7, said
    lines = re.findall("goes on after .*", said)
    assert len(lines) == 1 and "replica" in lines[0], said
    is_told = "not exact" in lines[0]
    assert not_exact is None or (is_told == bool(not_exact) and not_exact in lines[0]), said
    assert difference is None or is_told, f"{difference}\n{said}"
