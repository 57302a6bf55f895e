"""Recovery under `holdfast launch`: ranks are killed, the others keep their processes, and every bit
is that of a run in which nobody died."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
SCRIPT = Path(__file__).parent / "recovered.py"
RANKS = {"ddp": 3, "hsdp": 4, "pipeline": 4}

# Every place at which a rank is killed: in a step, around it, and in the recovery of another rank.
STEP_POINTS = ["before", "forward", "after forward", "backward", "after backward", "gate",
               "committed", "in update", "after update", "end", "after run", "after step"]
PHASES = ["dropped", "met", "rejoined", "given"]  # of a survivor, while another rank is replaced
REPLACEMENT_PHASES = ["started", "filled"]


def launch(arguments, *, ranks, timeout=120):
    """Runs `holdfast launch`. Returns its exit code and what it printed on stderr."""
    process = subprocess.Popen([sys.executable, "-m", "holdfast.launch", "-n", str(ranks),
                                *map(str, arguments)], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        said, _ = process.communicate(timeout=timeout)
    finally:
        os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
    return process.returncode, said


class Ran:
    """What a run has left."""

    def __init__(self, kind, run, steps, kills=(), how=(), ranks=None):
        self.kills = list(kills)
        ranks = range(ranks or RANKS[kind])
        self.code, self.said = launch([SCRIPT, kind, run, steps, ",".join(kills), *how],
                                      ranks=len(ranks))
        lines = [[json.loads(line) for line in _text(f"{run}.losses.{rank}").splitlines()]
                 for rank in ranks]
        self.losses = [{step: (loss, samples) for step, loss, samples, _ in own} for own in lines]
        self.pids = [list(dict.fromkeys(pid for *_, pid in own)) for own in lines]
        self.end = [_text(f"{run}.end.{rank}") for rank in ranks]
        killed = Path(f"{run}.killed")
        self.killed = {one.name for one in killed.iterdir()} if killed.exists() else set()

    def check(self, whole):
        """Fails unless it has the bits of a run in which nobody died, and lost no process else."""
        assert self.code == 0, self.said
        assert self.killed == set(self.kills), self.said
        assert self.end == whole.end, self.said
        for own, expected in zip(self.losses, whole.losses, strict=True):
            assert {step: expected[step] for step in own} == own
            # A rank that died after its update has not written that loss.
            assert len(expected) - len(own) <= len(self.kills)
        assert "start again from" not in self.said and "not exact" not in self.said, self.said
        for rank, pids in enumerate(self.pids):
            assert len(pids) <= 1 + sum(kill.startswith(f"{rank}:") for kill in self.kills)


def _text(path):
    return Path(path).read_text() if Path(path).exists() else ""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs in which nobody dies, by kind and number of steps."""
    made = {}

    def run(kind, steps, ranks=None):
        key = (kind, steps, ranks)
        if key not in made:
            made[key] = Ran(kind, tmp_path_factory.mktemp(kind) / "run", steps, ranks=ranks)
            assert made[key].code == 0, made[key].said
        return made[key]

    return run


def test_a_rank_may_die_anywhere_in_a_step(tmp_path, whole):
    kills = [f"{k % 3}:{k + 2}:{point}" for k, point in enumerate(STEP_POINTS)]
    ran = Ran("ddp", tmp_path / "run", 18, kills)
    ran.check(whole("ddp", 18))
    assert len(re.findall(r"goes on after", ran.said)) == len(kills), ran.said
    assert all(f"rank {k % 3}" in ran.said for k in range(3))


def test_another_rank_may_die_while_one_is_replaced(tmp_path, whole):
    # Ranks that do not keep each other's records.
    kills = [kill for k, point in enumerate(PHASES)
             for kill in (f"{k % 4}:{3 * k + 2}:after backward", f"{(k + 2) % 4}:{3 * k + 2}:{point}")]
    Ran("ddp", tmp_path / "run", 18, kills, ranks=4).check(whole("ddp", 18, ranks=4))


def test_all_ranks_restart_if_a_rank_dies_with_the_one_that_kept_its_record(tmp_path, whole):
    ran = Ran("ddp", tmp_path / "run", 18, ["0:8:after backward", "1:8:dropped"])
    assert ran.code == 0, ran.said
    assert "the rank that kept its record is lost, too" in ran.said
    assert ran.end == whole("ddp", 18).end


def test_a_replacement_may_die(tmp_path, whole):
    kills = ["1:3:forward", *(f"1:*:{point}" for point in REPLACEMENT_PHASES), "2:9:in update"]
    Ran("ddp", tmp_path / "run", 18, kills).check(whole("ddp", 18))


@pytest.mark.parametrize("kind", ["hsdp", "pipeline"])
def test_replicas_of_shards_and_of_stages_fill_a_rank(tmp_path, whole, kind):
    kills = ["2:2:forward", "1:4:after backward", "3:6:in update", "0:9:after step"]
    Ran(kind, tmp_path / "run", 12, kills).check(whole(kind, 12))


def test_without_what_a_step_restores_bits_differ(tmp_path, whole):
    ran = Ran("ddp", tmp_path / "run", 18, ["2:6:after backward"], ["restores nothing"])
    assert ran.code == 0 and ran.killed
    assert ran.end != whole("ddp", 18).end


def test_a_death_in_a_validation_restarts_all_ranks(tmp_path, whole):
    ran = Ran("ddp", tmp_path / "run", 18, ["1:8:validation"], ["validates"])
    assert ran.code == 0, ran.said
    assert "start again from the newest checkpoint" in ran.said
    assert "a collective call outside of Checkpointer.run()" in ran.said
    assert ran.end == whole("ddp", 18).end


def test_a_death_in_a_validation_inside_run_restarts_all_ranks(tmp_path, whole):
    ran = Ran("ddp", tmp_path / "run", 18, ["1:8:validation"], ["validates in run"])
    assert ran.code == 0, ran.said
    assert "start again from the newest checkpoint" in ran.said and "ck.run(validate)" in ran.said
    assert ran.end == whole("ddp", 18).end


def test_an_update_in_several_runs_is_refused(tmp_path):
    ran = Ran("ddp", tmp_path / "run", 18, [], ["accumulates"])
    assert ran.code == 1
    assert "expected all micro-batches of an update in one ck.run()" in ran.said


def test_another_model_in_the_replacement_is_refused(tmp_path):
    ran = Ran("ddp", tmp_path / "run", 18, ["1:3:forward"], ["other model"])
    assert ran.code != 0
    assert "DDP expects same model" in ran.said and "step 3 was lost" in ran.said


@pytest.mark.parametrize("arguments, words", [
    (["-n", "0", "train.py"], "-n 0; expected 1 or more"),
    (["missing.py"], "missing.py: no such file"),
])
def test_wrong_command_lines_are_refused(tmp_path, arguments, words):
    done = subprocess.run([sys.executable, "-m", "holdfast.launch", *arguments], cwd=tmp_path,
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and words in done.stderr


@pytest.mark.parametrize("line, code", [
    ("sys.exit(5)", 5), ("raise ValueError", 1), ("os.kill(os.getpid(), 9)", 137), ("", 0),
])
def test_the_exit_code_of_a_program_is_that_of_the_job(tmp_path, line, code):
    script = tmp_path / "script.py"
    script.write_text(f"import os, sys\n{line}\n")
    assert launch([script], ranks=1)[0] == code


def test_the_program_becomes_the_launcher():
    done = subprocess.run([PROGRAM, "launch", "--help"],
                          env={**os.environ, "HOLDFAST_PYTHON": sys.executable},
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "holdfast launch -n 4 train.py" in done.stdout, done.stderr


def test_recover_is_refused_without_the_launcher(tmp_path):
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="not started by holdfast launch"):
        holdfast.Checkpointer(tmp_path / "run", model=model, recover=True,
                              optimizer=torch.optim.SGD(model.parameters()))


def test_run_is_a_plain_call_without_the_launcher(tmp_path):
    model = nn.Linear(2, 2)
    with holdfast.Checkpointer(tmp_path / "run", model=model, every="never",
                               optimizer=torch.optim.SGD(model.parameters())) as ck:
        assert ck.run(lambda a, b: a + b, 1, b=2) == 3
