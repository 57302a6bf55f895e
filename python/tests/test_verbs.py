"""The verbs of the command line as functions of the package."""

import inspect
import re
import subprocess
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file

import holdfast
from holdfast import verbs

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
OF_ALL = {"help", "json", "quiet", "verbose"}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({f"layers.{i}.mlp.fc1.weight": numpy.full((8, 4), i, "float32") for i in range(2)}, path)
    return path


def flip_last_byte(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("verb", ["verify", "diff", "repair", "reshard", "seal", "gc"])
def test_a_function_has_the_options_of_its_verb(verb):
    help = subprocess.run([PROGRAM, verb, "--help"], capture_output=True, text=True, check=True).stdout
    of_verb = set(re.findall(r"^ +(?:-\w,)?--([a-z-]+)", help, re.M)) - OF_ALL
    parameters = inspect.signature(getattr(verbs, verb)).parameters.values()
    of_function = {one.name.rstrip("_").replace("_", "-") for one in parameters
                   if one.kind is one.KEYWORD_ONLY}
    assert of_function == of_verb


def test_damage_and_differences_are_results(file, tmp_path):
    assert holdfast.seal(file).ok
    assert holdfast.verify(file).ok
    other = tmp_path / "other.safetensors"
    other.write_bytes(file.read_bytes())
    same = holdfast.diff(file, other)
    assert same.ok and same.exit_code == 0
    flip_last_byte(other)
    differs = holdfast.diff(file, other)
    assert not differs.ok and differs.exit_code == 1
    flip_last_byte(file)
    damaged = holdfast.verify(file)
    assert not damaged.ok and damaged.exit_code == 3 and not damaged["whole"]


def test_a_flipped_bit_is_mended(file, tmp_path):
    holdfast.seal(file)
    before = file.read_bytes()
    flip_last_byte(file)
    assert holdfast.repair(file, tmp_path / "mended.safetensors").ok
    assert (tmp_path / "mended.safetensors").read_bytes() == before


def test_a_checkpoint_is_cut_again_and_planned(file, tmp_path):
    plan = holdfast.reshard(file, to="whole", format="native", plan_only=True)
    assert plan.ok and not (tmp_path / "run").exists()
    assert holdfast.reshard(file, tmp_path / "run", to="whole", format="native").ok
    assert holdfast.diff(file, tmp_path / "run").ok
    assert holdfast.gc(tmp_path / "run", keep_last=1, dry_run=True).ok


def test_times_of_saves_are_planned():
    found = holdfast.interval(mtbf="8h", stall="200ms", length="24h", workers=8)
    assert found.ok and len(found) > 1
    assert holdfast.simulate(mtbf="8h", stall="1s", runs=100, schedules="young").ok


@pytest.mark.parametrize("call, error, words", [
    (lambda path: holdfast.verify(path / "none"), holdfast.NotFoundError, "No such file"),
    (lambda path: holdfast.seal(path / "none"), holdfast.NotFoundError, "No such file"),
    (lambda path: holdfast.gc(path), ValueError, "expected --keep-last"),
    (lambda path: holdfast.interval(lenght="1h"), ValueError, "lenght"),
    (lambda path: holdfast.verify(), ValueError, "PATH"),
])
def test_a_wrong_call_raises(tmp_path, call, error, words):
    with pytest.raises(error, match=words):
        call(tmp_path)
