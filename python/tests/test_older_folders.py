"""A campaign and re-cut checkpoints that older code had begun when it was killed are brought to their end.

The archive was made by tests/fixtures/runs/make_fixtures.py, with the code before tensors' names, mending
and statistics became one mechanism each.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import holdfast

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
FIXTURES = Path(__file__).parents[2] / "tests/fixtures/runs"


def load_maker():
    """The script that made the archive: it has the commands."""
    sys.path.insert(0, str(FIXTURES))
    spec = importlib.util.spec_from_file_location("make_fixtures", FIXTURES / "make_fixtures.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    sys.path.remove(str(FIXTURES))
    return made


@pytest.fixture
def folder(tmp_path):
    with tarfile.open(FIXTURES / "before_folding.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def run(folder, *words):
    python = Path(sys.executable).parent  # the command of the campaign begins with python3
    environment = os.environ | {"PATH": f"{python}:{os.environ['PATH']}",
                                "PYTHONPATH": str(Path(holdfast.__file__).parents[1])}
    return subprocess.run([PROGRAM, *words], cwd=folder, env=environment, capture_output=True,
                          text=True, check=False)


def records(folder):
    lines = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def test_a_campaign_that_older_code_began_has_the_trials_of_one_that_was_not_killed(folder):
    maker = load_maker()
    begun = records(folder / "campaign")
    assert 0 < len(begun) < 240
    # The mark of the process that was killed on another host: it may still work there.
    shutil.copy(FIXTURES / "older_campaign.py", folder)
    refused = run(folder, *maker.CAMPAIGN, "campaign", *maker.TRIAL)
    assert refused.returncode != 0 and "on alpha works in it; expected that it has ended" in refused.stderr
    (folder / "campaign/running").unlink()
    done = run(folder, *maker.CAMPAIGN, "campaign", *maker.TRIAL)
    assert done.returncode == 0, done.stderr
    assert records(folder / "campaign")[:len(begun)] == begun
    by_number = sorted(records(folder / "campaign"), key=lambda record: record["trial"])
    assert by_number == sorted(records(folder / "complete"), key=lambda record: record["trial"])
    counts = [holdfast.campaign.analyse(folder / name)["outcomes"] for name in ("campaign", "complete")]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("target", ["cut", "dcp"])
def test_a_reshard_that_older_code_began_is_continued(folder, target):
    """What older code has finished is kept, and the end is that of a call that was not killed."""
    maker = load_maker()
    words = [*maker.RESHARD, maker.FORMATS[target]]
    done = run(folder, *words, target)
    assert done.returncode == 0, done.stderr
    assert "finished by an earlier call" in done.stdout
    assert not (folder / f".{target}.reshard").exists()
    assert run(folder, *words, "undisturbed").returncode == 0
    assert run(folder, "diff", target, "undisturbed").returncode == 0
    pattern = "step-*/*.safetensors" if target == "cut" else "*.distcp"
    files = sorted((folder / target).glob(pattern))
    assert len(files) == 4
    for file in files:
        other = folder / "undisturbed" / file.relative_to(folder / target)
        assert file.read_bytes() == other.read_bytes(), file
