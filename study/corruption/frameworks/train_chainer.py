"""The training of examples/train_digits.py with Chainer. common.py has the options."""

import chainer
import chainer.functions as F
import chainer.links as L
import common
import numpy as np
from tables import read_table

TABLE = read_table("digits.chainer")
NORM = {"decay": 0.9, "eps": 1e-5}  # as PyTorch has them


class Digits(chainer.Chain):
    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.conv1 = L.Convolution2D(1, 8, 3, pad=1)
            self.bn1 = L.BatchNormalization(8, **NORM)
            self.conv2 = L.Convolution2D(8, 16, 3, pad=1)
            self.bn2 = L.BatchNormalization(16, **NORM)
            self.fc = L.Linear(16 * 4 * 4, 10)

    def forward(self, x: np.ndarray) -> chainer.Variable:
        x = F.max_pooling_2d(F.relu(self.bn1(self.conv1(x))), 2)
        return self.fc(F.relu(self.bn2(self.conv2(x))))


class ChainerTrainer:
    def __init__(self) -> None:
        self._make()

    def _make(self) -> None:
        np.random.seed(0)
        self._model = Digits()
        self._optimizer = chainer.optimizers.MomentumSGD(common.RATE, common.MOMENTUM)
        self._optimizer.setup(self._model)

    def serialize(self, serializer: chainer.Serializer) -> None:
        """What Chainer calls to save and to load both."""
        self._model.serialize(serializer["model"])
        self._optimizer.serialize(serializer["optimizer"])

    def fill(self, start: common.Arrays) -> None:
        for name, value in common.converted(TABLE, start):
            found = self._variable(name)
            (found if isinstance(found, np.ndarray) else found.array)[...] = value
        self._model.cleargrads()
        self._optimizer.update()  # without gradients it changes no parameter, and makes the momenta
        for name, value in common.momenta(TABLE, start):
            self._variable(name).update_rule.state["v"][...] = value

    def _variable(self, name: str) -> "chainer.Parameter | np.ndarray":
        """The parameter or array of a tensor of PyTorch, such as model.conv1.weight."""
        _, layer, part = TABLE[name].name.split("/")
        return getattr(getattr(self._model, layer), part)

    def save(self, path: str) -> None:
        chainer.serializers.save_hdf5(path, self)

    def load(self, path: str) -> None:
        self._make()
        chainer.serializers.load_hdf5(path, self)

    def step(self, images: np.ndarray, labels: np.ndarray) -> float:
        loss = F.softmax_cross_entropy(self._model(images), labels.astype(np.int32))
        self._model.cleargrads()
        loss.backward()
        self._optimizer.update()
        return float(loss.array)

    def tell(self, images: np.ndarray) -> np.ndarray:
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            return self._model(images).array


if __name__ == "__main__":
    common.main(ChainerTrainer())
