"""Hugging Face's Trainer with checkpoints of Holdfast.

    class Trainer(HoldfastTrainer, transformers.Trainer):
        pass

    trainer = Trainer(model, args, train_dataset=data)
    trainer.train(resume_from_checkpoint="auto")

The Trainer decides when to save (`save_strategy`, `save_steps`). The save is a step of the run
directory `args.output_dir`, made in the background, with all that a bit-exact resume needs. A
callback could save but not resume, because the Trainer decides where to go on before it calls
callbacks. So HoldfastTrainer overrides the methods that read and write checkpoints.
"""

import dataclasses
import json
import math
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from holdfast import _native
from holdfast.checkpoint import absolute_path, open_tiers
from holdfast.errors import NotFoundError
from holdfast.options import Layout, Resuming
from holdfast.rehearse.plan import places
from holdfast.torch.adapters.read_ahead import ReadAhead, inexact_reads
from holdfast.torch.adapters.same_datasets import check_fingerprints, fingerprints_of
from holdfast.torch.checkpointer import Checkpointer
from holdfast.torch.loop.metrics import metric_of
from holdfast.torch.recover.restarted_steps import without_run
_log = logging.getLogger("holdfast")


class _Older(Exception):
    """The newest step is damaged, and that of an older number was resumed."""

    def __init__(self, step: int) -> None:
        self.step = step


class HoldfastTrainer:
    """A base class to be named before transformers.Trainer.

    `holdfast` are options for holdfast.Checkpointer. `every` is one more reason to save, beside
    those of the Trainer; `keep` is args.save_total_limit unless given, but at least 2. The metric
    of Keep(best=, metric="eval_loss") is one of those that an evaluation returns.

    train(resume_from_checkpoint=...): True resumes from the newest whole step, "auto" does so if
    there is one, and a path is one of the Trainer's own checkpoints. Upon SIGTERM and SIGUSR1 the
    Trainer saves, and the process exits with 143. The number of a step is that of updates done.

    Under `holdfast launch`, all ranks start again from the newest checkpoint if a rank dies; for that,
    resume_from_checkpoint="auto" is needed.

    trainer.save_model() saves the final model as usual. ValueError for arguments that need the
    Trainer's own files: save_only_model, load_best_model_at_end, DeepSpeed.
    """

    def __init__(self, *args: Any, holdfast: Mapping[str, Any] | None = None,
                 **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._options = without_run(holdfast or {}, "the Trainer")
        self._checkpointer: Checkpointer | None = None
        self._state: _TrainerState | None = None
        self._found: int | None = None  # the step to resume from
        self._saved: int | None = None
        self._reads = ReadAhead()
        self._metric = metric_of(self._options.get("keep"))
        self._measured: dict[str, Any] | None = None  # what the next step reports
        self._ended: int | None = None  # the newest step that is done
        self._wants_save = False  # a save waits for the end of the epoch
        self._may_have_steps = False
        ours: Any = self
        for name in ("save_only_model", "load_best_model_at_end", "deepspeed"):
            if getattr(ours.args, name, None):
                raise ValueError(f"{name}: needs the Trainer's own checkpoints; expected it to be "
                                 "off")

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains as the Trainer does, and returns when the last save is durable."""
        self._may_have_steps = bool(resume_from_checkpoint)
        self._found = self._ended = None
        self._wants_save = False
        with tempfile.TemporaryDirectory() as folder:
            if resume_from_checkpoint is True or resume_from_checkpoint == "auto":
                resume_from_checkpoint = self._look(folder, must=resume_from_checkpoint is True)
            try:
                result = self._train(folder, resume_from_checkpoint, *args, **kwargs)
            except BaseException as error:
                self._close(error)
                raise
            self._close()
            return result

    def _train(self, folder: str, state: Any, *args: Any, **kwargs: Any) -> Any:
        """Trains from the newest step that is whole.

        The Trainer reads its own state before the tensors of a step are read. If these turn out to
        be damaged, it starts again with its state of the step that was resumed instead.
        """
        while True:
            try:
                return super().train(state, *args, **kwargs)  # type: ignore[misc]
            except _Older as older:
                self._close()
                state = self._look(folder, must=True, step=older.step)

    def _look(self, folder: str, must: bool, step: int | None = None) -> str | None:
        """Writes the Trainer's state of a step into a folder, for the Trainer to read.

        Without a number, the step is the newest one.
        """
        from transformers.trainer import TRAINER_STATE_NAME

        run, tiers, _ = places(absolute_path(self.args.output_dir),  # type: ignore[attr-defined]
                               self._options.get("tiers", ()), False)
        tiers = open_tiers(tiers)
        resuming = self._options.get("resuming", Resuming())
        try:
            with self.args.main_process_first(local=False):  # type: ignore[attr-defined]
                found = _native.restore(run, [], step, False, tiers,
                                        resuming.allow_unreachable_tiers)
        except NotFoundError:
            if must:
                raise
            return None
        try:
            state = found.objects["things"]["trainer"]["state"]
        except (TypeError, KeyError):
            raise ValueError(f"{found.folder}: not of a Trainer; expected another "
                             "output_dir") from None
        Path(folder, TRAINER_STATE_NAME).write_text(json.dumps(state))
        self._found = found.step
        return folder

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        self._close()  # the Checkpointer of an attempt with another batch size
        prepared = super()._prepare_for_training(*args, **kwargs)  # type: ignore[misc]
        if self._checkpointer is None:
            self._open()
        return prepared

    def _open(self) -> Checkpointer:
        ours: Any = self
        limit = ours.args.save_total_limit
        self._saved = None
        self._state = _TrainerState(ours, self._reads)
        options = {"every": "never", "keep": None if limit is None else max(2, limit),
                   **self._options}
        options["objects"] = {**(options.get("objects") or {}), "trainer": self._state}
        # A Trainer's state says which rank it is on, so that ranks differ. All get rank 0's.
        layout = options.get("layout", Layout())
        rules = {**(layout.rules or {}), "trainer.state": "first"}
        options["layout"] = dataclasses.replace(layout, rules=rules)
        self._checkpointer = Checkpointer(
            ours.args.output_dir, model=ours.model_wrapped,
            optimizer=getattr(ours.optimizer, "optimizer", ours.optimizer),
            scheduler=ours.lr_scheduler, scaler=ours.accelerator.scaler, **options,
        )
        self._reads.also_notes(self._checkpointer._state)
        self._checkpointer.epoch_of = lambda: math.ceil(ours.state.epoch or 0) - 1
        self._checkpointer._run_is_checked = self._may_have_steps
        self._checkpointer.check_new('resume_from_checkpoint="auto", or another output_dir')
        self._may_have_steps = True  # a second attempt finds those of the first
        if self._metric and ours.args.eval_strategy != "no":
            self._measured = {self._metric: None}  # an evaluation will tell it
        return self._checkpointer

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self._found is None:
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Resumes. By now everything exists that a checkpoint is read into, the model too."""
        if self._found is None:
            super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
            return
        checkpointer = self._open()
        done = checkpointer.resume() - 1
        if done != self._found:
            raise _Older(done)
        self._saved = done
        resumed = self._reads.capture()
        assert self._state is not None
        self._state.check_dataset()
        self._state.make_workers()
        lines = self._state.inexact()
        checkpointer.report.inexact += lines
        for line in lines:
            _log.warning("resume: %s", line)
        self._reads.resume(self._state.reads, resumed)

    def _load_scaler(self, checkpoint: str | None) -> None:
        if self._found is None:
            super()._load_scaler(checkpoint)  # type: ignore[misc]

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restores the generators. Called when the first batch is read, or the epoch begins."""
        if self._found is None:
            super()._load_rng_state(checkpoint)  # type: ignore[misc]
        elif self._state is not None:
            self._state.resume()
            self._reads.restore_now()

    def get_train_dataloader(self) -> Any:
        """The Trainer's own loader, whose random draws are noted."""
        loader = super().get_train_dataloader()  # type: ignore[misc]
        self._reads = ReadAhead()
        self._reads.watch(loader)
        return loader

    def _run_epoch(self, *args: Any, **kwargs: Any) -> Any:
        is_resumed = self._found is not None and kwargs["epoch"] == kwargs["epochs_trained"]
        self._reads.begin_epoch(kwargs["epoch"],
                                kwargs["steps_trained_in_current_epoch"] if is_resumed else 0)
        return super()._run_epoch(*args, **kwargs)  # type: ignore[misc]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._wants_save = True

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Saves if it is time, after a step and all that belongs to it.

        The Trainer calls this after each step, and once more at the end of an epoch, where it may
        evaluate. A save that is due at the last step of an epoch waits for that.
        """
        ours: Any = self
        step = ours.state.global_step
        is_epochs_end, self._ended = self._ended == step, step
        super()._maybe_log_save_evaluate(*args, **kwargs)  # type: ignore[misc]
        stops = ours.control.should_epoch_stop or ours.control.should_training_stop
        if not is_epochs_end and (stops or float(ours.state.epoch).is_integer()):
            return
        wanted, self._wants_save = self._wants_save, False
        if self._checkpointer is None:
            return
        news, self._measured = self._measured, None
        if wanted and self._saved != step:
            self._saved = step
            self._checkpointer.save(step, metrics=news)
            news = None
        self._checkpointer.step(step, metrics=news)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluates, and keeps the metric by which `keep` keeps the best steps."""
        found = super().evaluate(*args, **kwargs)  # type: ignore[misc]
        for name in (self._metric, f"eval_{self._metric}"):
            if self._metric and name in found:
                self._measured = {self._metric: found[name]}
        return found

    def _close(self, error: BaseException | None = None) -> None:
        open_one, self._checkpointer = self._checkpointer, None
        if open_one is not None:
            open_one.leave(error)


class _TrainerState:
    """The state of a Trainer itself, as an object of a checkpoint."""

    def __init__(self, trainer: Any, reads: ReadAhead) -> None:
        self._trainer = trainer
        self._reads = reads
        self._restored: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        loss = getattr(trainer, "_tr_loss", None)
        if loss is None:  # called before the first step, to see what a state looks like
            return {"state": {}, "loss": torch.zeros(()), "logged": 0}
        trainer.store_flos()
        trainer.state.stateful_callbacks = _callbacks(trainer)
        state = json.loads(json.dumps(dataclasses.asdict(trainer.state)))
        return {"state": state, "loss": loss, "logged": trainer._globalstep_last_logged,
                "reads": self._reads.state(), "datasets": fingerprints_of(self._reads.loaders),
                "lasting loaders": list(getattr(trainer, "_eval_dataloaders", ()))}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keeps the state for resume(). The Trainer has read its own part from a file already."""
        self._restored = state

    @property
    def reads(self) -> dict[str, Any]:
        """What the checkpoint says about the reading of batches; an older one says nothing."""
        return (self._restored or {}).get("reads") or ReadAhead().state()

    def check_dataset(self) -> None:
        """ValueError if the Trainer reads another dataset than before."""
        check_fingerprints((self._restored or {}).get("datasets", ()),
                           fingerprints_of(self._reads.loaders))

    def inexact(self) -> list[str]:
        """Sentences about what will not be as in a run that was not stopped."""
        state = (self._restored or {}).get("state", {})
        is_over = float(state.get("epoch") or 0).is_integer()
        return inexact_reads(self.reads, in_mid_epoch=not is_over)

    def make_workers(self) -> None:
        """Makes loaders for evaluation whose workers stay, if the run had made them.

        That draws from the generators, which are restored later.
        """
        for key in (self._restored or {}).get("lasting loaders", ()):
            loader = self._trainer.get_eval_dataloader(None if key == "eval" else key)
            iter(getattr(loader, "base_dataloader", loader))

    def resume(self) -> None:
        """Restores the sum of losses that is logged next, after the Trainer has reset it."""
        if self._restored is None:
            return
        self._trainer._tr_loss += self._restored["loss"].to(self._trainer._tr_loss.device)
        self._trainer._globalstep_last_logged = self._restored["logged"]
        self._trainer._total_loss_scalar -= float(self._restored["loss"])
        self._restored = None


def _callbacks(trainer: Any) -> dict[str, Any]:
    """The states of callbacks that have one, in the Trainer's own form."""
    from transformers.trainer_callback import ExportableState

    states: dict[str, list[Any]] = {}
    for callback in [*trainer.callback_handler.callbacks, trainer.control]:
        if isinstance(callback, ExportableState):
            states.setdefault(type(callback).__name__, []).append(callback.state())
    return {name: found if len(found) > 1 else found[0] for name, found in states.items()}
