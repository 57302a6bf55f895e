"""The training of bits.py in Chainer, and ways to resume it."""

import pickle
from pathlib import Path
from typing import Any

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from bits import BATCH, DROPOUT, EPOCH, MOMENTUM, RATE, RESUME, SEED, STEPS, digest, digits
from chainer import training
from chainer.training import extensions


class Net(chainer.Chain):
    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.conv, self.norm = L.Convolution2D(1, 8, 3, pad=1), L.BatchNormalization(8)
            self.linear = L.Linear(512, 10)

    def forward(self, pictures: Any, shown: Any) -> Any:
        seen = F.dropout(F.relu(self.norm(self.conv(pictures))), DROPOUT)
        return F.softmax_cross_entropy(self.linear(seen), shown)

    def digest(self) -> str:
        return digest([*(one.array for _, one in sorted(self.namedparams())), self.norm.avg_mean, self.norm.avg_var])


def make_trainer(folder: Path, stop: int) -> tuple[Net, training.Trainer]:
    np.random.seed(SEED)
    net = Net()
    optimizer = chainer.optimizers.MomentumSGD(RATE, MOMENTUM)
    optimizer.setup(net)
    pictures, shown = digits()
    data = chainer.datasets.TupleDataset(pictures.transpose(0, 3, 1, 2).copy(), shown)
    updater = training.StandardUpdater(chainer.iterators.SerialIterator(data, BATCH), optimizer)
    return net, training.Trainer(updater, (stop, "iteration"), out=str(folder))


def train(way: str, folder: Path, cut: int) -> str | None:
    folder.mkdir(parents=True, exist_ok=True)
    net, trainer = make_trainer(folder, cut if cut > 0 else STEPS)
    trigger = (EPOCH // 2, "iteration")
    if way == "holdfast.chainer":
        import holdfast.chainer

        if cut:
            trainer.extend(holdfast.chainer.snapshot(folder / "run"), trigger=trigger)
    elif cut:
        trainer.extend(extensions.snapshot(filename="snapshot_{.updater.iteration}", autoload=True), trigger=trigger)
        if way.endswith("+generator") and cut == RESUME:
            trainer.extend(SetGenerator(folder), trigger=(STEPS, "iteration"), priority=-1000)
    trainer.run()
    if cut > 0:
        (folder / "generator").write_bytes(pickle.dumps(np.random.get_state()))
        return None
    return net.digest()


class SetGenerator(training.Extension):
    """Gives NumPy's generator its state back once all else is loaded."""

    def __init__(self, folder: Path) -> None:
        self.kept = pickle.loads((folder / "generator").read_bytes())  # we have written it

    def initialize(self, trainer: Any) -> None:
        np.random.set_state(self.kept)

    def __call__(self, trainer: Any) -> None:
        pass


def first_step() -> None:
    _, trainer = make_trainer(Path("/tmp"), 1)
    trainer.updater.update()
