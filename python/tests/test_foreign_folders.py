"""Folders of tools whose checkpoints are not read: the message says what to do, and that works."""

import os
import subprocess
from pathlib import Path

import pytest

import holdfast

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"


def run(*words, code=0):
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("names, tool", [
    (["latest", "global_step5/", "zero_to_fp32.py"], "zero_to_fp32.py"),
    (["bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt"],
     "zero_to_fp32.py"),
    (["_CHECKPOINT_METADATA", "default/"], "orbax.checkpoint"),
    (["_METADATA", "manifest.ocdbt", "d/", "ocdbt.process_0/"], "orbax.checkpoint"),
])
def test_folders_of_other_tools_are_named_with_what_converts_them(tmp_path, names, tool):
    for name in names:
        path = tmp_path / name
        path.mkdir() if name.endswith("/") else path.write_bytes(b"x")
    assert tool in run("show", tmp_path, code=1)
    with pytest.raises(NotImplementedError, match=tool.replace(".", r"\.")):
        holdfast.open(tmp_path)


def python_of(variable):
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} names no Python (scripts/foreign_environment.sh)")
    return python


def call(*words, folder):
    done = subprocess.run(list(map(str, words)), cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SAVE_ORBAX = """
import sys
import jax.numpy as jnp
import orbax.checkpoint as ocp
with ocp.CheckpointManager(sys.argv[1]) as manager:
    state = {"w": jnp.arange(6.0).reshape(2, 3), "layer": {"b": jnp.ones(4, jnp.bfloat16)}}
    manager.save(5, args=ocp.args.StandardSave(state))
"""
# "the arrays that orbax.checkpoint restores from it, saved by safetensors or numpy"
RESTORE_ORBAX = """
import sys
import numpy
import orbax.checkpoint as ocp
import safetensors.numpy
with ocp.StandardCheckpointer() as checkpointer:
    state = checkpointer.restore(sys.argv[1])
arrays = {"w": numpy.asarray(state["w"]), "layer.b": numpy.asarray(state["layer"]["b"])}
safetensors.numpy.save_file(arrays, "restored.safetensors")
numpy.savez("restored.npz", w=arrays["w"])
"""


def test_the_arrays_that_orbax_restores_are_read(tmp_path):
    python = python_of("HOLDFAST_ORBAX_PYTHON")
    saved = tmp_path / "saved"
    call(python, "-c", SAVE_ORBAX, saved, folder=tmp_path)
    for folder in (saved / "5", saved / "5" / "default"):
        assert "orbax.checkpoint" in run("show", folder, code=1)
    call(python, "-c", RESTORE_ORBAX, saved / "5" / "default", folder=tmp_path)
    read = holdfast.open(tmp_path / "restored.safetensors")
    assert read.read("w").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read["layer.b"].dtype.name == "BF16"
    assert holdfast.open(tmp_path / "restored.npz").read("w").tolist() == [[0, 1, 2], [3, 4, 5]]


# One process, whose parameters and Adam's state ZeRO cuts into flat parts.
SAVE_ZERO = """
import sys
import deepspeed
import torch
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
engine, *_ = deepspeed.initialize(
    model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.1),
    config={"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
            "zero_optimization": {"stage": int(sys.argv[2])},
            "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False})
engine.backward(engine(torch.ones(1, 4, dtype=torch.bfloat16)).sum())
engine.step()
engine.save_checkpoint(sys.argv[1])
"""


@pytest.mark.parametrize("stage", [2, 3])
def test_the_model_that_the_script_of_deepspeed_joins_is_read(tmp_path, monkeypatch, stage):
    python = python_of("HOLDFAST_DEEPSPEED_PYTHON")
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29736", "RANK": "0",
                        "WORLD_SIZE": "1", "LOCAL_RANK": "0", "DS_ACCELERATOR": "cpu"}.items():
        monkeypatch.setenv(name, value)
    saved = tmp_path / "saved"
    call(python, "-c", SAVE_ZERO, saved, stage, folder=tmp_path)
    for folder in (saved, saved / "global_step1"):
        assert "expected the model that its script zero_to_fp32.py joins from it" in run(
            "show", folder, code=1)
    # "the model that its script zero_to_fp32.py joins from it"
    call(python, "zero_to_fp32.py", ".", "joined", folder=saved)
    call(python, "zero_to_fp32.py", ".", "safe", "--safe_serialization", folder=saved)
    for folder in (saved / "joined", saved / "safe"):
        read = holdfast.open(folder)
        assert {name: list(tensor.shape) for name, tensor in read.items()} == {
            "0.weight": [8, 4], "0.bias": [8], "1.weight": [2, 8], "1.bias": [2]}
    run("diff", saved / "joined", saved / "safe")
