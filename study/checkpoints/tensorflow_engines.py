"""TensorFlow's and Keras's own ways to save, as their manuals say.

Nothing here computes when it is imported: a process that has computed with TensorFlow cannot be forked.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
import h5py  # noqa: E402: as above
import keras  # noqa: E402: it reads the variables
import numpy as np  # noqa: E402: as above
import tensorflow as tf  # noqa: E402: as above
from engine import Engine, Load, Save  # noqa: E402
from states import FIRST, SHAPES, OlderIsWhole, State, blank, dtype_of, is_previous  # noqa: E402

# Variables in a module


def make_module() -> tf.Module:
    module = tf.Module()
    module.all = {name: tf.Variable(array) for name, array in blank().items()}
    return module


def hold_module(state: State) -> tf.Module:
    module = make_module()
    for name, array in state.items():
        module.all[name].assign(array)
    return module


def read_module(module: tf.Module) -> State:
    return {name: variable.numpy() for name, variable in module.all.items()}


def manage(module: tf.Module, folder: Path) -> tf.train.CheckpointManager:
    return tf.train.CheckpointManager(tf.train.Checkpoint(model=module), str(folder), max_to_keep=2)


def save_managed(step: int, held: tf.Module, folder: Path) -> None:
    manage(held, folder).save(checkpoint_number=step)


def load_managed(folder: Path) -> State | None:
    module = make_module()
    manager = manage(module, folder)

    def restore(path: str) -> State:
        manager.checkpoint.restore(path).assert_consumed()
        return read_module(module)

    if manager.latest_checkpoint is None:
        return None
    try:
        return restore(manager.latest_checkpoint)
    except Exception as error:
        if is_previous(lambda: restore(str(folder / f"ckpt-{FIRST}"))):
            raise OlderIsWhole(str(error)) from error
        raise


def save_written(step: int, held: tf.Module, folder: Path) -> None:
    tf.train.Checkpoint(model=held).write(str(folder / "last"))


def load_written(folder: Path) -> State | None:
    module = make_module()
    if not (folder / "last.index").exists():
        return None
    tf.train.Checkpoint(model=module).read(str(folder / "last")).assert_consumed()
    return read_module(module)


# Weights of a Keras model


def make_model() -> keras.Model:
    """A model whose weights have the shapes of the state: embeddings are matrices of any shape."""
    given = keras.Input((1,), dtype="int32")
    tables = [keras.layers.Embedding(*table_shape(name), name=name) for name in SHAPES]
    return keras.Model(given, [table(given) for table in tables])


def table_shape(name: str) -> tuple[int, int]:
    """Two axes with as many bytes: other types of numbers are kept as the bits of floats."""
    shape = SHAPES[name]
    rows = shape[0] if len(shape) > 1 else 1
    return rows, math.prod(shape) * np.dtype(dtype_of(name)).itemsize // 4 // rows


def hold_model(state: State) -> keras.Model:
    model = make_model()
    for name, array in state.items():
        model.get_layer(name).weights[0].assign(array.reshape(-1).view(np.float32).reshape(table_shape(name)))
    return model


def read_model(model: keras.Model) -> State:
    return {name: model.get_layer(name).weights[0].numpy() for name in SHAPES}


def read_whole(path: Path) -> keras.Model:
    return keras.models.load_model(path, compile=False)


def read_weights(path: Path) -> keras.Model:
    model = make_model()
    model.load_weights(path)
    return model


def over_one_file(name: str, write: Callable[[keras.Model, Path], Any],
                  read: Callable[[Path], keras.Model]) -> tuple[Save, Load]:  # fmt: skip
    def save(step: int, held: keras.Model, folder: Path) -> None:
        write(held, folder / name)

    def load(folder: Path) -> State | None:
        return read_model(read(folder / name)) if (folder / name).exists() else None

    return save, load


def write_whole(model: keras.Model, path: Path) -> None:
    model.save(path, overwrite=True)


def write_weights(model: keras.Model, path: Path) -> None:
    model.save_weights(path, overwrite=True)


def backup(**options: bool) -> tuple[Save, Load]:
    """The callback that resumes an interrupted fit()."""

    def attach(model: keras.Model, folder: Path) -> keras.callbacks.Callback:
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        callback = keras.callbacks.BackupAndRestore(str(folder / "backup"), delete_checkpoint=False, **options)
        callback.set_model(model)
        callback.set_params({"epochs": 9})
        return callback

    def save(step: int, held: keras.Model, folder: Path) -> None:
        attach(held, folder).on_epoch_end(step)

    def load(folder: Path) -> State | None:
        model = make_model()
        before = read_model(model)
        attach(model, folder).on_train_begin()
        found = read_model(model)
        return None if all((found[name] == before[name]).all() for name in SHAPES) else found

    return save, load


# One tensor of many


def load_one_of_bundle(path: Callable[[Path], str | None]) -> Callable[[Path, str], Any]:
    def load_one(folder: Path, name: str) -> Any:
        reader = tf.train.load_checkpoint(path(folder))
        return reader.get_tensor(f"model/all/{name}/.ATTRIBUTES/VARIABLE_VALUE")

    return load_one


def load_one_of_h5(folder: Path, name: str) -> Any:
    with h5py.File(folder / "last.h5") as file:
        group = file["model_weights"][name]
        return group[group.attrs["weight_names"][0]][()]


def on_module(name: str, both: tuple[Save, Load], **more: Any) -> Engine:
    return Engine(name, "tensorflow", hold_module, *both, **more)


def on_model(name: str, both: tuple[Save, Load], **more: Any) -> Engine:
    return Engine(name, "keras", hold_model, *both, **more)


ENGINES = [
    on_module("tf.train.CheckpointManager", (save_managed, load_managed),
              load_one=load_one_of_bundle(lambda folder: tf.train.latest_checkpoint(folder))),
    on_module("tf.train.Checkpoint.write", (save_written, load_written),
              load_one=load_one_of_bundle(lambda folder: str(folder / "last"))),
    on_model("keras.save-keras", over_one_file("last.keras", write_whole, read_whole)),
    on_model("keras.save-h5", over_one_file("last.h5", write_whole, read_whole), load_one=load_one_of_h5),
    on_model("keras.save_weights", over_one_file("last.weights.h5", write_weights, read_weights)),
    on_model("keras.BackupAndRestore", backup()),
    on_model("keras.BackupAndRestore-double", backup(double_checkpoint=True)),
]  # fmt: skip
