"""TensorFlow's checkpoints on the command line, and with real TensorFlow where it is installed."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

from command import output_of, run
import numpy as np
import pytest

import holdfast

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "tensorflow"
ATTACKS = ROOT / "tests" / "attacks" / "tensorflow"


def test_a_checkpoint_is_shown_verified_converted_and_compared(tmp_path):
    prefix = FIXTURES / "variables"
    shown = output_of("show", prefix, "--tensors")
    assert "TensorFlow checkpoint" in shown and "301 tensors" in shown
    assert "model/layers/7/.ATTRIBUTES/VARIABLE_VALUE" in shown
    output_of("verify", prefix)
    for target in ("there.safetensors", "there.pt", "there.npz", "there.h5"):
        output_of("convert", prefix, tmp_path / target)
        assert "301 of 301 tensors are equal" in output_of("diff", prefix, tmp_path / target)
        back = tmp_path / f"back-{target}"
        output_of("convert", tmp_path / target, back, "--format", "tensorflow")
        assert "301 of 301 tensors are equal" in output_of("diff", prefix, back)
        output_of("verify", back)


def test_an_index_whose_end_is_damaged_is_damage(tmp_path):
    for path in FIXTURES.glob("two_shards.*"):
        shutil.copy(path, tmp_path)
    index = tmp_path / "two_shards.index"
    data = bytearray(index.read_bytes())
    data[-1] ^= 1
    index.write_bytes(data)
    for name in ("two_shards", "two_shards.index"):
        report = output_of("verify", tmp_path / name, code=3)
        assert "DAMAGED" in report and "the mark of an index" in report, report


def test_damage_is_named_by_file_bytes_and_tensor(tmp_path):
    for path in FIXTURES.glob("two_shards.*"):
        shutil.copy(path, tmp_path)
    shard = tmp_path / "two_shards.data-00000-of-00002"
    data = bytearray(shard.read_bytes())
    data[50] ^= 1
    shard.write_bytes(data)
    report = output_of("verify", tmp_path / "two_shards", code=3)
    assert f"{shard.name}, bytes 48 to 58, in b: has crc32c " in report, report


@pytest.mark.parametrize("name, line", json.loads((ATTACKS / "odd.json").read_text()).items())
def test_one_odd_tensor_is_left_out_by_name_and_the_rest_is_converted(tmp_path, name, line):
    prefix = ATTACKS / name
    assert f"left out: {line}" in output_of("show", prefix)
    assert f"left out: {line}" in output_of("convert", prefix, tmp_path / "rest.npz")
    opened = holdfast.open(prefix)
    assert opened.left_out == [line] and len(opened.keys()) == len(np.load(tmp_path / "rest.npz").files)
    with pytest.raises(NotImplementedError, match=re.escape(line)):
        opened.read(line.partition(":")[0])
    refused = run("inject", prefix, tmp_path / "struck", "--tensors", line.partition(":")[0])
    assert refused.returncode != 0 and not list(tmp_path.glob("struck*")), refused.stderr


SAVE = """
import sys
import tensorflow as tf
model = tf.Module()
model.w = tf.Variable(tf.random.stateless_normal((5, 3), (1, 2)))
model.b = tf.Variable(tf.cast(tf.random.stateless_normal((7,), (3, 4)), tf.bfloat16))
model.table = tf.Variable([b"a", b"bc"])
tf.train.CheckpointManager(
    tf.train.Checkpoint(model=model, step=tf.Variable(12, dtype=tf.int64)), sys.argv[1], 3
).save()
"""
RESTORE = """
import sys
import numpy as np
import tensorflow as tf
model = tf.Module()
model.w = tf.Variable(tf.zeros((5, 3)))
model.b = tf.Variable(tf.zeros((7,), tf.bfloat16))
model.table = tf.Variable([b"", b""])
step = tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(model=model, step=step)
newest = tf.train.latest_checkpoint(sys.argv[1])
checkpoint.restore(newest).assert_consumed()
assert int(step) == 12
assert np.array_equal(model.w.numpy(), tf.random.stateless_normal((5, 3), (1, 2)).numpy())
b = tf.cast(tf.random.stateless_normal((7,), (3, 4)), tf.bfloat16)
assert model.b.numpy().tobytes() == b.numpy().tobytes()
assert model.table.numpy().tolist() == [b"a", b"bc"]
"""


def test_tensorflow_restores_what_was_converted_there_and_back(tmp_path):
    python = os.environ.get("HOLDFAST_TENSORFLOW_PYTHON")
    if not python:
        pytest.skip("HOLDFAST_TENSORFLOW_PYTHON names no Python with TensorFlow")

    def tensorflow(program, folder):
        done = subprocess.run([python, "-c", program, folder], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    tensorflow(SAVE, tmp_path / "saved")
    output_of("verify", tmp_path / "saved")
    for target in ("there.safetensors", "there.pt", "there.npz", "there.h5"):
        output_of("convert", tmp_path / "saved", tmp_path / target)
        back = tmp_path / f"back-{target}"
        output_of("convert", tmp_path / target, back, "--format", "tensorflow")
        tensorflow(RESTORE, back)
