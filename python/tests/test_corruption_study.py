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
SCRIPT = ROOT / "examples/train_digits.py"
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
         "--jobs", "1", *options], capture_output=True, text=True, timeout=120, check=False,
        env=os.environ | {"PYTHONPATH": str(Path(holdfast.__file__).parents[1])})  # fmt: skip


def analyse(*folders):
    done = subprocess.run([PROGRAM, "campaign", "analyse", "--json", *folders], capture_output=True,
                          text=True, check=True)  # fmt: skip
    return json.loads(done.stdout)


def train(*options, cwd):
    return subprocess.run([sys.executable, SCRIPT, *options], cwd=cwd, capture_output=True,
                          text=True, timeout=120, check=False)  # fmt: skip


def test_a_cell_runs_and_continues_and_is_counted(study, tmp_path):
    done = run_study(tmp_path, "--only", "bit-weights-30", "--scale", "0.03")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (tmp_path / "bit-weights-30/trials.jsonl").read_text().splitlines()
    assert len(lines) == 3
    done = run_study(tmp_path, "--only", "bit-weights-30", "--scale", "0.05")
    assert done.returncode == 0, done.stdout + done.stderr
    more = (tmp_path / "bit-weights-30/trials.jsonl").read_text().splitlines()
    assert more[:3] == lines and len(more) == 5
    found = study["results"].collect(tmp_path, {"CPU": "any"})
    cell = found["cells"]["bit-weights-30"]
    assert cell["trials"] == sum(cell["outcomes"].values()) == 5
    assert cell["struck"] == cell["outcomes"]  # each trial has flipped bit 30
    assert cell["golden"]["first"] > 0.9
    for outcome, seen in analyse(tmp_path / "bit-weights-30")["outcomes"].items():
        assert seen["count"] == cell["outcomes"].get(outcome, 0)
        assert seen["interval"] == pytest.approx(study["intervals"].wilson(seen["count"], 5))
    page = study["page"].make_page(found)
    assert "| one crucial bit | **undecided** | 5 of 3,200 |" in page


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


def test_the_same_checkpoint_gives_the_same_bits(tmp_path):
    assert train("--steps", "3", "--save", "base.pt", cwd=tmp_path).returncode == 0
    for name in ("a", "b"):
        done = train("--resume", "base.pt", "--steps", "2", "--log", name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    log = (tmp_path / "a").read_text()
    assert log == (tmp_path / "b").read_text()
    assert [json.loads(line)["step"] for line in log.splitlines()] == [0, 1, 2]


@pytest.mark.parametrize(
    "options", [("--ranks", "2"), ("--steps", "0"), ("--serve", "--save", "x")])
def test_wrong_options_are_refused_in_words(options, tmp_path):
    done = train(*options, cwd=tmp_path)
    assert done.returncode == 2 and "expected" in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [("--scale", "0"), ("--scale", "nan"), ("--jobs", "0")])
def test_wrong_options_of_the_study_are_refused_in_words(options, tmp_path):
    done = run_study(tmp_path / "work", *options)
    assert done.returncode == 2 and "expected" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "work").exists()
