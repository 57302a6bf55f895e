"""The verbs of the command line as functions of the package."""

import inspect
import os
import re
import signal
import subprocess
import threading
import typing
from pathlib import Path

import numpy
import pytest
from safetensors.numpy import save_file

import holdfast

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


def options_of(function):
    """The options of a function, with those that its **options may have."""
    named = inspect.signature(function).parameters.values()
    more = [typing.get_args(hint)[0] for hint in typing.get_type_hints(function).values()
            if typing.get_origin(hint) is typing.Unpack]
    names = [one.name for one in named if one.kind is one.KEYWORD_ONLY]
    names += [name for one in more for name in typing.get_type_hints(one)]
    return {name.rstrip("_").replace("_", "-") for name in names}


@pytest.mark.parametrize("verb", ["ls", "show", "pin", "unpin", "convert", "export", "verify", "diff",
                                  "repair", "reshard", "seal", "index", "gc", "interval", "simulate"])
def test_a_function_has_the_options_of_its_verb(verb):
    help = subprocess.run([PROGRAM, verb, "--help"], capture_output=True, text=True, check=True).stdout
    of_verb = set(re.findall(r"^ +(?:-\w,)?--([a-z-]+)", help, re.M)) - OF_ALL
    assert options_of(getattr(holdfast, verb)) == of_verb


def test_damage_and_differences_are_results(file, tmp_path):
    assert holdfast.seal(file).ok
    assert holdfast.verify(file).ok
    other = tmp_path / "other.safetensors"
    other.write_bytes(file.read_bytes())
    same = holdfast.diff(os.fsencode(file), other)
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


def test_runs_are_listed_shown_and_pinned(file, tmp_path):
    holdfast.reshard(file, tmp_path / "run", to="whole", format="native")
    listed = holdfast.ls(tmp_path)
    assert listed.ok and [len(run["steps"]) for run in listed["runs"]] == [1]
    step = listed["runs"][0]["steps"][0]["folder"]
    shown = holdfast.show(tmp_path / "run", layout=True)
    assert [one["name"] for one in shown["tensors"]] == [f"layers.{i}.mlp.fc1.weight" for i in range(2)]
    assert holdfast.pin(tmp_path / "run", step)["pinned"]
    assert not holdfast.unpin(tmp_path / "run", step)["pinned"]


def test_what_is_converted_and_exported_is_told(file, tmp_path):
    converted = holdfast.convert(file, tmp_path / "model", format="npz")
    assert converted.ok and (converted["format"], converted["tensors"]) == ("npz", 2)
    exported = holdfast.export(file, tmp_path / "model.safetensors.2", format="safetensors", dtype="bf16")
    assert exported.ok and exported["notes"] == []
    assert holdfast.show(tmp_path / "model.safetensors.2")["tensors"][0]["dtype"] == "BF16"


def test_ctrl_c_works_after_verbs_of_several_threads(tmp_path):
    numpy.savez(tmp_path / "a.npz", w=numpy.zeros(1 << 18))

    def convert(thread):
        for i in range(10):
            holdfast.convert(tmp_path / "a.npz", tmp_path / f"{thread}-{i}.safetensors")

    threads = [threading.Thread(target=convert, args=(thread,)) for thread in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(5)


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
