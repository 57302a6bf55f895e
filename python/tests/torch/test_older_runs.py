"""Runs that older code wrote are resumed bit for bit, checked and continued.

The fixture was written by the code before `holdfast/` was divided into its present parts: a small
training of 6 steps, plain, compressed, incremental (with a shard of an older step), and by two
ranks of DDP. Beside each run lie the SHA-256 digests of what the training held when it was saved.
"""

import hashlib
import json
import subprocess
import tarfile
from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
FIXTURE = Path(__file__).parents[3] / "tests/fixtures/runs/before_parts.tar.xz"


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
