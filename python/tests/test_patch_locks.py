"""Two processes that change one file in place at the same time: one of them does, and the other
says who."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys

from command import PROGRAM, run
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

RUNS = 25 if os.environ.get("HOLDFAST_LONG") else 4


def inject(*words):
    return run("inject", *words, "--checksums", "consistent")


def start_patch(path, plan):
    return subprocess.Popen([PROGRAM, "inject", path, "--in-place", "--plan", plan,
                             "--checksums", "consistent"],
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def base(tmp_path):
    path = tmp_path / "base.npz"
    rng = np.random.default_rng(1)
    np.savez(path, **{f"w{i}": rng.standard_normal((64, 64)) for i in range(30)})
    return path


@pytest.mark.parametrize("ending", [".npz", ".pt"])
def test_two_patches_at_once_leave_the_contents_of_their_plans(base, tmp_path, ending):
    if ending != ".npz":
        base = tmp_path / f"base{ending}"
        assert run("convert", tmp_path / "base.npz", base).returncode == 0
    plans = [tmp_path / "1.json", tmp_path / "2.json"]
    altered = [tmp_path / f"{name}{ending}" for name in ("first", "second", "both")]
    for seed, (plan, path) in enumerate(zip(plans, altered)):
        made = inject(base, path, "--flips", 200, "--seed", seed, "--save-plan", plan)
        assert made.returncode == 0, made.stderr
    assert inject(altered[0], altered[2], "--plan", plans[1]).returncode == 0
    # By the exit codes of both patches. If both succeed, one came after the other.
    expected = dict(zip([(0, 1), (1, 0), (0, 0)], [path.read_bytes() for path in altered]))
    folder = tmp_path / "hurt"
    folder.mkdir()
    path = folder / f"hurt{ending}"
    for _ in range(RUNS):
        shutil.copy(base, path)
        patches = [start_patch(path, plan) for plan in plans]
        errors = [patch.communicate()[1] for patch in patches]
        codes = tuple(patch.returncode for patch in patches)
        assert codes in expected, errors
        assert path.read_bytes() == expected[codes]
        assert os.listdir(folder) == [path.name]
        for patch, other, error in zip(patches, reversed(patches), errors):
            if patch.returncode:
                # The other may have ended before this one has looked who it is.
                assert (f"process {other.pid} (holdfast)" in error
                        or "another process changes or reads it" in error)


@pytest.mark.parametrize("words", [
    ("inject", "FILE", "--in-place", "--seed", 1, "--checksums", "raw"),
    ("repair", "FILE", "--in-place"),
    ("convert", "FILE", "OTHER"),
])
def test_a_command_that_finds_the_file_locked_says_who_has_it(base, tmp_path, words):
    names = {"FILE": base, "OTHER": tmp_path / "other.pt"}
    before = base.read_bytes()
    with open(base, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused = run(*[names.get(word, word) for word in words])
    assert refused.returncode == 1
    assert f"base.npz: process {os.getpid()} (" in refused.stderr
    assert base.read_bytes() == before
    assert run(*[names.get(word, word) for word in words]).returncode == 0


def test_a_lock_ends_with_a_process_that_is_killed(base):
    script = "import fcntl, sys, time; f = open(sys.argv[1], 'r+b'); " \
             "fcntl.flock(f, fcntl.LOCK_EX); print('locked', flush=True); time.sleep(600)"
    holder = subprocess.Popen([sys.executable, "-c", script, base], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"locked\n"
    words = ("inject", base, "--in-place", "--seed", 1, "--checksums", "raw")
    assert f"process {holder.pid} (" in run(*words).stderr
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert run(*words).returncode == 0
    holder.stdout.close()


def save_folder(path):
    """A folder of two safetensors files with an index, as transformers saves it."""
    path.mkdir()
    parts = [{f"w{i}": torch.full((4,), float(i))} for i in range(2)]
    names = [f"model-0000{k}-of-00002.safetensors" for k in (1, 2)]
    for name, part in zip(names, parts, strict=True):
        save_file(part, path / name)
    (path / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {"total_size": 32}, "weight_map": dict(zip(["w0", "w1"], names, strict=True))}))
    return path / names[1]


def test_a_folder_is_not_converted_while_one_of_its_files_is_changed_nor_the_other_way_round(tmp_path):
    part = save_folder(tmp_path / "model")
    convert = ("convert", tmp_path / "model", tmp_path / "whole.pt")
    inject = ("inject", tmp_path / "model", "--in-place", "--seed", 1, "--checksums", "raw")
    with open(part, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused = run(*convert)
    assert refused.returncode == 1 and f"{part.name}: process {os.getpid()} (" in refused.stderr
    assert os.listdir(tmp_path) == ["model"]
    with open(part, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as another convert has it
        assert run(*convert).returncode == 0
        refused = run(*inject)
    assert refused.returncode == 1 and f"{part.name}: process {os.getpid()} (" in refused.stderr
    assert run(*inject).returncode == 0
