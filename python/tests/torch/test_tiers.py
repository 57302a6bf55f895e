"""Checkpoints in further tiers: in a folder, and in an object store on a real server."""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

from grouped import grouped
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
    """The folder in which the server keeps the bucket's objects."""
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
    """Resumes, trains up to step `last` and saves each step. Returns the weights and the report."""
    model, optimizer = made()
    with holdfast.Checkpointer(path, model=model, optimizer=optimizer, every="1 steps",
                               **grouped(signals=False, **options)) as ck:
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
    assert len(copies) <= 3  # steps that are saved while another is copied may be left out
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
    for step in range(6):  # each step is copied before the next one is made
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
    assert "object stores can be read here, but not written" in refused.stderr
    assert run("ls", "s3://runs/nothing").returncode == 4
    for shard in bucket.rglob("*.safetensors"):
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
    damaged = run("verify", "s3://runs/gpt")
    assert damaged.returncode == 3
    assert "rank-0000.safetensors, chunk 2, bytes" in damaged.stdout


def test_a_step_is_mended_from_an_object_store(tmp_path, bucket, monkeypatch):
    train(tmp_path / "run", 0, 0, tiers=["s3://runs/gpt"])
    shard = next((tmp_path / "run").glob("step-*/rank-0000.safetensors"))
    good = shard.read_bytes()
    bad = bytearray(good)
    for away in range(8):  # more than a seal or a CRC can mend
        bad[len(bad) // 2 + 100 * away] ^= 0x41
    shard.write_bytes(bad)
    step = f"{tmp_path}/run@0"
    with monkeypatch.context() as without_keys:
        without_keys.delenv("AWS_ACCESS_KEY_ID")
        lost = run("repair", step)  # the events of the run name the tier
        assert lost.returncode == 3
        assert "tier s3://runs/gpt: s3://runs: AWS_ACCESS_KEY_ID is not set" in lost.stdout
    mended = run("repair", step)
    assert mended.returncode == 0 and "from tier s3://runs/gpt" in mended.stdout
    assert shard.read_bytes() == good


def test_keys_that_are_missing_are_named(tmp_path, no_keys):
    sentence = "s3://runs: AWS_ACCESS_KEY_ID is not set; expected the keys of the account"
    seen = run("ls", "s3://runs/gpt")
    assert (seen.returncode, seen.stdout) == (2, "")
    assert sentence in seen.stderr
    with pytest.raises(ValueError, match=sentence):
        holdfast.Saver(tmp_path / "run", tiers=["s3://runs/gpt"])
    with pytest.raises(TypeError, match="expected a list of places"):
        holdfast.Saver(tmp_path / "run", tiers="s3://runs/gpt")


def test_a_tier_that_fails_is_a_warning_and_the_save_stands(tmp_path, caplog):
    model, optimizer = made()
    with caplog.at_level(logging.WARNING, logger="holdfast"), \
            holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer,
                                  tiers=[tmp_path / "tier"],
                                  failures=holdfast.Failures(signals=False)) as ck:
        (tmp_path / "tier").write_text("no folder")
        assert ck.save(1).durable().folder.is_dir()
    assert "step 1 is not on" in caplog.text
    log = (tmp_path / "run" / "events" / "rank-0000.jsonl").read_text()
    assert "tier_copy_failed" in log


def test_a_run_without_a_step_does_not_begin_anew_where_a_tier_is_silent(tmp_path):
    (tmp_path / "tier").write_text("no folder")
    model, optimizer = made()
    with pytest.raises(ValueError, match="run: has no whole step, and the tier .*tier"):
        holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer,
                              tiers=[tmp_path / "tier"], failures=holdfast.Failures(signals=False))


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_lost_run_does_not_start_from_0_beside_damaged_manifests(tmp_path, bucket):
    tiers = [tmp_path / "copies", "s3://runs/gpt"]
    train(tmp_path / "run", 0, 2, tiers=tiers)
    shutil.rmtree(tmp_path / "run")
    manifests = [*(tmp_path / "copies").glob("step-*/manifest.json"),
                 *(bucket / "gpt").glob("manifest-*")]
    for manifest in manifests:
        flip_a_bit(manifest)
    held = sorted((bucket / "gpt").rglob("*"))
    for tier in tiers:
        with pytest.raises(holdfast.CorruptError, match="expected a whole step, or another"):
            train(tmp_path / "run", 0, 0, tiers=[tier])
        with pytest.raises(holdfast.CorruptError, match="damaged"):
            holdfast.Saver(tmp_path / "run", tiers=[tier])
    assert sorted((bucket / "gpt").rglob("*")) == held


def test_a_lost_run_comes_back_from_a_tier_without_its_run_file(tmp_path, caplog):
    train(tmp_path / "run", 0, 2, tiers=[tmp_path / "copies"])
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "copies" / "holdfast.json").unlink()
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        train(tmp_path / "run", 3, 3, tiers=[tmp_path / "copies"])
    assert "holdfast.json is missing" in caplog.text  # for this reason nothing was copied there


def test_a_new_run_leaves_another_runs_tier_alone(tmp_path):
    train(tmp_path / "one", 0, 1, tiers=[tmp_path / "copies"])
    train(tmp_path / "two", 0, 1)
    before = sorted((tmp_path / "copies").rglob("*"))
    shutil.rmtree(tmp_path / "two" / "step-00000000")
    shutil.rmtree(tmp_path / "two" / "step-00000001")
    with pytest.raises(holdfast.ConflictError, match="holds the run .* another place"):
        train(tmp_path / "two", 0, 0, tiers=[tmp_path / "copies"])
    assert sorted((tmp_path / "copies").rglob("*")) == before


def test_a_run_may_start_without_a_silent_tier_where_that_is_allowed(tmp_path, caplog):
    (tmp_path / "tier").write_text("no folder")
    with pytest.raises(ValueError, match="allow_unreachable_tiers"):
        train(tmp_path / "run", 0, 0, tiers=[tmp_path / "tier"])
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        train(tmp_path / "run", 0, 0, tiers=[tmp_path / "tier"], allow_unreachable_tiers=True)
    assert "step 0 is not on" in caplog.text


def test_the_next_owner_is_newer_than_all_that_a_silent_tier_may_hold(tmp_path):
    tier = tmp_path / "tier"
    train(tmp_path / "run", 0, 0, tiers=[tier])
    tier.rename(tmp_path / "away")
    tier.write_text("no folder")
    train(tmp_path / "run", 1, 1, tiers=[tier])
    manifest = json.loads((tmp_path / "run" / "step-00000001" / "manifest.json").read_text())
    assert manifest["epoch"] > 1_500_000_000


def test_removals_from_a_tier_are_told(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="holdfast"):
        for step in range(3):
            train(tmp_path / "run", step, step, tiers=[tmp_path / "tier"], keep=1)
    lines = [record for record in caplog.records if "was removed from the tier" in record.message]
    assert [record.levelname for record in lines] == ["INFO", "INFO"]
    assert [f"step {step} was" in line.message for step, line in enumerate(lines)] == [True] * 2


def test_a_pinned_step_stays_in_a_tier(tmp_path):
    for step in range(4):
        train(tmp_path / "run", step, step, tiers=[tmp_path / "tier"], keep=1)
        if step == 1:
            assert run("pin", tmp_path / "run", "1").returncode == 0
    assert sorted(path.name for path in (tmp_path / "tier").glob("step-*")) == [
        "step-00000001", "step-00000003"]


@pytest.mark.parametrize("place", ["gs://bucket/gpt", "S3://bucket/gpt", "ftp://host/gpt",
                                   "file:///tmp/gpt", Path("gs://bucket/gpt"), ""])
def test_what_is_no_place_is_refused_by_name_and_makes_no_folder(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    sentence = "expected"
    model, optimizer = made()
    values = {"w": np.zeros(4, np.float32)}
    np.save("there.npy", values["w"])
    calls = [
        lambda: holdfast.Checkpointer(place, model=model, optimizer=optimizer,
                                      failures=holdfast.Failures(signals=False)),
        lambda: holdfast.Checkpointer("run", model=model, optimizer=optimizer, tiers=[place],
                                      failures=holdfast.Failures(signals=False)),
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


def test_a_full_disk_while_fetching_is_no_reason_for_an_older_step(tmp_path):
    train(tmp_path / "copied", 0, 2, tiers=[tmp_path / "tier"])
    script = """
import resource, sys, signal
import numpy as np
import holdfast
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 10, 8 << 10))
try:
    holdfast.restore(sys.argv[1], {}, tiers=[sys.argv[2]])
except OSError as error:
    print(error)
else:
    print("an older step")
"""
    shutil.rmtree(tmp_path / "copied")
    seen = subprocess.run([sys.executable, "-c", script, tmp_path / "run", tmp_path / "tier"],
                          capture_output=True, text=True)
    assert "step 2 is on" in seen.stdout and "no older step is taken" in seen.stdout, seen


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
