"""Flips bits in holdfast.json and in the owner files while no process writes to the run."""

import json
import logging
import os
import time

import numpy as np
import pytest

import holdfast


def save(run, step):
    with holdfast.Saver(run) as saver:
        saver.save(step, {"w": np.arange(10.0)}).durable()


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_flipped_id_is_noticed_and_mended(tmp_path, caplog):
    run = tmp_path / "run"
    save(run, 1)
    whole = (run / "holdfast.json").read_bytes()
    flip(run / "holdfast.json", whole.index(json.loads(whole)["run"].encode()))
    assert list(holdfast.open(run))  # reading works nevertheless, and changes nothing
    assert (run / "holdfast.json").read_bytes() != whole
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        save(run, 2)
    assert (run / "holdfast.json").read_bytes() == whole
    assert "written anew with the id that its steps name" in caplog.text
    runs = {json.loads((run / step / "manifest.json").read_text())["run"]
            for step in ("step-00000001", "step-00000002")}
    assert runs == {json.loads(whole)["run"]}


def test_damaged_owner_files_stop_jobs_for_a_lease_at_most(tmp_path):
    run = tmp_path / "run"
    save(run, 1)
    owners = [*run.glob("owner*.json")]
    assert len(owners) == 2
    for file in owners:
        flip(file, 40)
    with pytest.raises(holdfast.ConflictError, match=r"try again after .* or remove owner.json"):
        save(run, 2)
    old = time.time() - 121
    for file in owners:
        os.utime(file, (old, old))
    save(run, 2)
    save(run, 3)
