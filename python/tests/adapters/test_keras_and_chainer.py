"""holdfast.keras and holdfast.chainer: trainings that are killed go on with the same bits."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from long_tests import LONG

ROOT = Path(__file__).resolve().parents[3]
KERAS = """
import os, signal, sys
import keras
import numpy as np
from keras import layers
import holdfast.keras

_, run, often, epoch, batch = sys.argv

class Die(keras.callbacks.Callback):
    def on_epoch_begin(self, number, logs=None):
        self.epoch = number

    def on_train_batch_end(self, number, logs=None):
        if (self.epoch, number) == (int(epoch), int(batch)):
            os.kill(os.getpid(), signal.SIGKILL)

keras.utils.set_random_seed(7)
model = keras.Sequential([keras.Input((16,)), layers.Dense(8, activation="relu"), layers.BatchNormalization(),
                          layers.Dropout(0.3), layers.Dense(4)])
model.compile(keras.optimizers.Adam(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
x = np.random.RandomState(0).rand(128, 16).astype("f4")
backup = holdfast.keras.BackupAndRestore(run, save_freq=often if often == "epoch" else int(often))
model.fit(x, np.arange(128) % 4, batch_size=32, epochs=4, verbose=0, callbacks=[backup, Die()])
print(b"".join(np.ascontiguousarray(weight).tobytes() for weight in model.get_weights()).hex())
"""
CHAINER = """
import os, signal, sys
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import holdfast.chainer

_, run, often, epoch, batch = sys.argv

class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.first, self.norm, self.last = L.Linear(16, 8), L.BatchNormalization(8), L.Linear(8, 4)

    def forward(self, x, shown):
        return F.softmax_cross_entropy(self.last(F.dropout(F.relu(self.norm(self.first(x))), 0.3)), shown)

@chainer.training.make_extension(trigger=(1, "iteration"), priority=-200)
def die(trainer):
    if trainer.updater.iteration == 4 * int(epoch) + int(batch) + 1:
        os.kill(os.getpid(), signal.SIGKILL)

np.random.seed(7)
net = Net()
optimizer = chainer.optimizers.Adam(0.01)
optimizer.setup(net)
x = np.random.RandomState(0).rand(128, 16).astype("f4")
data = chainer.datasets.TupleDataset(x, (np.arange(128) % 4).astype("i4"))
updater = chainer.training.StandardUpdater(chainer.iterators.SerialIterator(data, 32), optimizer)
trainer = chainer.training.Trainer(updater, (4, "epoch"), out=run + "-out")
trainer.extend(chainer.training.extensions.LogReport(trigger=(1, "iteration")))
trainer.extend(holdfast.chainer.snapshot(run), trigger=(1, "epoch") if often == "epoch" else (int(often), "iteration"))
trainer.extend(die)
trainer.run()
found = [*(one.array for _, one in sorted(net.namedparams())), net.norm.avg_mean, net.norm.avg_var]
print(b"".join(np.ascontiguousarray(array).tobytes() for array in found).hex())
"""


def python_of(framework):
    if framework == "keras-torch":
        return sys.executable
    python = ROOT / f".cache/{framework}/bin/python"
    if not python.exists():
        pytest.skip(f"needs scripts/foreign_environment.sh {framework}")
    return python


@pytest.fixture
def train(tmp_path):
    """Runs a script until it ends, or dies in a batch of an epoch."""

    def trained(framework, run, often="epoch", epoch=-1, batch=-1):
        script = tmp_path / "train.py"
        script.write_text(CHAINER if framework == "chainer" else KERAS)
        backend = {"KERAS_BACKEND": "torch" if framework == "keras-torch" else "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3",
                   "PYTHONPATH": str(Path(holdfast.__file__).parents[1]), "OMP_NUM_THREADS": "1"}  # fmt: skip
        return subprocess.run([python_of(framework), script, tmp_path / run, str(often), str(epoch), str(batch)],
                              capture_output=True, text=True, check=False, env=os.environ | backend)  # fmt: skip

    return trained


@LONG
@pytest.mark.parametrize(("framework", "often"), [("keras-torch", "epoch"), ("tensorflow", "epoch"), ("chainer", "epoch"),
                                                  ("chainer", 3)])  # fmt: skip
def test_a_training_that_is_killed_goes_on_with_the_same_bits(train, framework, often):
    whole = train(framework, "whole", often)
    assert whole.returncode == 0, whole.stderr
    assert train(framework, "killed", often, 2, 1).returncode == -signal.SIGKILL
    resumed = train(framework, "killed", often)
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == whole.stdout and len(whole.stdout) > 100


@LONG
def test_in_the_middle_of_an_epoch_keras_says_what_is_inexact(train):
    assert train("keras-torch", "killed", 3, 1, 3).returncode == -signal.SIGKILL
    resumed = train("keras-torch", "killed", 3)
    assert resumed.returncode == 0 and "the epoch's data begin anew" in resumed.stderr


@LONG
def test_wrong_calls_of_the_keras_callback(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    import keras

    from holdfast.keras import BackupAndRestore

    with pytest.raises(ValueError, match="save_freq='never'"):
        BackupAndRestore(tmp_path / "run", save_freq="never")
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    callback = BackupAndRestore(tmp_path / "run")
    callback.set_model(model)
    with pytest.raises(ValueError, match="not built"):
        callback.on_train_begin()
