"""Holdfast in Keras 3, with any backend: a callback that resumes an interrupted fit().

    model.fit(x, y, epochs=10, callbacks=[holdfast.keras.BackupAndRestore("runs/net")])

It takes the place of keras.callbacks.BackupAndRestore. Import holdfast.keras first.
"""

import logging
from collections.abc import Iterator
from os import PathLike
from typing import Any

import keras
import numpy

from holdfast import _native, plain_generators
from holdfast.checkpoint import Saver, restore, run_path
from holdfast.errors import NotFoundError
from holdfast.options import Writing

_log = logging.getLogger("holdfast")


class BackupAndRestore(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves the model and its optimizer in the background, and resumes the newest whole step when fit() begins.

    The counters of SeedGenerators are saved, too, so that dropout goes on with the same numbers, and so are the
    generators of NumPy, Python and, with that backend, torch. A fit() that is killed resumes at the end of an
    epoch bit for bit, if its data come in the same order again.

    fit() cannot begin in the middle of an epoch. From a step there, the weights go on, and the epoch's data come
    once more from its beginning; a warning in the log "holdfast" says so. Not saved are other callbacks, the
    history, and the generator that keras.random uses where no seed is given.

    run, keep, writing   as for holdfast.Saver
    save_freq            "epoch", or after how many batches

    The run stays when fit() ends, so that the next fit() with it has nothing to do. ConflictError if a live
    process trains in this run; ValueError if the step is of another model, or the model is not built yet.
    """

    def __init__(self, run: str | PathLike[str], save_freq: str | int = "epoch", *,
                 keep: int | _native.Keep | None = 2, writing: Writing = Writing()) -> None:
        super().__init__()
        if save_freq != "epoch" and (not isinstance(save_freq, int) or save_freq < 1):
            raise ValueError(f"save_freq={save_freq!r}; expected \"epoch\", or a number of batches")
        self._run, self._often, self._keep, self._writing = run_path(run), save_freq, keep, writing
        self._saver: Saver | None = None
        self._epoch = self._unsaved = self._step = 0

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.model.built:
            raise ValueError("holdfast.keras: the model is not built; expected one that has seen a batch, or "
                             "that begins with keras.Input")
        if not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        self.on_train_end()  # of a fit() that an exception has ended
        self._saver = Saver(self._run, keep=self._keep, writing=self._writing,
                            software={"keras": keras.__version__})
        self._resume()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._unsaved += 1
        if self._unsaved == self._often:
            self._save(self._epoch, batch + 1)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch + 1
        if self._often == "epoch":
            self._save(self._epoch, 0)

    def on_train_end(self, logs: Any = None) -> None:
        """Waits until the last step is durable."""
        if self._saver is not None:
            self._saver.close()
            self._saver = None

    def _save(self, epoch: int, batch: int) -> None:
        assert self._saver is not None
        self._step, self._unsaved = self._step + 1, 0
        arrays = {name: _array(variable) for name, variable in self._variables()}
        self._saver.save(self._step, arrays, {
            "epoch": epoch, "batch": batch, "generators": _generators().capture()}).captured()

    def _resume(self) -> None:
        variables = dict(self._variables())
        arrays = {name: numpy.array(_array(variable)) for name, variable in variables.items()}
        try:
            found = restore(self._run, arrays)
        except NotFoundError:
            return
        for name, variable in variables.items():
            variable.assign(arrays[name])
        _generators().restore(found.objects["generators"])
        self._step = found.step
        # keras.callbacks.BackupAndRestore tells fit() in this way, too.
        self._epoch = self.model._initial_epoch = found.objects["epoch"]
        if found.objects["batch"]:
            _log.warning("keras: resumes with the weights after batch %d of epoch %d; the epoch's data begin anew, so "
                         "that this training differs from one that was not interrupted",
                         found.objects["batch"], found.objects["epoch"] + 1)

    def _variables(self) -> Iterator[tuple[str, Any]]:
        """By names that a restarted script has, too: Keras numbers layers anew for each model of a process."""
        metrics = {id(variable) for variable in self.model.metrics_variables}
        kept = [variable for variable in self.model.variables if id(variable) not in metrics]
        yield from ((f"model/{number}/{variable.name}", variable) for number, variable in enumerate(kept))
        yield from ((f"optimizer/{number}", variable)
                    for number, variable in enumerate(self.model.optimizer.variables))


def _array(variable: Any) -> "numpy.ndarray[Any, Any]":
    return numpy.asarray(keras.ops.convert_to_numpy(variable.value))


def _generators() -> Any:
    if keras.backend.backend() == "torch":
        from holdfast.torch.values import generators

        return generators
    return plain_generators
