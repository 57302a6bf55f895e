"""Lightning's Trainer with checkpoints of Holdfast.

    trainer = Trainer(callbacks=[HoldfastCallback("runs/gpt", every="10m", keep=3)])
    trainer.fit(model, loader)          # resumes after the newest step of the run

HoldfastCallback saves in the background, at any optimizer step, and resumes with the same bits.
HoldfastIO is for the checkpoints that Lightning itself decides on (ModelCheckpoint,
trainer.save_checkpoint): they become Holdfast runs of one step, without pickles.
"""

import logging
import os
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import torch

try:
    import lightning.pytorch as pl
    from lightning.pytorch.plugins import CheckpointIO
except ImportError:  # the older name of the same package
    import pytorch_lightning as pl
    from pytorch_lightning.plugins import CheckpointIO

from holdfast.checkpoint import Saver
from holdfast.options import Failures
from holdfast.rehearse.plan import rehearsed_run
from holdfast.torch.checkpointer import Checkpointer
from holdfast.torch.files import replace_folder
from holdfast.torch.files.single_file import load
from holdfast.torch.adapters.lightning_loops import BatchBoundaries, begin_epoch
from holdfast.torch.loop.metrics import metric_of
from holdfast.torch.recover.restarted_steps import without_run
from holdfast.torch.adapters.lightning_state import LightningState
from holdfast.torch.values import generators
from holdfast.torch.values.trees import pack

_log = logging.getLogger("holdfast")
_Path = str | PathLike[str]
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # upon these a Checkpointer saves and exits


class HoldfastCallback(pl.Callback):
    """Saves a run while it trains, and resumes it when fit() begins.

    `options` are those of holdfast.Checkpointer: every, keep, writing, ... The number of a step
    is trainer.global_step: no save is made between the batches of one update. A save that is due
    at a batch is made when everything that belongs to that batch is done: hooks, a validation,
    and the end of the epoch. Loops, callbacks with a state, the datamodule, LR schedulers, the
    precision plug-in's scaler, what self.log() has summed up so far, and loaders with a state_dict
    (holdfast.data.loader, holdfast.data.resumable, StatefulDataLoader) are saved, too. With any
    other loader, Lightning begins the epoch again and says so. A module's on_save_checkpoint gets
    an empty dict, and what it puts there is saved. A metric that keep=Keep(best=, metric=) names is
    taken from what self.log() logs. Upon SIGTERM and SIGUSR1 the callback saves,
    and the process exits with 143.

    With resume=False, or a `ckpt_path` for fit(), the run is not resumed. Under `holdfast launch`, all
    ranks start again from the newest checkpoint if a rank dies.
    """

    def __init__(self, run: _Path, *, resume: bool = True, **options: Any) -> None:
        self._run = run
        self._resume = resume
        self._options = without_run(options, "Lightning")
        self._checkpointer: Checkpointer | None = None
        # (state, generators, those that wait for loaders, report), until on_train_start
        self._resumed: tuple[LightningState, Any, Any, Any] | None = None
        self._handlers: dict[int, Any] = {}  # signal handlers before Lightning set its own
        self._boundaries: BatchBoundaries | None = None
        self._state: LightningState | None = None
        self._loss: Any = None  # of the newest batch
        self._metric = metric_of(options.get("keep"))
        self._measured: Any = None  # the newest value of that metric that was reported
        self._validated = False

    @property
    def checkpointer(self) -> Checkpointer:
        """The Checkpointer in use, while fit() runs."""
        if self._checkpointer is None:
            raise ValueError("HoldfastCallback: no fit() is running; expected a call during fit()")
        return self._checkpointer

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Resumes. By now the optimizers and the wrapped model exist, and no loop has begun."""
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self._resumed = None
        if not self._resume or trainer.ckpt_path is not None or trainer.fast_dev_run:
            return
        state = LightningState(trainer, self)
        failures = replace(self._failures, signals=False)
        with self._open(trainer, state, failures=failures) as checkpointer:
            own = checkpointer._state
            own.data.read_by_trainer = None  # Lightning makes its loaders later
            if checkpointer.resume() > 0:
                waiting = own.random.waiting
                self._resumed = (state, generators.capture(), waiting, checkpointer.report)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Opens the Checkpointer. Lightning has set its signal handlers and made its iterator."""
        if trainer.fast_dev_run:
            return
        if self._failures.signals and current_thread() is main_thread():
            # Lightning's own handlers would not wait for a save.
            for number, handler in self._handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._state = LightningState(trainer, self)
        self._checkpointer = self._open(trainer, self._state)
        self._checkpointer._run_is_checked = True  # on_fit_start has resumed, or should not
        random = self._checkpointer._state.random
        self._checkpointer._state.data.read_by_trainer = self._state.loaders
        random.look()
        if self._resumed is not None:
            (state, saved, waiting, self._checkpointer.report), self._resumed = self._resumed, None
            state.check_datasets()
            self._state.sums = state.sums
            state.make_workers()
            if state.is_between_epochs:
                begin_epoch(trainer.fit_loop)
            else:
                state.hand_out_read_ahead()
            generators.restore(saved)  # after all that draws
            for line in random.restore_waiting(waiting):
                self._checkpointer.report.inexact.append(line)
                _log.warning("resume: %s", line)
            self._measured = _logged(trainer, self._metric)
        self._boundaries = BatchBoundaries(trainer, self._after_batch, self._after_last)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any,
                           batch_idx: int) -> None:
        """Notes the loss. Lightning has not done yet all that belongs to the batch."""
        self._loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if self._state is not None:
            self._state.add_sums()

    def _after_batch(self, trainer: Any) -> None:
        """Saves if it is time, but not in the middle of gradient accumulation."""
        if self._checkpointer is not None:
            self._checkpointer.step(trainer.global_step, loss=self._loss,
                                    metrics=self._news(trainer))

    def _after_last(self) -> None:
        """Has the last save copied: hooks may now replace the weights by their average."""
        if self._checkpointer is not None:
            self._checkpointer._saves.settle()

    def _news(self, trainer: Any) -> dict[str, Any] | None:
        """A new value of the metric by which `keep` keeps the best steps; None without one."""
        if not self._metric:
            return None
        value = _logged(trainer, self._metric)
        if value is None:
            may_come = trainer.current_epoch == 0 or (
                trainer.enable_validation and not self._validated)
            return {self._metric: None} if may_come else None
        if value is self._measured:
            return None
        self._measured = value
        return {self._metric: value}

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Notes that the metrics of a validation exist."""
        self._validated = self._validated or not trainer.sanity_checking

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Waits for the saves under way; the exception stays as it is."""
        self._close(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Waits until everything is durable."""
        self._close()

    def _open(self, trainer: Any, state: LightningState, **more: Any) -> Checkpointer:
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        options = self._options | more
        options["objects"] = {**(options.get("objects") or {}), "trainer": state}
        made = Checkpointer(
            self._run, model=trainer.model, optimizer=list(trainer.optimizers),
            scheduler=schedulers or None,
            scaler=getattr(trainer.precision_plugin, "scaler", None), **options,
        )
        made.epoch_of = lambda: trainer.fit_loop.epoch_progress.current.started - 1
        return made

    @property
    def _failures(self) -> Failures:
        return self._options.get("failures", Failures())

    def _close(self, error: BaseException | None = None) -> None:
        if self._boundaries is not None:
            self._boundaries.remove()
        self._boundaries = self._state = self._loss = None
        open_one, self._checkpointer = self._checkpointer, None
        if open_one is not None:
            open_one.leave(error)


def _logged(trainer: Any, metric: str) -> Any:
    """The newest value that self.log() got under this name; None if there is none."""
    return trainer._logger_connector._callback_metrics.get(metric)


class HoldfastIO(CheckpointIO):
    """Lightning's own checkpoints as Holdfast runs, for Trainer(plugins=[HoldfastIO()]).

    A checkpoint is a folder with the name that Lightning gives it. It is whole and durable when
    the call returns, and every byte is checked when it is loaded. After a crash, either the old
    checkpoint of that name or the new one can be loaded. TypeError names the key of a value that
    cannot be stored without a pickle. Files that torch.save wrote can be loaded, too. To save in
    the background, use HoldfastCallback, or AsyncCheckpointIO(HoldfastIO()).
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: _Path,
                        storage_options: Any = None) -> None:
        """Writes the checkpoint beside the old one of that name, and then replaces the old one."""
        if storage_options is not None:
            raise TypeError(f"storage_options={storage_options!r}; expected None")
        packed = pack(checkpoint, "")
        tensors = {name: tensor.detach().cpu() for name, tensor in packed.tensors.items()}
        target = Path(rehearsed_run(fspath(path)))
        with (replace_folder.create_folder_durably(target.parent),
              tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder):
            made = Path(folder) / "run"
            with Saver(made) as saver:
                saver.save(int(checkpoint.get("global_step", 0)), tensors, packed.tree)
            replace_folder.replace_folder(made, target)

    def load_checkpoint(self, path: _Path, map_location: Any = None,
                        weights_only: bool | None = None) -> dict[str, Any]:
        """The whole checkpoint, in main memory or on the device `map_location`."""
        device = map_location if isinstance(map_location, (str, torch.device)) else None
        own = rehearsed_run(fspath(path))
        found = replace_folder.find_folder(own)
        loaded = load(found if os.path.lexists(found) else replace_folder.find_folder(path), device=device)
        if not isinstance(loaded, Mapping):
            raise ValueError(f"{path}: holds a {type(loaded).__name__}; expected a checkpoint")
        return dict(loaded)

    def remove_checkpoint(self, path: _Path) -> None:
        """Removes the checkpoint, if it is there."""
        replace_folder.remove_folder(Path(rehearsed_run(fspath(path))))
