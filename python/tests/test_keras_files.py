"""The files of real Keras, with torch under it, are read, and Keras reads what was converted."""

import os
import zipfile

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import pytest

import holdfast


def make_model(seed, last="bfloat16"):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([
        keras.Input((3,)),
        keras.layers.Dense(4),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(5, dtype=keras.DTypePolicy(last)),
    ])
    # Keras cannot load an .h5 file that names the loss "mse".
    model.compile(optimizer="adam", loss=keras.losses.MeanSquaredError())
    model.fit(np.ones((2, 3)), np.ones((2, 5)), verbose=0)
    return model


def bits(weights):
    return sorted((w.shape, np.ascontiguousarray(w).tobytes()) for w in weights)


def read_all(path):
    opened = holdfast.open(path)
    return [np.asarray(opened.read(name)) for name in opened.keys() if "optimizer" not in name]


def test_each_kind_of_file_has_the_weights(tmp_path):
    model = make_model(1)
    model.save(tmp_path / "a.keras")
    model.save_weights(tmp_path / "a.weights.h5")
    model.save_weights(tmp_path / "b.weights.json", max_shard_size=100 / 1024**3)
    assert len(list(tmp_path.glob("b_*.weights.h5"))) > 1
    want = bits(model.get_weights())
    for name in ("a.keras", "a.weights.h5", "b.weights.json"):
        seen = bits(read_all(tmp_path / name))
        assert all(one in seen for one in want), name


@pytest.mark.parametrize("between", ["a.npz", "a.safetensors", "a.pt", "a.h5"])
def test_keras_loads_what_was_converted(tmp_path, between):
    model = make_model(1)
    model.save_weights(tmp_path / "a.weights.h5")
    holdfast.convert(tmp_path / "a.weights.h5", tmp_path / between)
    holdfast.convert(tmp_path / between, tmp_path / "b.weights.h5")
    other = make_model(2)
    assert bits(other.get_weights()) != bits(model.get_weights())
    other.load_weights(tmp_path / "b.weights.h5")
    assert bits(other.get_weights()) == bits(model.get_weights())


@pytest.mark.parametrize("way", [
    ["a.h5", "b.h5"], ["a.h5", "a.npz", "b.h5"], ["a.keras", "b.keras"],
    ["a.keras", "a.h5", "b.keras"], ["a.keras", "a.npz", "b.keras"],
])  # fmt: skip
def test_keras_loads_a_whole_model_that_was_converted(tmp_path, way):
    # Keras's .h5 does not say that a weight is bfloat16, so nobody can read it again.
    model = make_model(1, "float32" if way[0] == "a.h5" else "bfloat16")
    model.save(tmp_path / way[0])
    for source, target in zip(way, way[1:]):
        holdfast.convert(tmp_path / source, tmp_path / target)
    other = keras.models.load_model(tmp_path / way[-1])
    assert bits(other.get_weights()) == bits(model.get_weights())
    assert [layer.name for layer in other.layers] == [layer.name for layer in model.layers]
    before = keras.models.load_model(tmp_path / way[0]).optimizer.variables
    after = other.optimizer.variables
    assert bits(np.asarray(v) for v in after) == bits(np.asarray(v) for v in before)


def test_a_keras_file_is_written_only_if_the_model_is_known(tmp_path):
    make_model(1).save_weights(tmp_path / "a.weights.h5")
    with pytest.raises(NotImplementedError, match="config.json"):
        holdfast.convert(tmp_path / "a.weights.h5", tmp_path / "b.keras")
    assert not (tmp_path / "b.keras").exists()


def test_a_model_with_a_record_that_cannot_be_read_is_not_written_in_part(tmp_path):
    make_model(1).save(tmp_path / "a.keras")
    with zipfile.ZipFile(tmp_path / "a.keras", "a") as archive:
        archive.writestr("assets/words.txt", "a vocabulary")
    assert [line.partition(":")[0] for line in holdfast.open(tmp_path / "a.keras").left_out] == [
        "assets/words.txt"]  # fmt: skip
    with pytest.raises(NotImplementedError, match="assets/words.txt"):
        holdfast.convert(tmp_path / "a.keras", tmp_path / "b.keras")
    holdfast.convert(tmp_path / "a.keras", tmp_path / "b.npz")
