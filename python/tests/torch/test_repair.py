"""`holdfast repair` on what a Checkpointer and torch.save() have written."""

import json
import subprocess
from pathlib import Path

import torch
from torch import nn

import holdfast

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"


def run(*words, code=0):
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def hurt(path, *offsets):
    data = bytearray(path.read_bytes())
    for offset in offsets:
        data[offset] ^= 0x41
    path.write_bytes(data)


def save(run_folder, **options):
    torch.manual_seed(0)
    model = nn.Linear(300, 200)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Checkpointer(run_folder, model=model, optimizer=optimizer, every="never",
                               writing=holdfast.Writing(space_reserve=0, **options),
                               failures=holdfast.Failures(signals=False)) as ck:
        ck.resume()
        ck.step(0)
        ck.save(0)
    return next(Path(run_folder).glob("step-*"))


def test_a_step_with_parity_is_mended_in_place(tmp_path):
    step = save(tmp_path / "run", parity=0.02)
    shard = step / "rank-0000.safetensors"
    good = {path.name: path.read_bytes() for path in step.iterdir()}
    assert shard.name + ".parity" in good
    hurt(shard, 50_000, 50_100, 50_900)
    said = json.loads(run("repair", f"{tmp_path}/run@0", "--json"))
    assert [part["rung"] for part in said["mended"]] == ["parity"]
    assert said["lost"] == []
    assert {path.name: path.read_bytes() for path in step.iterdir()} == good


def test_what_no_rung_can_mend_is_named_and_a_copy_mends_it(tmp_path):
    step = save(tmp_path / "run")
    shard = step / "rank-0000.safetensors"
    good = shard.read_bytes()
    run("convert", f"{tmp_path}/run@0", tmp_path / "copy.pt")
    hurt(shard, 50_000, 50_100, 50_900)
    bad = shard.read_bytes()
    said = run("repair", f"{tmp_path}/run@0", code=3)
    for text in ("model.weight", "seal: more than one word", "crc: the chunk has more damage",
                 "parity: the shard was saved without parity", "nothing was changed"):
        assert text in said
    assert shard.read_bytes() == bad
    said = run("repair", f"{tmp_path}/run@0", "--from", tmp_path / "copy.pt")
    assert "copy.pt" in said and "is whole" in said
    assert shard.read_bytes() == good


def test_a_step_is_mended_from_the_tier_that_the_events_name(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(300, 200)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer, every="never",
                               tiers=[str(tmp_path / "tier")],
                               writing=holdfast.Writing(space_reserve=0),
                               failures=holdfast.Failures(signals=False)) as ck:
        ck.resume()
        ck.step(0)
        ck.save(0)
    step = next((tmp_path / "run").glob("step-*"))
    shard = step / "rank-0000.safetensors"
    good = shard.read_bytes()
    hurt(shard, 50_000, 50_100, 50_900)
    assert f"from tier {tmp_path}/tier" in run("repair", f"{tmp_path}/run@0")
    assert shard.read_bytes() == good


def test_views_that_overlap_are_mended_once(tmp_path):
    base = torch.randn(100)
    path = tmp_path / "views.pt"
    torch.save({"base": base, "view": base[20:60], "odd": base[1::2]}, path)
    run("seal", path)
    good = path.read_bytes()
    at = good.find(base.numpy().tobytes()) + 4 * 31
    hurt(path, at)
    run("repair", path, "--in-place")
    assert path.read_bytes() == good
    # The seal of the other view would have to change, too.
    said = subprocess.run([PROGRAM, "inject", path, tmp_path / "new.pt", "--tensors", "odd",
                           "--checksums", "sealed"], capture_output=True, text=True, check=False)
    assert said.returncode != 0 and "shares its bytes with" in said.stderr


def test_a_role_that_selects_nothing_is_refused_by_name(tmp_path):
    torch.save({"w": torch.randn(10)}, tmp_path / "a.pt")
    said = subprocess.run([PROGRAM, "inject", tmp_path / "a.pt", "--roles", "parameter", "slot",
                           "--dry-run"], capture_output=True, text=True, check=False)
    assert said.returncode == 4 and "role slot: no selected tensor has it" in said.stderr
