"""What the trainings of the digits in other frameworks share. It needs only NumPy.

    PYTHON study/corruption/frameworks/train_keras.py --start start.npz --save base.weights.h5
    PYTHON study/corruption/frameworks/train_keras.py --start start.npz --resume base.weights.h5 --log log.jsonl

start.npz is what export.py has written. --save converts the checkpoint, --resume continues from a
converted one, and --serve does so for each trial of `holdfast campaign run --serve`.
"""

import argparse
import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
from tables import Table

DATA = Path(__file__).resolve().parents[3] / "examples/data/digits.csv.gz"
TESTED = 360  # as in examples/train_digits.py
RATE, MOMENTUM = 0.005, 0.9
# PyTorch's momentum m grows by the gradient, and the weight then changes by -RATE * m. Keras and
# Chainer keep -RATE * m itself.
SCALE = np.float32(-RATE)

Arrays = dict[str, np.ndarray]


class Trainer(Protocol):
    """A model and its optimizer in one framework."""

    def fill(self, start: Arrays) -> None:
        """Takes the tensors and momenta of PyTorch."""

    def save(self, path: str) -> None: ...

    def load(self, path: str) -> None: ...

    def step(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Trains on a batch and returns its loss. Images are (sample, channel, height, width)."""

    def tell(self, images: np.ndarray) -> np.ndarray:
        """The numbers that the model gives each class."""


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    with gzip.open(DATA, "rt") as file:
        rows = np.array(list(csv.reader(file)), np.int64)
    return rows[:, :64].reshape(-1, 1, 8, 8).astype(np.float32) / np.float32(16), rows[:, 64]


def converted(table: Table, start: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of the model, by their names in PyTorch, as the other framework stores them."""
    return ((name, place.convert(start[name])) for name, place in table.items())


def momenta(table: Table, start: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """The momentum of each parameter, by the parameter's name in PyTorch, as the other framework
    stores it."""
    for name, place in table.items():
        given = start.get(name.replace("model.", "momentum.", 1))
        if given is not None:
            yield name, place.convert(given * SCALE)


def train(trainer: Trainer, batches: np.ndarray, checkpoint: str, log: str) -> None:
    images, labels = read_digits()

    def accuracy() -> float:
        told = trainer.tell(images[-TESTED:]).argmax(1)
        return float((told == labels[-TESTED:]).mean())

    trainer.load(checkpoint)
    with open(log, "w") as file:
        print(json.dumps({"step": 0, "accuracy": accuracy()}), file=file)
        for step, batch in enumerate(batches, 1):
            line = {"step": step, "loss": float(trainer.step(images[batch], labels[batch]))}
            if step == len(batches):
                line["accuracy"] = accuracy()
            print(json.dumps(line), file=file)


def main(trainer: Trainer) -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", required=True, help="what export.py has written")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--save", help="write the checkpoint in the format of the framework")
    what.add_argument("--resume", help="train from this checkpoint")
    what.add_argument("--serve", action="store_true", help="serve the trials of a campaign")
    parser.add_argument("--log", help="where --resume writes a JSON line for each step")
    args = parser.parse_args()
    with np.load(args.start) as file:
        start = dict(file)
    if args.save:
        trainer.fill(start)
        trainer.save(args.save)
    elif args.resume:
        if not args.log:
            parser.error("--resume: there is no --log; expected both")
        train(trainer, start["batches"], args.resume, args.log)
    else:
        from holdfast.campaign import serve

        serve(lambda checkpoint, log, state: train(trainer, start["batches"], checkpoint, log))
