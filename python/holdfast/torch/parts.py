"""The parts of a Checkpointer that belong to one set of ranks and one model.

They are made when the Checkpointer is, and made anew when the configuration of the job changes: then the
model is another object, and the ranks are others. Only elastic/member.py calls the methods for that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast import _native
from holdfast.checkpoint import Tiers, log_messages
from holdfast.options import Failures, Layout, Recover, Resuming, Schedule, Watch, Writing
from holdfast.torch.loop.closing import Closing, close_at_exit
from holdfast.torch.loop.due_save import DueSave
from holdfast.torch.loop.job import open_job
from holdfast.torch.loop.model_changes import ModelChanges
from holdfast.torch.loop.optimizer_hooks import hook_optimizer_steps
from holdfast.torch.loop.resume import Resume
from holdfast.torch.loop.saves import Saves
from holdfast.torch.loop.settle_thread import SettleThread
from holdfast.torch.loop.stopping import Stopping
from holdfast.torch.loop.update_boundaries import UpdateBoundaries
from holdfast.torch.recover.link import FewerWorkers
from holdfast.torch.recover.recovery import recovery_for
from holdfast.torch.state.capture import Captured
from holdfast.torch.state.ddp_buckets import BucketOrders
from holdfast.torch.state.model_tensors import Exclude
from holdfast.torch.state.report import Report
from holdfast.torch.state.tensor_state import Models, Optimizers
from holdfast.torch.state.training_state import TrainingState
from holdfast.torch.watch.freeze_watch import watch_for


@dataclass
class Given:
    """What a Checkpointer was given, as far as its parts need it."""

    run: str
    model: Models
    optimizer: Optimizers | None
    named: Mapping[str, Any]
    data: Any
    scaler: Any
    every: str | Callable[[int, float], bool]
    keep: int | str | _native.Keep | None
    tiers: Tiers
    writing: Writing
    resuming: Resuming
    failures: Failures
    schedule: Schedule
    layout: Layout
    watch: Watch | None
    exclude: Exclude
    folder: str | None  # in memory, for a handover
    recover: bool | Recover | None


class Parts:
    """The parts, as attributes of the Checkpointer."""

    _given: Given
    _elastic: Any
    _messages: Any
    _durable: Any
    _stalled: float
    _steps: Any
    _before_save: Callable[..., Any]
    _save: Callable[..., Any]
    _before_update: Callable[..., Any]
    _release: Callable[[], None]
    report: Report

    def _open(self) -> None:
        """Makes the parts, on all ranks together."""
        given = self._given
        self._state = TrainingState(given.model, given.optimizer, given.named, given.data, given.layout,
                                    given.exclude)
        self._state.parallel = self._elastic.configuration or self._state.parallel
        self._buckets, self._due = BucketOrders(given.model), DueSave()
        if not _native.is_object_path(given.run):
            self._state.data.keep_left_epochs(given.run, self._state.rank)
        self._boundaries = UpdateBoundaries(self._state.optimizers, self._state.models)
        self._changes = ModelChanges(self._state, self._boundaries, given.named)
        self.pieces = self._state.pieces  # for holdfast.inject
        # resume() has returned, or the run has no steps; all that will be saved is known to the engine
        self._run_is_checked = self._is_attached = False
        self._recovery = recovery_for(given.recover, self._state, self._buckets, given.scaler,
                                      given.layout.group, given.run, given.every)
        transport, folder = self._recovery.connect(), self._recovery.helper_folder
        is_helper = folder is not None
        job = open_job(
            given.run if folder is None else folder, transport,
            every=given.every if isinstance(given.every, str) and not is_helper else "never",
            keep=given.keep, tiers=() if is_helper else given.tiers, writing=given.writing, failures=given.failures,
            schedule=given.schedule, resuming=given.resuming, recover=self._recovery.is_active,
            handover=None if is_helper else given.folder)
        self._saves = Saves(job, self._state, self._buckets, given.keep)
        self._watch = watch_for(given.watch, self._state, self._saves, self._messages)
        self._closing = Closing(self._saves, transport, given.failures, self._release, self._state.rank)
        self._stopping = Stopping(self._saves, self._closing, given.folder, self._before_save,
                                  self._save)
        self._agree_on_job()
        self._recovery.serve(self._saves, self._rejoin, self._stopping.leave, self._durable)
        self._recovery.tell_steps_again(self._changes.note_whole)
        self._hooks = hook_optimizer_steps(self._before_update, self._after_update)
        self._settle_thread = SettleThread(self._saves.settle_if_copied)
        close_at_exit(self._closing)

    def _rejoin(self) -> None:
        """Goes on with the job, together with the replacement of a lost rank."""
        self._saves.live_job().rejoin()
        self._is_attached, self._due = False, DueSave()  # the new process knows of no save that waits
        self._watch.restart()
        self._agree_on_job()

    def _agree_on_job(self) -> None:
        job = self._saves.live_job()
        log_messages(job)
        # Ranks with several optimizers, or none, may see other boundaries than their peers.
        self._asks_all_ranks = job.any(self._boundaries.number != 1)
        if self._recovery.is_active:
            self._steps.agreed(saved := self._durable.agree(job))
            self._recovery.agreed(saved)

    def _with_those_left(self, call: Callable[[], None]) -> None:
        """Calls the function, and again for the smaller configuration if ranks are lost for good."""
        while True:
            try:
                return call()
            except FewerWorkers:
                self._elastic.go_on_with_fewer((), {})

    def _leave_configuration(self, *, alone: bool = False) -> None:
        """Closes the job, with all ranks or alone, and takes the parts back: others follow."""
        self._stalled += self._saves.stalled
        self._closing.close_for_change(self._release_parts, alone=alone)

    def _enter_configuration(self) -> Resume:
        """Makes the parts anew for the model of another configuration; what returns fills them."""
        self._open()
        self._messages.rank = self._state.rank
        return Resume(self._state, self._buckets, self._given.resuming)

    def _look(self) -> Captured:
        """What a save would hold now, with its plain values. Nothing is copied."""
        self._saves.settle()
        return self._saves.look()

    def _go_on_after(self, step: int, why: str, resume: Resume | None) -> None:
        """The state of that step is here, and the change is the job. `resume` has filled the parts, unless
        they are those of before."""
        if resume is not None:
            self.report = resume.report
        self._run_is_checked = True
        self._steps.take_over(step)
        self._changes.note(step)
        self._recovery.begin_after(step)
        self._saves.live_job().want(why)

    def _release_parts(self) -> None:
        """Takes back what the parts have put into other objects. The job is closed."""
        self._settle_thread.close()
        self._recovery.close()
        self._watch.close()
        job, self._saves.job = self._saves.live_job(), None
        self._state.data.close()
        del self._stopping  # it refers to this object, which shall be freed at once
        for hook in self._hooks:
            hook.remove()
        self._buckets.close()
        log_messages(job)
