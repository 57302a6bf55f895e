"""The training of examples/train_digits.py with Keras on TensorFlow. common.py has the options."""

import os
import tempfile
from pathlib import Path

os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3",
               "CUDA_VISIBLE_DEVICES": ""}

import common
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from tables import read_table

TABLE = read_table("digits.keras")
NORM = {"momentum": 0.9, "epsilon": 1e-5}  # as PyTorch has them
# The variables of a layer in the order of their numbers in the file.
PARTS = ("weight", "bias", "running_mean", "running_var")


def make_model() -> keras.Model:
    return keras.Sequential([
        keras.Input((8, 8, 1)),
        layers.Conv2D(8, 3, padding="same", name="conv1"),
        layers.BatchNormalization(name="bn1", **NORM),
        layers.ReLU(), layers.MaxPool2D(),
        layers.Conv2D(16, 3, padding="same", name="conv2"),
        layers.BatchNormalization(name="bn2", **NORM),
        layers.ReLU(), layers.Flatten(), layers.Dense(10, name="fc")])  # fmt: skip


class KerasTrainer:
    def __init__(self) -> None:
        self._model = make_model()
        self._loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._optimizer = keras.optimizers.SGD(common.RATE, momentum=common.MOMENTUM)
        self._model.compile(self._optimizer, loss=self._loss)
        self._optimizer.build(self._model.trainable_variables)

    def variable(self, name: str) -> keras.Variable:
        """The variable of a tensor of PyTorch, such as model.conv1.weight."""
        _, layer, part = name.split(".")
        return self._model.get_layer(layer).variables[PARTS.index(part)]

    def fill(self, start: common.Arrays) -> None:
        for name, value in common.converted(TABLE, start):
            self.variable(name).assign(value)
        slots = dict(zip((id(each) for each in self._model.trainable_variables),
                         self._optimizer.momentums))  # fmt: skip
        for name, value in common.momenta(TABLE, start):
            slots[id(self.variable(name))].assign(value)

    def save(self, path: str) -> None:
        self._model.save_weights(path)

    def load(self, path: str) -> None:
        # Keras reads only names with this ending.
        with tempfile.TemporaryDirectory() as folder:
            link = Path(folder) / "a.weights.h5"
            link.symlink_to(Path(path).resolve())
            self._model.load_weights(link)

    def step(self, images: np.ndarray, labels: np.ndarray) -> float:
        return self._update(tf.constant(images.transpose(0, 2, 3, 1)), tf.constant(labels))

    def tell(self, images: np.ndarray) -> np.ndarray:
        return self._model(images.transpose(0, 2, 3, 1), training=False).numpy()

    @tf.function
    def _update(self, images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self._loss(labels, self._model(images, training=True))
        self._optimizer.apply(tape.gradient(loss, variables), variables)
        return loss


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(0)
    common.main(KerasTrainer())
