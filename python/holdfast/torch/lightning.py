"""Lightning's Trainer with checkpoints of Holdfast.

    trainer = Trainer(callbacks=[HoldfastCallback("runs/gpt", every="10m", keep=3)])
    trainer.fit(model, loader)          # goes on where the newest step of the run was saved

HoldfastCallback saves in the background, at any optimizer step, and resumes with the same
bits. HoldfastIO is for the checkpoints that Lightning itself decides on (ModelCheckpoint,
trainer.save_checkpoint): they become Holdfast runs of one step, without pickles.
"""

import signal
import tempfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

import torch

try:
    import lightning.pytorch as pl
    from lightning.pytorch.plugins import CheckpointIO
except ImportError:  # the older name of the same
    import pytorch_lightning as pl
    from pytorch_lightning.plugins import CheckpointIO

from holdfast.checkpoint import Saver
from holdfast.torch.checkpointer import Checkpointer
from holdfast.torch.data.base_loader import Loader
from holdfast.torch.files import replace_folder as places
from holdfast.torch.files.single_file import load
from holdfast.torch.values import generators
from holdfast.torch.values.trees import pack

_Path = str | PathLike[str]
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # those that Checkpointer answers


class HoldfastCallback(pl.Callback):
    """Saves a run while it trains, and resumes it when fit() begins.

    `options` are those of holdfast.Checkpointer: every, keep, guard, ... The number of a
    step is trainer.global_step: no save is made between the batches of one update. Loops,
    callbacks with a state, LR schedulers, the precision plug-in's scaler and loaders with a
    state_dict (holdfast.data.loader, holdfast.data.resumable, StatefulDataLoader) are saved
    too; with another loader, Lightning begins the epoch anew and says so. What a module's
    on_save_checkpoint adds to a dict is saved; the dict holds nothing else. SIGTERM and
    SIGUSR1 save, and end the process with 143.

    With resume=False, or a `ckpt_path` for fit(), the run is not taken up.
    """

    def __init__(self, run: _Path, *, resume: bool = True, **options: Any) -> None:
        self._run = run
        self._resume = resume
        self._options = options
        self._checkpointer: Checkpointer | None = None
        self._resumed: tuple[Any, bool] | None = None  # (generators, epoch is over), until due
        self._handlers: dict[int, Any] = {}  # of signals, before Lightning's

    @property
    def checkpointer(self) -> Checkpointer:
        """The one in use, while fit() runs."""
        if self._checkpointer is None:
            raise ValueError("no fit() is running")
        return self._checkpointer

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Optimizers and wrapped model are there, and no loop has begun: resumes."""
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        if not self._resume or trainer.ckpt_path is not None or trainer.fast_dev_run:
            return
        state = _TrainerState(trainer, self)
        with self._open(trainer, state, signals=False) as checkpointer:
            if checkpointer.resume() > 0:
                self._resumed = (generators.capture(), state.epoch_is_over)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Lightning's signal handlers are set, and the loader's iterator is made."""
        if trainer.fast_dev_run:
            return
        if self._options.get("signals", True) and current_thread() is main_thread():
            for number, handler in self._handlers.items():  # Lightning's would not wait for a save
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._checkpointer = self._open(trainer, _TrainerState(trainer, self))
        self._checkpointer._asked = True  # by on_fit_start, or it was not wanted
        if self._resumed is not None:
            (saved, epoch_is_over), self._resumed = self._resumed, None
            generators.restore(saved)
            if epoch_is_over:
                _begin_epoch(trainer.fit_loop)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any,
                           batch_idx: int) -> None:
        """Saves if it is time; does nothing in the middle of gradient accumulation."""
        if self._checkpointer is not None:
            self._checkpointer.step(trainer.global_step, loss=_loss(outputs))

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Makes what is under way durable, and leaves the exception as it is."""
        self._close(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Waits until all is durable."""
        self._close()

    def _open(self, trainer: Any, state: "_TrainerState", **more: Any) -> Checkpointer:
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        return Checkpointer(
            self._run, model=trainer.model, optimizer=list(trainer.optimizers),
            scheduler=schedulers or None,
            scaler=getattr(trainer.precision_plugin, "scaler", None), trainer=state,
            **(self._options | more),
        )

    def _close(self, error: BaseException | None = None) -> None:
        open_one, self._checkpointer = self._checkpointer, None
        if open_one is not None:
            open_one._leave(error)


class HoldfastIO(CheckpointIO):
    """Lightning's own checkpoints as Holdfast runs, for Trainer(plugins=[HoldfastIO()]).

    A checkpoint is a folder of the name that Lightning gives it, whole and durable when the
    call returns, and every byte is checked when it is loaded. A crash on the way leaves the
    old one of that name, or the new one, to be loaded. TypeError names the key of
    what cannot be stored without a pickle. Files that torch.save wrote are loaded too.
    For saves in the background use HoldfastCallback, or AsyncCheckpointIO(HoldfastIO()).
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: _Path,
                        storage_options: Any = None) -> None:
        """Writes it beside the old one of that name, and then takes its place."""
        if storage_options is not None:
            raise TypeError(f"storage_options={storage_options!r}: want None")
        packed = pack(checkpoint, "")
        tensors = {name: tensor.detach().cpu() for name, tensor in packed.tensors.items()}
        target = Path(path)
        with (places.made_folder(target.parent),
              tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder):
            made = Path(folder) / "run"
            with Saver(made) as saver:
                saver.save(int(checkpoint.get("global_step", 0)), tensors, packed.tree)
            places.take_place(made, target)

    def load_checkpoint(self, path: _Path, map_location: Any = None,
                        weights_only: bool | None = None) -> dict[str, Any]:
        """All of it, in main memory or on the device `map_location`."""
        device = map_location if isinstance(map_location, (str, torch.device)) else None
        loaded = load(places.found(path), device=device)
        if not isinstance(loaded, Mapping):
            raise ValueError(f"{path}: holds a {type(loaded).__name__}, want a checkpoint")
        return dict(loaded)

    def remove_checkpoint(self, path: _Path) -> None:
        """Removes it, if it is there."""
        places.forget(Path(path))


class _TrainerState:
    """What Lightning itself counts, as an object of a checkpoint."""

    def __init__(self, trainer: Any, own: HoldfastCallback) -> None:
        self._trainer = trainer
        self._callbacks = [one for one in trainer.callbacks if one is not own]
        self.epoch_is_over = False

    def state_dict(self) -> dict[str, Any]:
        trainer, extra = self._trainer, {}
        trainer.lightning_module.on_save_checkpoint(extra)
        states = {one.state_key: one.state_dict() for one in self._callbacks}
        epoch_is_over = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        return {"fit_loop": trainer.fit_loop.state_dict(), "module": extra,
                "epoch is over": epoch_is_over,
                "callbacks": {key: state for key, state in states.items() if state}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        trainer = self._trainer
        trainer.fit_loop.load_state_dict(state["fit_loop"])
        trainer.lightning_module.on_load_checkpoint(state["module"])
        for one in self._callbacks:
            if one.state_key in state["callbacks"]:
                one.load_state_dict(state["callbacks"][one.state_key])
        self.epoch_is_over = state["epoch is over"]


def _begin_epoch(fit_loop: Any) -> None:
    """Makes the loader's iterator anew, whose order may be drawn from generators.

    Holdfast's loaders, iterated a second time, go on with the next epoch; others come to the
    end of theirs first, with no batch left.
    """
    if not any(isinstance(one, Loader) for one in fit_loop._combined_loader.flattened):
        next(fit_loop._data_fetcher, None)
    iter(fit_loop._data_fetcher)


def _loss(outputs: Any) -> Any:
    return outputs.get("loss") if isinstance(outputs, Mapping) else outputs
