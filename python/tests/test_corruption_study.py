"""study/corruption runs campaigns end to end: from flipped bits to the counts of the page."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).resolve().parents[2]
HOROVOD = ROOT / ".cache/horovod/built"
LONG = bool(os.environ.get("HOLDFAST_LONG"))
PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
FOLDER = ROOT / "study/corruption"


@pytest.fixture(scope="module")
def study():
    """The modules of the study by name, imported as its scripts import each other."""
    sys.path.insert(0, str(FOLDER))
    names = ("cells", "intervals", "results", "verdicts", "page")
    yield {name: importlib.import_module(name) for name in names}
    sys.path.remove(str(FOLDER))
    for name in names:  # these names are too common to stay
        del sys.modules[name]


def run_study(work, *options):
    return subprocess.run(
        [sys.executable, FOLDER / "run.py", "--work", work, "--program", PROGRAM, "--no-page",
         "--jobs", "1", *options], capture_output=True, text=True, timeout=500, check=False,
        env=os.environ | {"PYTHONPATH": str(Path(holdfast.__file__).parents[1])})  # fmt: skip


def analyse(*folders):
    done = subprocess.run([PROGRAM, "campaign", "analyse", "--json", *folders], capture_output=True,
                          text=True, check=True)  # fmt: skip
    return json.loads(done.stdout)


def test_a_cell_runs_and_is_counted(study, tmp_path):
    done = run_study(tmp_path, "--only", "role-sgd-weights", "--scale", "0.0025")
    assert done.returncode == 0, done.stdout + done.stderr
    found = study["results"].collect(tmp_path, {"CPU": "any"})
    cell = found["cells"]["role-sgd-weights"]
    assert cell["trials"] == sum(cell["outcomes"].values()) == 3
    assert cell["golden"]["first"] > 0.9
    for outcome, seen in analyse(tmp_path / "role-sgd-weights")["outcomes"].items():
        assert seen["count"] == cell["outcomes"].get(outcome, 0)
        assert seen["interval"] == pytest.approx(study["intervals"].wilson(seen["count"], 3))
    page = study["page"].make_page(found)
    assert "the optimizer | **undecided** | 3 of 5,340 |" in page


@pytest.mark.skipif(not LONG, reason="takes half a minute: HOLDFAST_LONG=1")
def test_a_greater_scale_adds_trials_and_bits_take_turns(study, tmp_path):
    trials = tmp_path / "bit-weights/trials.jsonl"
    seen = []
    for scale in ("0.001", "0.01"):
        done = run_study(tmp_path, "--only", "bit-weights", "--scale", scale)
        assert done.returncode == 0, done.stdout + done.stderr
        seen.append(trials.read_text().splitlines())
    assert len(seen[0]) == 4 and len(seen[1]) == 32 and seen[1][:4] == seen[0]
    cells = study["results"].collect(tmp_path, {})["cells"]
    assert [cells[f"bit-weights-{bit}"]["trials"] for bit in range(32)] == [1] * 32
    assert cells["bit-weights-30"]["struck"] == cells["bit-weights-30"]["outcomes"]
    assert not cells["bit-weights-29"]["struck"]


@pytest.mark.skipif(not LONG, reason="takes a minute: HOLDFAST_LONG=1")
@pytest.mark.skipif(not HOROVOD.exists(), reason="needs Horovod: scripts/rivals.sh")
def test_ddp_and_horovod_on_two_ranks_have_equal_bits(study, tmp_path):
    done = run_study(tmp_path, "--only", "ddp-2", "horovod-2", "--scale", "0.3")
    assert done.returncode == 0, done.stdout + done.stderr
    pair = study["results"].collect(tmp_path, {})["pairs"]["ddp-2 horovod-2"]
    assert pair["same_golden"] and pair["same_bits"] == pair["pairs"] == 30
    seen = analyse(tmp_path / "ddp-2", tmp_path / "horovod-2")
    counts = [pair[name] for name in ("both", "only_first", "only_second", "pairs")]
    assert [seen["harm"][name] for name in ("both", "only_a", "only_b")] == counts[:3]
    assert seen["interval"] == pytest.approx(study["intervals"].paired_difference(*counts))


@pytest.mark.parametrize(
    "options", [("--ranks", "2"), ("--steps", "0"), ("--serve", "--save", "x")])
def test_wrong_options_of_the_training_are_refused_in_words(options, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "examples")
    monkeypatch.setattr(sys, "argv", ["train_digits.py", *options])
    with pytest.raises(SystemExit):
        importlib.import_module("train_digits").parse()
    assert "expected" in capsys.readouterr().err


@pytest.mark.parametrize("options", [("--scale", "0"), ("--scale", "nan"), ("--jobs", "0")])
def test_wrong_options_of_the_study_are_refused_in_words(options, tmp_path):
    done = run_study(tmp_path / "work", *options)
    assert done.returncode == 2 and "expected" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "work").exists()
