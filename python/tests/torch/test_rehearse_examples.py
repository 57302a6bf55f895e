"""`holdfast rehearse` on the examples: as they are started, by torchrun and by `holdfast launch`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent
HOLDFAST = str(BIN / "holdfast")
GPT = [str(EXAMPLES / "train_gpt.py"), "runs/gpt", "--steps", "40", "--layers", "2"]
RESNET = [str(EXAMPLES / "train_resnet.py"), "runs/resnet", "--epochs", "1"]

pytestmark = pytest.mark.skipif(os.environ.get("HOLDFAST_LONG") != "1",
                                reason="needs HOLDFAST_LONG=1")


@pytest.mark.parametrize("command", [
    pytest.param([sys.executable, *GPT], id="gpt"),
    pytest.param([sys.executable, *RESNET], id="resnet"),
    pytest.param([str(BIN / "torchrun"), "--nproc-per-node", "2", *GPT], id="torchrun"),
    pytest.param([HOLDFAST, "launch", "-n", "2", *GPT], id="launch"),
])
def test_an_example_resumes_exactly_and_leaves_nothing_behind(tmp_path, command):
    found = subprocess.run([HOLDFAST, "rehearse", "--steps", "10", "--", *command], cwd=tmp_path,
                           env={**os.environ, "HOLDFAST_PYTHON": sys.executable},
                           capture_output=True, text=True, timeout=900)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "EXACT: every step after a kill has the same bits" in found.stdout
    assert not (tmp_path / "runs").exists()
    assert str(tmp_path) not in subprocess.run(["ps", "-eo", "args"], capture_output=True,
                                               text=True, check=True).stdout
