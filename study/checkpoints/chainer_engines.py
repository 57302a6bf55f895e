"""Chainer's serializers over one name, and its snapshot extension, which is numbered and loads by itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import chainer
import h5py
import numpy as np
from chainer import serializers
from chainer.training import extensions
from engine import Engine, Load, Save
from states import FIRST, SHAPES, OlderIsWhole, State, blank, is_previous


class Model(chainer.Chain):
    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            for name, array in blank().items():
                if array.dtype == np.float32:
                    setattr(self, name, chainer.Parameter(array))
                else:
                    self.add_persistent(name, array)

    def read(self) -> State:
        return {name: getattr(getattr(self, name), "array", getattr(self, name)) for name in SHAPES}


def hold(state: State) -> Model:
    model = Model()
    for name, array in model.read().items():
        array[...] = state[name]
    return model


def write_to(name: str, write: Callable[..., None], **options: Any) -> Save:
    return lambda step, held, folder: write(str(folder / name), held, **options)


def over_one_name(name: str, write: Callable[..., None], read: Callable[[str, Any], None]) -> tuple[Save, Load]:
    def load(folder: Path) -> State | None:
        if not (folder / name).exists():
            return None
        model = Model()
        read(str(folder / name), model)
        return model.read()

    return write_to(name, write), load


class Trainer:
    """What the snapshot extension asks of a trainer."""

    def __init__(self, folder: Path, step: int, model: Model) -> None:
        self.out, self.model, self.updater = str(folder), model, self
        self.iteration = self.epoch = step
        self.is_before_training = False

    def serialize(self, serializer: Any) -> None:
        self.model.serialize(serializer["model"])


def snapshot(**options: Any) -> Any:
    return extensions.snapshot(filename="snapshot_{.updater.iteration}", n_retains=2, **options)


def save_snapshot(step: int, held: Model, folder: Path) -> None:
    snapshot()(Trainer(folder, step, held))


def save_plain_snapshot(step: int, held: Model, folder: Path) -> None:
    def write(name: str, values: State) -> None:
        with open(name, "wb") as file:  # savez would add .npz to a name
            np.savez(file, **values)

    writer = extensions.snapshot_writers.SimpleWriter(savefun=write)
    snapshot(writer=writer)(Trainer(folder, step, held))


def load_snapshot(folder: Path) -> State | None:
    trainer = Trainer(folder, 0, Model())
    try:
        snapshot(autoload=True).initialize(trainer)
    except Exception as error:
        if is_previous(lambda: load_by_hand(folder / f"snapshot_{FIRST}")):
            raise OlderIsWhole(str(error)) from error
        raise
    found = trainer.model.read()
    return found if any(array.any() for array in found.values()) else None


def load_by_hand(path: Path) -> State:
    trainer = Trainer(path.parent, 0, Model())
    serializers.load_npz(str(path), trainer)
    return trainer.model.read()


def load_one_npz(folder: Path, name: str) -> Any:
    with np.load(folder / "last.npz") as file:
        return file[name]


def load_one_hdf5(folder: Path, name: str) -> Any:
    with h5py.File(folder / "last.h5") as file:
        return file[name][()]


ENGINES = [
    Engine("chainer.save_npz", "chainer", hold, *over_one_name("last.npz", serializers.save_npz, serializers.load_npz),
           load_one=load_one_npz, without={"deflate": write_to("last.npz", serializers.save_npz, compression=False)}),
    Engine("chainer.save_hdf5", "chainer", hold, *over_one_name("last.h5", serializers.save_hdf5, serializers.load_hdf5),
           load_one=load_one_hdf5, without={"deflate": write_to("last.h5", serializers.save_hdf5, compression=None)}),
    Engine("chainer.snapshot", "chainer", hold, save_snapshot, load_snapshot, without={"deflate": save_plain_snapshot}),
]  # fmt: skip
