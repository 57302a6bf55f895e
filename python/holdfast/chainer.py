"""Holdfast in Chainer: snapshots that a crash cannot lose, and that training resumes from with the same bits.

    trainer.extend(holdfast.chainer.snapshot("runs/net"), trigger=(1, "epoch"))

It takes the place of chainer.training.extensions.snapshot(autoload=True). Import holdfast.chainer first.
"""

import logging
from os import PathLike
from typing import Any

import chainer
import numpy
from chainer import serializers

from holdfast import _native, plain_generators
from holdfast.checkpoint import Saver, restore, run_path
from holdfast.errors import NotFoundError
from holdfast.files import numpy_name
from holdfast.files import open as open_run
from holdfast.options import Writing

_log = logging.getLogger("holdfast")


class snapshot(chainer.training.Extension):  # type: ignore[misc]  # Chainer's name in small letters
    """Saves a Trainer in the background, and resumes the newest whole snapshot when run() begins.

    It saves all that the trainer serializes (model, optimizer, iterators, extensions), and the generators of
    NumPy and Python, which Chainer's own snapshot leaves out: dropout goes on with the same numbers. A training
    on the CPU whose data come from a SerialIterator resumes bit for bit, in the middle of an epoch, too. A
    warning in the log "holdfast" names what does not: iterators that read ahead, and generators of a GPU.

    run, keep, writing   as for holdfast.Saver

    run() of the trainer raises ConflictError if a live process trains in this run, and KeyError or ValueError
    if the snapshot is of another model.
    """

    trigger = (1, "epoch")
    priority = -100  # after the extensions whose state it saves
    name = "holdfast"

    def __init__(self, run: str | PathLike[str], *, keep: int | _native.Keep | None = 2,
                 writing: Writing = Writing()) -> None:
        self._run, self._keep, self._writing = run_path(run), keep, writing
        self._saver: Saver | None = None

    def initialize(self, trainer: Any) -> None:
        _warn_of_what_is_inexact(trainer)
        self._saver = Saver(self._run, keep=self._keep, writing=self._writing,
                            software={"chainer": chainer.__version__})
        _resume(trainer, self._run)

    def __call__(self, trainer: Any) -> None:
        if self._saver is None:
            raise RuntimeError("holdfast.chainer.snapshot: it was called before the trainer's run()")
        found = serializers.DictionarySerializer()
        found.save(trainer)
        arrays = {name: value for name, value in found.target.items() if value.dtype.kind in "biufc"}
        values = {name: value.item() for name, value in found.target.items() if name not in arrays}
        # Chainer changes arrays in place, so that they must be copied before it goes on.
        self._saver.save(trainer.updater.iteration, arrays,
                         {"values": values, "generators": plain_generators.capture()}).captured()

    def finalize(self) -> None:
        """Waits until the last snapshot is durable."""
        if self._saver is not None:
            self._saver.close()
            self._saver = None


def _resume(trainer: Any, run: str) -> None:
    """Loads the newest whole snapshot into the trainer, if there is one."""
    try:
        saved = open_run(run)
    except NotFoundError:
        return
    arrays = {name: numpy.empty(info.shape, numpy_name(info.dtype)) for name, info in saved.items()}
    found = restore(run, arrays)
    values = {name: numpy.asarray(value) for name, value in found.objects["values"].items()}
    serializers.NpzDeserializer(arrays | values).load(trainer)
    plain_generators.restore(found.objects["generators"])
    _log.info("chainer: resumes after iteration %d of %s", found.step, run)


def _warn_of_what_is_inexact(trainer: Any) -> None:
    for name, iterator in getattr(trainer.updater, "_iterators", {}).items():
        if not isinstance(iterator, chainer.iterators.SerialIterator):
            _log.warning("chainer: the iterator %s is a %s, which may read ahead: a training that resumes in the "
                         "middle of an epoch may see other batches", name, type(iterator).__name__)
    if chainer.backends.cuda.available:
        _log.warning("chainer: generators of a GPU are not saved: dropout there goes on with other numbers")
