"""Chainer's serializers over one name, and its snapshot extension, which is numbered and loads by itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import chainer
import numpy as np
from chainer import serializers
from chainer.training import extensions
from engine import Engine, Load, Save
from states import FIRST, SHAPES, OlderIsWhole, State, is_previous


class Model(chainer.Chain):
    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            for name, shape in SHAPES.items():
                setattr(self, name, chainer.Parameter(np.zeros(shape, np.float32)))

    def fill(self, state: State) -> None:
        for name, array in state.items():
            getattr(self, name).array[...] = array

    def read(self) -> State:
        return {name: getattr(self, name).array for name in SHAPES}


def over_one_name(name: str, write: Callable[[str, Any], None], read: Callable[[str, Any], None]) -> tuple[Save, Load]:
    def save(step: int, state: State, folder: Path) -> None:
        model = Model()
        model.fill(state)
        write(str(folder / name), model)

    def load(folder: Path) -> State | None:
        if not (folder / name).exists():
            return None
        model = Model()
        read(str(folder / name), model)
        return model.read()

    return save, load


class Trainer:
    """What the snapshot extension asks of a trainer."""

    def __init__(self, folder: Path, step: int) -> None:
        self.out, self.model, self.updater = str(folder), Model(), self
        self.iteration = self.epoch = step
        self.is_before_training = False

    def serialize(self, serializer: Any) -> None:
        self.model.serialize(serializer["model"])


def snapshot(**options: bool) -> Any:
    return extensions.snapshot(filename="snapshot_{.updater.iteration}", n_retains=2, **options)


def save_snapshot(step: int, state: State, folder: Path) -> None:
    trainer = Trainer(folder, step)
    trainer.model.fill(state)
    snapshot()(trainer)


def load_snapshot(folder: Path) -> State | None:
    trainer = Trainer(folder, 0)
    try:
        snapshot(autoload=True).initialize(trainer)
    except Exception as error:
        if is_previous(lambda: load_by_hand(folder / f"snapshot_{FIRST}")):
            raise OlderIsWhole(str(error)) from error
        raise
    return trainer.model.read() if trainer.model.w0.array.any() else None


def load_by_hand(path: Path) -> State:
    trainer = Trainer(path.parent, 0)
    serializers.load_npz(str(path), trainer)
    return trainer.model.read()


ENGINES = [
    Engine("chainer.save_npz", "chainer", *over_one_name("last.npz", serializers.save_npz, serializers.load_npz)),
    Engine("chainer.save_hdf5", "chainer", *over_one_name("last.h5", serializers.save_hdf5, serializers.load_hdf5)),
    Engine("chainer.snapshot", "chainer", save_snapshot, load_snapshot),
]
