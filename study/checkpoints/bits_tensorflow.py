"""The training of bits.py in TensorFlow and Keras, and ways to resume it."""

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from bits import BATCH, DROPOUT, EPOCH, EPOCHS, MOMENTUM, RATE, RESUME, SAMPLES, SEED, STEPS, digest, digits
from keras import layers


class Cut(Exception):
    """The training is stopped here."""


class CutAfter(keras.callbacks.Callback):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.left == 0:
            raise Cut
        self.left -= 1


def make_repeatable() -> None:
    """Before TensorFlow computes anything."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(SEED)
    tf.config.experimental.enable_op_determinism()


def make_model() -> keras.Model:
    model = keras.Sequential([keras.Input((8, 8, 1)), layers.Conv2D(8, 3, padding="same"), layers.BatchNormalization(),
                              layers.ReLU(), layers.Flatten(), layers.Dropout(DROPOUT), layers.Dense(10)])  # fmt: skip
    model.compile(keras.optimizers.SGD(RATE, momentum=MOMENTUM),
                  keras.losses.SparseCategoricalCrossentropy(from_logits=True))  # fmt: skip
    return model


def digest_of(model: keras.Model) -> str:
    return digest(weight.numpy() for weight in model.weights if "seed" not in weight.name)


def train(way: str, folder: Path, cut: int) -> str | None:
    make_repeatable()
    folder.mkdir(parents=True, exist_ok=True)
    name, *saved = way.split("+")
    if name == "tf.train.Checkpoint":
        return train_by_hand(folder, cut, saved)
    model = make_model()
    often = EPOCH // 2 if cut > 0 and cut % EPOCH else "epoch"
    first, callbacks = 0, []
    if cut and name == "keras.ModelCheckpoint":
        callbacks.append(keras.callbacks.ModelCheckpoint(folder / "last.keras", save_freq=often))
        if cut == RESUME:
            model = keras.models.load_model(folder / "last.keras")
            first = int(model.optimizer.iterations) // EPOCH
    elif cut and name == "keras.BackupAndRestore":
        callbacks.append(keras.callbacks.BackupAndRestore(folder / "backup", save_freq=often))
    elif cut:
        import holdfast.keras

        callbacks.append(holdfast.keras.BackupAndRestore(folder / "run", save_freq=often))
    if cut > 0:
        callbacks.append(CutAfter(cut))
    try:
        model.fit(*digits(), batch_size=BATCH, epochs=EPOCHS, initial_epoch=first, callbacks=callbacks, verbose=0)
    except Cut:
        return None
    return digest_of(model)


def train_by_hand(folder: Path, cut: int, saved: list[str]) -> str | None:
    """A loop of one's own, as TensorFlow's guide has it, with what is in `saved` besides: "iterator", "seeds"."""
    model = make_model()
    model.optimizer.build(model.trainable_variables)
    data = iter(tf.data.Dataset.from_tensor_slices(digits()).shuffle(SAMPLES, seed=3).repeat().batch(BATCH))
    counter, more = tf.Variable(0, dtype=tf.int64), tf.Module()
    more.seeds = [layer.seed_generator.state.value for layer in model.layers if hasattr(layer, "seed_generator")]
    kept = {"iterator": data, "seeds": more}
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model, optimizer=model.optimizer, counter=counter,
                            **{name: kept[name] for name in saved}), folder / "saved", max_to_keep=2)  # fmt: skip
    if cut == RESUME:
        manager.checkpoint.restore(manager.latest_checkpoint)
    step = step_of(model)
    while int(counter) < STEPS:
        step(*next(data))
        counter.assign_add(1)
        if int(counter) == cut:
            manager.save()
            return None
    return digest_of(model)


def step_of(model: keras.Model) -> Any:
    @tf.function
    def step(pictures: Any, shown: Any) -> None:
        with tf.GradientTape() as tape:
            loss = model.loss(shown, model(pictures, training=True))
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    return step


def first_step() -> None:
    pictures, shown = digits()
    model = make_model()
    model.optimizer.build(model.trainable_variables)
    step_of(model)(pictures[:BATCH], shown[:BATCH])
