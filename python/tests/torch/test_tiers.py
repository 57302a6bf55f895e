"""Checkpoints on further tiers: a folder, and an object store on a real server."""

import json
import logging
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from s3_server import find_rclone, serving

import holdfast

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
             "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION")


@pytest.fixture
def no_keys(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def bucket(tmp_path, monkeypatch, no_keys):
    """The folder in which the server keeps the bucket."""
    if find_rclone() is None:
        pytest.skip("no rclone: scripts/setup.sh installs it")
    folder = tmp_path / "server" / "runs"
    folder.mkdir(parents=True)
    with serving(folder.parent) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield folder


def run(*words):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, env=os.environ)


def made(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Linear(64, 64)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(path, first, last, **options):
    """From the newest checkpoint to step `last`, each one saved; weights and report."""
    model, optimizer = made()
    with holdfast.Checkpointer(path, model=model, optimizer=optimizer, every="1 steps",
                               signals=False, **options) as ck:
        start = ck.resume()
        assert start == first
        report = ck.report
        for step in range(start, last + 1):
            torch.manual_seed(step)
            optimizer.zero_grad()
            model(torch.randn(4, 64)).square().sum().backward()
            optimizer.step()
            ck.save(step).durable()
    return {name: value.clone() for name, value in model.state_dict().items()}, report


def test_a_run_comes_back_from_whichever_tier_is_left(tmp_path, bucket):
    memory, remote = tmp_path / "memory", "s3://runs/a/gpt"
    tiers = [memory, holdfast.Tier(remote, keep=2)]
    train(tmp_path / "run", 0, 3, tiers=tiers, keep=3)
    copies = sorted(path.name for path in memory.glob("step-*"))
    assert copies[-1] == "step-00000003"
    assert len(copies) <= 3  # a step that comes while another is copied is left out
    assert 1 <= len(list((bucket / "a" / "gpt").glob("manifest-*"))) <= 2

    shutil.rmtree(tmp_path / "run")
    _, report = train(tmp_path / "run", 4, 4, tiers=tiers)
    assert report.tier == str(memory)

    shutil.rmtree(tmp_path / "run")
    shutil.rmtree(memory)
    weights, report = train(tmp_path / "run", 5, 5, tiers=tiers)
    assert report.tier == remote
    never_lost, _ = train(tmp_path / "other", 0, 5)
    assert all(torch.equal(weights[name], never_lost[name]) for name in weights)


def test_a_tier_keeps_what_the_rules_of_the_run_keep(tmp_path):
    rules = holdfast.Keep(last=1, every=2)
    tiers = [tmp_path / "same", holdfast.Tier(str(tmp_path / "own"), keep=1)]
    for step in range(6):  # each is copied before the next
        train(tmp_path / "run", step, step, tiers=tiers, keep=rules)
    kept = {place: sorted(path.name for path in (tmp_path / place).glob("step-*"))
            for place in ("run", "same", "own")}
    assert kept["run"] == [f"step-{step:08}" for step in (0, 2, 4, 5)]
    assert kept["same"] == kept["run"]
    assert kept["own"] == ["step-00000005"]


def test_the_command_line_reads_an_object_store(tmp_path, bucket):
    values = {"w": np.arange(1 << 20, dtype=np.float32)}
    for step in (1, 2):
        values["w"][0] = step
        with holdfast.Saver(tmp_path / "run", tiers=["s3://runs/gpt"]) as saver:
            saver.save(step, values, {"epoch": step})
    listed = json.loads(run("ls", "s3://runs", "--json").stdout)
    assert [step["step"] for step in listed["runs"][0]["steps"]] == [2, 1]
    assert "epoch" in run("show", "s3://runs/gpt@1").stdout
    assert run("verify", "s3://runs/gpt").returncode == 0
    differs = run("diff", "s3://runs/gpt@1", tmp_path / "run")
    assert differs.returncode == 1
    assert "1 of 1,048,576 elements" in differs.stdout
    assert run("diff", "s3://runs/gpt", tmp_path / "run").returncode == 0
    assert run("convert", "s3://runs/gpt", tmp_path / "w.safetensors").returncode == 0
    assert np.array_equal(holdfast.open("s3://runs/gpt").read("w"), values["w"])
    into = {"w": np.zeros_like(values["w"])}
    assert holdfast.restore("s3://runs/gpt", into, 1).objects == {"epoch": 1}
    assert into["w"][0] == 1

    refused = run("gc", "s3://runs/gpt", "--keep-last", "1")
    assert refused.returncode == 2
    assert "object stores are read here and not written to" in refused.stderr
    assert run("ls", "s3://runs/nothing").returncode == 4
    for shard in bucket.rglob("*.safetensors"):
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
    damaged = run("verify", "s3://runs/gpt")
    assert damaged.returncode == 3
    assert "rank-0000.safetensors, chunk 2, bytes" in damaged.stdout


def test_keys_that_are_missing_are_named(tmp_path, no_keys):
    sentence = "s3://runs: AWS_ACCESS_KEY_ID is not set, want the keys of the account"
    seen = run("ls", "s3://runs/gpt")
    assert (seen.returncode, seen.stdout) == (2, "")
    assert sentence in seen.stderr
    with pytest.raises(ValueError, match=sentence):
        holdfast.Saver(tmp_path / "run", tiers=["s3://runs/gpt"])
    with pytest.raises(TypeError, match="want a list of places"):
        holdfast.Saver(tmp_path / "run", tiers="s3://runs/gpt")


def test_a_tier_that_fails_is_a_warning_and_the_save_stands(tmp_path, caplog):
    model, optimizer = made()
    with caplog.at_level(logging.WARNING, logger="holdfast"), \
            holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer,
                                  tiers=[tmp_path / "tier"], signals=False) as ck:
        (tmp_path / "tier").write_text("no folder")
        assert ck.save(1).durable().folder.is_dir()
    assert "step 1 is not on" in caplog.text
    log = (tmp_path / "run" / "events" / "rank-0000.jsonl").read_text()
    assert "mirror_failed" in log


def test_a_run_without_a_step_does_not_begin_anew_where_a_tier_is_silent(tmp_path):
    (tmp_path / "tier").write_text("no folder")
    model, optimizer = made()
    with pytest.raises(ValueError, match="run: has no step: .*tier"):
        holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer,
                              tiers=[tmp_path / "tier"], signals=False)


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("place", ["gs://bucket/gpt", "S3://bucket/gpt", "ftp://host/gpt",
                                   "file:///tmp/gpt", Path("gs://bucket/gpt"), ""])
def test_what_is_no_place_is_refused_by_name_and_makes_no_folder(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    sentence = "expected"
    model, optimizer = made()
    values = {"w": np.zeros(4, np.float32)}
    np.save("there.npy", values["w"])
    calls = [
        lambda: holdfast.Checkpointer(place, model=model, optimizer=optimizer, signals=False),
        lambda: holdfast.Checkpointer("run", model=model, optimizer=optimizer, signals=False,
                                      tiers=[place]),
        lambda: holdfast.Saver(place),
        lambda: holdfast.Saver("run", tiers=[place]),
        lambda: holdfast.Tier(str(place)),
        lambda: holdfast.restore(place, values),
        lambda: holdfast.open(place),
        lambda: holdfast.convert(place, "to.safetensors"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=sentence):
            call()
    for verb in ("ls", "show", "verify"):
        seen = run(verb, place)
        assert (seen.returncode, sentence in seen.stderr) == (2, True), (verb, seen)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there.npy"]


def test_a_damaged_manifest_of_an_object_store_is_no_step_0(tmp_path, bucket):
    values = {"w": np.arange(8, dtype=np.float32)}
    with holdfast.Saver(tmp_path / "run", tiers=["s3://runs/gpt"]) as saver:
        saver.save(7, values).durable()
    manifest = next((bucket / "gpt").glob("manifest-*"))
    flip_a_bit(manifest)
    listed = json.loads(run("ls", "s3://runs/gpt", "--json").stdout)["runs"][0]
    assert listed["steps"] == []
    assert [skipped["folder"] for skipped in listed["skipped"]] == [manifest.name]
    verified = run("verify", "s3://runs/gpt")
    assert verified.returncode == 3
    assert manifest.name in verified.stdout and "step-00000000" not in verified.stdout
