"""TensorFlow's and Keras's own ways to save, as their manuals say.

Nothing here computes when it is imported: a process that has computed with TensorFlow cannot be forked.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
import keras  # noqa: E402: it reads the variables
import tensorflow as tf  # noqa: E402: as above
from engine import Engine, Load, Save  # noqa: E402
from states import FIRST, SHAPES, OlderIsWhole, State, is_previous  # noqa: E402

# Variables in a module


def make_module() -> tf.Module:
    module = tf.Module()
    module.all = {name: tf.Variable(tf.zeros(shape)) for name, shape in SHAPES.items()}
    return module


def fill_module(module: tf.Module, state: State) -> None:
    for name, array in state.items():
        module.all[name].assign(array)


def read_module(module: tf.Module) -> State:
    return {name: variable.numpy() for name, variable in module.all.items()}


def make_manager(folder: Path) -> tuple[tf.Module, tf.train.CheckpointManager]:
    module = make_module()
    return module, tf.train.CheckpointManager(tf.train.Checkpoint(model=module), str(folder), max_to_keep=2)


def save_managed(step: int, state: State, folder: Path) -> None:
    module, manager = make_manager(folder)
    fill_module(module, state)
    manager.save(checkpoint_number=step)


def load_managed(folder: Path) -> State | None:
    module, manager = make_manager(folder)

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


def save_written(step: int, state: State, folder: Path) -> None:
    module = make_module()
    fill_module(module, state)
    tf.train.Checkpoint(model=module).write(str(folder / "last"))


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
    tables = [keras.layers.Embedding(*(shape if len(shape) == 2 else (1, *shape)), name=name)
              for name, shape in SHAPES.items()]  # fmt: skip
    return keras.Model(given, [table(given) for table in tables])


def fill_model(model: keras.Model, state: State) -> None:
    for name, array in state.items():
        (weight,) = model.get_layer(name).weights
        weight.assign(array.reshape(weight.shape))


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
    def save(step: int, state: State, folder: Path) -> None:
        model = make_model()
        fill_model(model, state)
        write(model, folder / name)

    def load(folder: Path) -> State | None:
        return read_model(read(folder / name)) if (folder / name).exists() else None

    return save, load


def write_whole(model: keras.Model, path: Path) -> None:
    model.save(path, overwrite=True)


def write_weights(model: keras.Model, path: Path) -> None:
    model.save_weights(path, overwrite=True)


def backup(**options: bool) -> tuple[Save, Load]:
    """The callback that resumes an interrupted fit()."""

    def attach(folder: Path) -> tuple[keras.Model, keras.callbacks.Callback]:
        model = make_model()
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
        callback = keras.callbacks.BackupAndRestore(str(folder / "backup"), delete_checkpoint=False, **options)
        callback.set_model(model)
        callback.set_params({"epochs": 9})
        return model, callback

    def save(step: int, state: State, folder: Path) -> None:
        model, callback = attach(folder)
        fill_model(model, state)
        callback.on_epoch_end(step)

    def load(folder: Path) -> State | None:
        model, callback = attach(folder)
        before = read_model(model)
        callback.on_train_begin()
        found = read_model(model)
        return None if all((found[name] == before[name]).all() for name in SHAPES) else found

    return save, load


ENGINES = [
    Engine("tf.train.CheckpointManager", "tensorflow", save_managed, load_managed),
    Engine("tf.train.Checkpoint.write", "tensorflow", save_written, load_written),
    Engine("keras.save-keras", "keras", *over_one_file("last.keras", write_whole, read_whole)),
    Engine("keras.save-h5", "keras", *over_one_file("last.h5", write_whole, read_whole)),
    Engine("keras.save_weights", "keras", *over_one_file("last.weights.h5", write_weights, read_weights)),
    Engine("keras.BackupAndRestore", "keras", *backup()),
    Engine("keras.BackupAndRestore-double", "keras", *backup(double_checkpoint=True)),
]
