"""Runs that older code wrote are resumed bit for bit, checked and continued.

The first fixture was written by the code before `holdfast/` was divided into its present parts: a small
training of 6 steps, plain, compressed, incremental (with a shard of an older step), and by two
ranks of DDP. Beside each run lie the SHA-256 digests of what the training held when it was saved.

The second one was written by tests/fixtures/runs/make_fixtures.py, before names of tensors, mending and
statistics became one mechanism each: runs of several steps whose process killed itself. Beside each run
lies what torch.save wrote of the training at the last save.
"""

import hashlib
import importlib
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
FIXTURES = Path(__file__).parents[3] / "tests/fixtures/runs"
FIXTURE = FIXTURES / "before_parts.tar.xz"


def digest(tensor):
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("kind", ["plain", "compressed", "incremental", "ranks"])
def test_a_run_of_older_code_is_resumed_bit_for_bit(tmp_path, kind):
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path, filter="data")
    run, saved = tmp_path / kind, json.loads((tmp_path / f"{kind}.json").read_text())
    assert subprocess.run([PROGRAM, "verify", run], check=False).returncode == 0
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    model[2].weight.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, scheduler=scheduler,
                               every="never",
                               writing=holdfast.Writing(space_reserve=0)) as checkpointer:
        assert checkpointer.resume() == 6
        assert {name: digest(t) for name, t in model.state_dict().items()} == saved["model"]
        moments = optimizer.state_dict()["state"]
        assert {f"{i}.{name}": digest(t) for i, slots in moments.items()
                for name, t in slots.items()} == saved["optimizer"]
        assert scheduler.last_epoch == saved["scheduler"]
        if kind != "ranks":  # on another number of ranks generators begin anew
            assert digest(torch.get_rng_state()) == saved["torch"]
        checkpointer.save(6).durable()
    assert subprocess.run([PROGRAM, "verify", run], check=False).returncode == 0


@pytest.fixture(scope="module")
def older():
    """The training of the second fixture, which the script that made it ran, too."""
    sys.path.insert(0, str(FIXTURES))
    yield importlib.import_module("older_training")
    sys.path.remove(str(FIXTURES))


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return one == other


@pytest.mark.parametrize("kind", ["killed", "packed", "parity"])
def test_a_killed_run_of_older_code_ends_as_if_nothing_had_happened(tmp_path, older, kind):
    """The undisturbed training goes on from what torch.save wrote, in plain torch."""
    with tarfile.open(FIXTURES / "before_folding.tar.xz") as archive:
        members = [one for one in archive if one.name.partition("/")[0] in (kind, f"{kind}.pt")]
        archive.extractall(tmp_path, members, filter="data")
    run = tmp_path / kind
    assert subprocess.run([PROGRAM, "verify", run], check=False).returncode == 0
    seen = []
    ended = older.train(kind, run, lambda step, samples, training: seen.append((step, samples))).state()
    assert [step for step, _ in seen] == list(range(older.SAVED[kind][-1] + 1, older.STEPS))
    plain = older.Training()
    plain.load(torch.load(tmp_path / f"{kind}.pt", weights_only=False))
    for _, samples in seen:
        plain.update(samples)
    assert equal(ended, plain.state())
    # A pass over the data has each sample once, and the killed process had begun the first one.
    assert sorted(ended["tracker"]["seen"][:32]) == list(range(32))
    assert subprocess.run([PROGRAM, "verify", run], check=False).returncode == 0
    assert older.train(kind, run, lambda *_: None).tracker.seen == ended["tracker"]["seen"]


def test_lost_bytes_of_a_run_of_older_code_come_from_its_parity(tmp_path, older):
    with tarfile.open(FIXTURES / "before_folding.tar.xz") as archive:
        archive.extractall(tmp_path, [one for one in archive if one.name.startswith("parity")],
                           filter="data")
    step = tmp_path / "parity/step-00000005"
    whole = shutil.copytree(step, tmp_path / "whole")
    shard = step / "rank-0000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-64] + bytes(64))
    assert subprocess.run([PROGRAM, "verify", step], check=False).returncode != 0
    assert subprocess.run([PROGRAM, "repair", step], check=False).returncode == 0
    assert shard.read_bytes() == (whole / shard.name).read_bytes()
