"""Damaged and unusual files, and files of other programs, from Python and the command line."""

import argparse
import collections
import json
import logging
import os
import shutil
import signal
import subprocess
import time
import zipfile
from pathlib import Path

from command import PROGRAM, run
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import holdfast

FIXTURES = Path(__file__).parents[2] / "tests" / "fixtures"


def flip(path, at):
    """Flips one bit of the byte at `at`. A second call flips it back."""
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))


class Schedule:
    def __init__(self):
        self.warm = torch.arange(3.0)
        self.rate = 0.5


class Attack:
    def __reduce__(self):
        return os.system, ("touch /tmp/holdfast-pwned",)


# Damage.


def test_no_flipped_bit_of_a_torch_file_gives_wrong_values(tmp_path):
    want = {"w": torch.arange(6.0), "view": torch.arange(8.0)[2:5]}
    path = tmp_path / "model.pt"
    torch.save(want, path)
    refused = 0
    for at in range(path.stat().st_size):
        flip(path, at)
        try:
            seen = holdfast.load(path)
            assert seen.keys() == want.keys()
            assert all(torch.equal(seen[name], want[name]) for name in want), at
        except (holdfast.CorruptError, NotImplementedError):
            refused += 1
        flip(path, at)
    assert refused > 60


def test_a_damaged_torch_file_is_neither_converted_nor_compared(tmp_path):
    path, good, out = tmp_path / "a.pt", tmp_path / "b.pt", tmp_path / "out.safetensors"
    torch.save({"w": torch.full((1000,), 0.125)}, path)
    good.write_bytes(path.read_bytes())
    flip(path, path.read_bytes().index(torch.full((9,), 0.125).numpy().tobytes()) + 99)
    converted = run("convert", path, out)
    assert converted.returncode == 3 and "has crc" in converted.stderr
    assert run("diff", path, good).returncode == 3
    assert sorted(os.listdir(tmp_path)) == ["a.pt", "b.pt"]
    with pytest.raises(holdfast.CorruptError):
        holdfast.convert(path, out)
    with pytest.raises(holdfast.CorruptError):
        holdfast.open(path).read("w")
    with pytest.raises(holdfast.CorruptError):  # the record is so small that it is read as a whole
        holdfast.open(path).read("w", holdfast.Box([(0, 2)]))


def test_a_damaged_step_is_passed_over_by_open_and_convert(tmp_path, caplog):
    for step in 1, 2:
        with holdfast.Saver(tmp_path / "run") as saver:
            saver.save(step, {"w": np.full(1000, step, "f4")})
    shard = tmp_path / "run" / "step-00000002" / "rank-0000.safetensors"
    flip(shard, shard.stat().st_size - 1)
    done = run("convert", tmp_path / "run", tmp_path / "a.safetensors")
    assert done.returncode == 0
    assert done.stderr.startswith("holdfast: step-00000002 is passed over: ")
    shown = run("convert", tmp_path / "run", tmp_path / "b.safetensors", "--json")
    assert json.loads(shown.stdout)["skipped"][0]["folder"] == "step-00000002"
    with caplog.at_level(logging.WARNING, "holdfast"):
        holdfast.convert(tmp_path / "run", tmp_path / "c.safetensors")
        assert "step-00000002 is passed over" in caplog.text
        caplog.clear()
        into = {"w": np.zeros(1000, "f4")}
        assert holdfast.restore(tmp_path / "run", into).step == 1
        assert "step-00000002 is passed over" in caplog.text
    for name in "abc":
        assert holdfast.open(tmp_path / f"{name}.safetensors").read("w")[0] == 1
    assert run("convert", f"{tmp_path}/run@2", tmp_path / "d.pt").returncode == 3
    shard.unlink()
    with caplog.at_level(logging.WARNING, "holdfast"):
        caplog.clear()
        assert holdfast.open(tmp_path / "run").read("w")[0] == 1
        assert "step-00000002 is passed over" in caplog.text


def test_a_folder_that_has_lost_a_shard_is_damaged(tmp_path):
    folder = tmp_path / "model"
    torch.save({"a": torch.ones(3)}, tmp_path / "a.pt")
    assert run("convert", tmp_path / "a.pt", f"{folder}/").returncode == 0
    assert run("verify", folder).returncode == 0
    next(folder.glob("*.safetensors")).unlink()
    for verb in "verify", "show":
        assert run(verb, folder).returncode == 3


# Files of other programs.


def test_a_folder_of_one_safetensors_file_needs_no_index(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"w": torch.arange(4.0)}, folder / "model.safetensors")
    assert holdfast.open(folder).read("w").tolist() == [0, 1, 2, 3]
    assert run("verify", folder).returncode == 0


@pytest.mark.parametrize("protocol", [2, 5])
def test_objects_of_other_classes_do_not_hide_the_tensors(tmp_path, protocol):
    lists = collections.defaultdict(list, {"losses": [1.5]})
    state = {"model": {"w": torch.arange(4.0)}, "args": argparse.Namespace(lr=0.1, name="a"),
             "best": np.float64(0.25), "step": np.int64(7), "done": np.bool_(True),
             "lists": lists, "schedule": Schedule(), "kinds": {1, 2},
             "cast": torch.nn.functional.relu}
    torch.save(state, tmp_path / "a.pt", pickle_protocol=protocol)
    contents = holdfast.open(tmp_path / "a.pt")
    assert set(contents) == {"model.w", "schedule.warm"}
    assert contents.read("model.w").tolist() == [0, 1, 2, 3]
    objects = contents.objects
    assert objects["args"] == {"__class__": "argparse.Namespace", "lr": 0.1, "name": "a"}
    plain = objects["best"], objects["step"], objects["done"], objects["lists"]
    assert plain == (0.25, 7, True, {"losses": [1.5]})
    assert [type(value) for value in plain] == [float, int, bool, dict]
    assert objects["schedule"]["rate"] == 0.5
    named = {line.partition(":")[0] for line in contents.simplified}
    assert named >= {"args", "schedule", "kinds"}
    done = run("convert", tmp_path / "a.pt", tmp_path / "a.safetensors", "--json")
    assert "class of args: argparse.Namespace" in json.loads(done.stdout)["left_out"]
    loaded = holdfast.load(tmp_path / "a.pt")
    assert torch.equal(loaded["schedule"]["warm"], torch.arange(3.0))


def test_what_only_an_attack_names_is_refused_and_nothing_is_run(tmp_path):
    torch.save({"w": torch.ones(1), "x": Attack()}, tmp_path / "a.pt")
    with pytest.raises(NotImplementedError, match=r"(posix|os)\.system"):
        holdfast.open(tmp_path / "a.pt")
    assert not os.path.exists("/tmp/holdfast-pwned")


def test_what_contains_itself_or_nests_deeply_is_left_out_and_no_damage(tmp_path):
    circle = {"w": torch.ones(1)}
    circle["again"] = circle
    deep = []
    for _ in range(200):
        deep = [deep]
    for value, why in (circle, "again: contains itself"), (deep, "nests deeper than 100"):
        path = tmp_path / f"{why.split()[0]}.pt"
        torch.save(value, path)
        (line,) = holdfast.open(path).left_out
        assert line.endswith(why)
        for verb in "show", "verify":
            done = run(verb, path)
            assert done.returncode == 0, done.stderr


def test_torchscript_is_named(tmp_path):
    with open(tmp_path / "a.pt", "wb") as file:
        torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), file)
    expect_torchscript(tmp_path / "a.pt")


def test_code_that_unpacks_to_more_than_the_whole_file_is_no_damage(tmp_path):
    """The compressed code contains paths of the machine it was traced on, so its size varies."""
    long = torch.jit.trace(lambda x: sum((x for _ in range(2000)), x), torch.ones(1))
    torch.jit.save(long, str(tmp_path / "a.pt"))
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        largest = max(entry.file_size for entry in archive.infolist())
    assert largest > os.path.getsize(tmp_path / "a.pt")
    expect_torchscript(tmp_path / "a.pt")


def expect_torchscript(path):
    for verb in "show", "verify":
        done = run(verb, path)
        assert done.returncode == 1 and "TorchScript" in done.stderr


# The command line.

NOTHING = "/nowhere/at/all"


@pytest.mark.parametrize("words, code, exits", [
    (["show", NOTHING], "not_found", 4),
    (["diff", NOTHING, NOTHING], "not_found", 4),
    (["convert", NOTHING, "a.pt"], "not_found", 4),
    (["convert", NOTHING, "a.what"], "invalid", 2),
    (["gc", NOTHING, "--keep-last", "1"], "not_found", 4),
    (["gc", NOTHING], "invalid", 2),
    (["pin", NOTHING, "1"], "not_found", 4),
    (["unpin", NOTHING, "1"], "not_found", 4),
    (["plan", "--model", "none"], "invalid", 2),
    (["interval"], "invalid", 2),
    (["simulate"], "invalid", 2),
    (["show"], "invalid", 2),
    (["what"], "invalid", 2),
    ([], "invalid", 2),
])
def test_a_failure_is_json_too(words, code, exits):
    done = run(*words, "--json")
    assert done.returncode == exits, done.stderr
    error = json.loads(done.stdout)["error"]
    assert (error["code"], error["exit"]) == (code, exits)
    assert done.stderr == f"holdfast: {error['message']}\n"


@pytest.mark.parametrize("verb", ["ls", "verify"])
def test_verbs_of_many_paths_list_their_failures(verb):
    done = run(verb, NOTHING, "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["errors"][0]["code"] == "not_found"


def stop_in_the_middle(source, target, number, ending=""):
    """Starts a conversion, and sends the signal once it writes bytes."""
    before = set(os.listdir(target.parent))
    # A shell starts what it puts into the background with SIGINT ignored, and tests inherit that.
    process = subprocess.Popen([PROGRAM, "convert", source, f"{target}{ending}"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    while process.poll() is None:
        if is_writing(process.pid, target.parent):
            os.kill(process.pid, number)
            break
        time.sleep(0.001)
    assert process.wait(60) == -number
    return set(os.listdir(target.parent)) - before


def is_writing(pid, folder):
    try:
        opened = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return any(name.startswith(f"{folder}/") and "large.pt" not in name for name in opened)


@pytest.fixture
def large(tmp_path):
    """A file that takes some time to convert."""
    path = tmp_path / "large.pt"
    torch.save({f"w{i}": torch.full((1 << 22,), float(i)) for i in range(12)}, path)
    return path


def test_a_convert_that_is_killed_leaves_nothing(large, tmp_path):
    for number in signal.SIGKILL, signal.SIGTERM, signal.SIGINT:
        assert stop_in_the_middle(large, tmp_path / "out.safetensors", number) == set()


def test_a_convert_to_a_folder_that_is_killed_is_swept_by_the_next(large, tmp_path):
    folder = tmp_path / "out"
    assert stop_in_the_middle(large, folder, signal.SIGTERM, "/") == set()
    (left,) = stop_in_the_middle(large, folder, signal.SIGKILL, "/")
    assert left.startswith(".out.") and left.endswith(".tmp")
    assert run("convert", large, f"{folder}/").returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["large.pt", "out"]


# Arrays.


def test_arrays_that_share_memory_are_refused_by_restore(tmp_path):
    with holdfast.Saver(tmp_path / "run") as saver:
        saver.save(1, {"a": np.arange(6.0), "b": np.arange(6.0, 12.0)})
    memory = np.zeros(10)
    with pytest.raises(ValueError, match="a and b: share memory"):
        holdfast.restore(tmp_path / "run", {"a": memory[:6], "b": memory[4:]})
    assert not memory.any()
    between = np.zeros((6, 2))  # the columns alternate in memory but share no bytes
    holdfast.restore(tmp_path / "run", {"a": between[:, 0], "b": between[:, 1]})
    assert between.T.ravel().tolist() == list(range(12))


def test_a_copy_of_sharded_keras_weights_is_refused_and_the_original_stays(tmp_path):
    """The shards lie beside their index, so a copy of the index would name the original's."""
    for file in FIXTURES.glob("keras/sharded*"):
        shutil.copy(file, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = run("inject", tmp_path / "sharded.weights.json", tmp_path / "hurt.weights.json",
               "--seed", "1", "--checksums", "raw")
    assert done.returncode == 1
    assert "expected --in-place" in done.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
