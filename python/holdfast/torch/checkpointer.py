"""The checkpoints of a training loop: `holdfast.Checkpointer`."""

import functools
import inspect
from collections.abc import Callable, Mapping
from os import PathLike
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from holdfast import _native
from holdfast.checkpoint import Tiers, run_path
from holdfast.options import (
    Failures,
    Layout,
    Recover,
    Resuming,
    Schedule,
    Watch,
    Writing,
    check_every,
    check_groups,
    check_known,
    check_object_names,
)
from holdfast.rehearse.plan import places
from holdfast.torch.elastic.member import member_of
from holdfast.torch.loop import messages, rehearsal
from holdfast.torch.loop.branch import Start
from holdfast.torch.loop.due_save import DueSave
from holdfast.torch.loop.end_of_training import EndOfTraining
from holdfast.torch.loop.messages import Messages
from holdfast.torch.loop.metrics import Losses, wait_for_value
from holdfast.torch.loop.plain_parts import Resumed
from holdfast.torch.loop.resume import Resume
from holdfast.torch.loop.saves import Save
from holdfast.torch.loop.self_check import Check, check
from holdfast.torch.loop.step_calls import StepCalls
from holdfast.torch.loop.step_numbers import DurableSteps, OnDurable, StepNumbers
from holdfast.torch.loop.stop_grace import with_grace
from holdfast.torch.loop.stopping import memory_folder
from holdfast.torch.parts import Given, Parts
from holdfast.torch.recover.link import FewerWorkers
from holdfast.torch.state.model_tensors import Exclude
from holdfast.torch.state.report import Report
from holdfast.torch.state.stateful import VALUES, PlainValues
from holdfast.torch.state.tensor_state import Models, Optimizers
from holdfast.torch.values.all_ranks import rank_in
from holdfast.torch.watch.freeze_watch import Watched
from holdfast.whole_number import whole_number

Result = TypeVar("Result")


class Checkpointer(Parts):
    """Saves a training loop while it runs, and resumes it with the same bits.

        ck = holdfast.Checkpointer("runs/gpt", model=model, optimizer=opt, data=loader)
        start = ck.resume()                     # the next step to run; 0 at first
        for step, batch in enumerate(loader, start):
            loss = train(batch)
            ck.step(step, loss=loss)            # decides, captures, returns
        ck.close()                              # saves the end, waits until all is durable

    Make it on all ranks, after the model is wrapped and sharded and the optimizer is made. The model
    may be plain, DDP, FSDP2, tensor-parallel (DTensor), pipeline stages (`model` is then a list), or
    several of these on a mesh. A checkpoint can be resumed on any number of ranks and any split.

    model       a module, a list of pipeline stages, or a dict of modules.
    optimizer   an optimizer, a list or a dict of them.
    scheduler, scaler, ema
                objects with `state_dict` and `load_state_dict`, or lists or dicts of such.
    data        a data loader, or a list or dict of several: plain torch DataLoaders (they then have
                `epoch`, and resume as holdfast.data.resumable says), those of holdfast.data, or
                others that know their position.
    objects     your own objects by name: {"tracker": tracker}. Each has `state_dict` and
                `load_state_dict`, is a random generator, a dataclass, or a list or dict of these. The
                generators of the process, and those in the model and the data, are saved anyway.
    every       when to save: "500 steps", "10m", "auto" (the best interval for what saves cost and how
                often the job fails; while no failures are known, at most 5 minutes of work can be
                lost, as far as that costs at most 0.2 % of the time), "young", "daly", "checkfreq", "coci", "never"
                (only save() and stop signals), or a function of (step, seconds) of rank 0.
    keep        how many steps to keep: a number or a Keep; None keeps all. "auto" keeps 3, and
                removes only what the schedule has saved under "auto", nothing by save().
    tiers       further places for copies of each step: folders, "s3://bucket/prefix", Tier
                (holdfast.Saver says more). A lost run directory is brought back from any of them.

    The other options are in groups; help(holdfast.Writing) and so on describe them:

    writing     holdfast.Writing: memory, compression, how saves are checked.
    resuming    holdfast.Resuming: what resume() accepts.
    failures    holdfast.Failures: signals, and saves that fail.
    schedule    holdfast.Schedule: what the policies of `every` know of the job.
    layout      holdfast.Layout: how tensors lie on ranks, where they do not show it.
    watch       holdfast.Watch: finds and mends bits that flip in memory while training runs.

    exclude     parameters and buffers that are not saved, and that resume() leaves as they are:
                patterns of names, such as "encoder.*", or a function of (name, tensor).
    on_durable  a function of (step, folder), called when a save has become durable: by a later
                step(), save() or close(), on every rank, in the thread that trains.
    verbose     True: a line on stderr for each save; False: only warnings. By default there is one line
                at resume and one at the end. HOLDFAST_LOG=info (or warning) does the same.
    handover    True, or a folder in memory other than /dev/shm: a job that is asked to stop leaves its
                state there, for the next processes on these hosts (docs/handover.md).
    recover     whether a rank that dies is replaced while the others keep their processes, for
                steps made by run(): True under `holdfast launch`, and refused elsewhere. A
                holdfast.Recover says how, where no other rank has what the lost one had.

    A save that fails for a reason that may pass (a full disk) is tried again while training goes on,
    with a warning every minute; close() raises the error if the last save failed. Any other error is
    raised by the next step() that may save. Both are raised on all ranks alike.
    """

    def __init__(
        self,
        run: str | PathLike[str] = "",
        *,
        model: Models,
        optimizer: Optimizers | None = None,
        scheduler: Any = None,
        scaler: Any = None,
        ema: Any = None,
        data: Any = None,
        objects: Mapping[str, Any] | None = None,
        every: str | Callable[[int, float], bool] = "auto",
        keep: int | str | _native.Keep | None = "auto",
        tiers: Tiers = (),
        writing: Writing = Writing(),
        resuming: Resuming = Resuming(),
        failures: Failures = Failures(),
        schedule: Schedule = Schedule(),
        layout: Layout = Layout(),
        watch: Watch | None = None,
        exclude: Exclude = (),
        on_durable: OnDurable | None = None,
        verbose: bool | None = None,
        handover: bool | str | PathLike[str] = False,
        recover: bool | Recover | None = None,
        **unknown: Any,
    ) -> None:
        check_known("Checkpointer", unknown, _KEYWORDS)
        check_every(every)
        check_groups(writing=writing, resuming=resuming, failures=failures, schedule=schedule,
                     layout=layout, **({} if watch is None else {"watch": watch}))
        check_object_names(objects or {}, [*_KEYWORDS, VALUES])
        self._run, tiers, handover = places(run_path(run), tiers, handover)
        self._values = PlainValues()
        named = {"scheduler": scheduler, "scaler": scaler, "ema": ema, **(objects or {}),
                 VALUES: self._values}
        self._given = Given(
            self._run, model, optimizer, named, data, scaler, every, keep, tiers, writing, resuming,
            with_grace(failures), schedule, layout, watch, exclude, memory_folder(handover), recover)
        self._elastic = member_of(model)
        self._messages, self._durable = Messages(rank_in(layout.group), verbose), DurableSteps(on_durable)
        self._never_saves, self._resuming = every == "never", resuming
        self.step_calls, self.report, self._stalled = StepCalls(), Report(), 0.0
        self._steps, self._group = StepNumbers(schedule.total_steps), layout.group
        self.epoch_of: Callable[[], int] | None = None  # set by an adapter that counts epochs itself
        self._losses, self._rehearsal = Losses(every if callable(every) else None), rehearsal.current()
        if not self._elastic.attach(self):  # else this process has no place in the job yet
            self._open()
        self._rehearsal.attach(self)

    @property
    def stall(self) -> float:
        """Seconds that training has waited for saves in all, the first look included."""
        return self._stalled + self._saves.stalled

    @property
    def latest_step(self) -> int | None:
        """The newest step that no crash can lose, as far as this rank knows; None if there is none."""
        self._durable.look()
        return self._durable.latest

    @property
    def replaying(self) -> bool:
        """True in steps that the replacement of a lost rank makes again alone (docs/recovery.md)."""
        return self._recovery.is_replaying

    @property
    def watched(self) -> Watched | None:
        """What the watch looks at and has found so far; None without `watch=`."""
        return self._watch.watched

    @property
    def values(self) -> dict[str, Any]:
        """Plain values that are saved with the training: an epoch, a best score.

        Set those that must exist before resume(), which replaces them: ck.values["best"] = math.inf
        """
        return self._values

    @values.setter
    def values(self, values: Mapping[str, Any]) -> None:
        self._values.replace(values)

    def resume(self, *, step: int | None = None, initial: str | PathLike[str] | None = None) -> int:
        """Restores the newest whole checkpoint. Returns the next step to run, 0 if there is none.

        `step` goes back to the checkpoint of that step. `initial` begins a run that has no
        checkpoint with the weights of a file or of another run (holdfast.load_into says more).
        Both apply once: a script that is started again goes on with the newest checkpoint.

        `report` then says what was not as expected, which newer checkpoints were damaged, and
        from which tier the checkpoint was copied. ValueError, with that report and before anything
        is changed, if the checkpoint is of another model and resuming is strict, or if a tensor has
        another shape or dtype. NotFoundError if there is none of `step`, or none after steps were made.
        """
        step, initial = self._rehearsal.to_resume(step, initial)
        if self._elastic.waits:
            return self._elastic.join()
        start = self._recovery.resume(functools.partial(self._resume, step, initial), self._take_over)
        self._rehearsal.resumed(self, start)
        return start

    def _take_over(self, step: int) -> int:
        """Goes on after that step, in the place of a lost rank."""
        self._run_is_checked = True
        self._changes.note_whole(step)
        return self._steps.take_over(step) + 1

    def _resume(self, step: int | None, initial: str | PathLike[str] | None) -> Resumed:
        self._watch.restart()  # tensors are written to in a way that torch does not count
        self._values.before_resume()
        self._saves.wait_until_done()
        start = Start(self._run, self._state, step, initial, self._saves.live_job().left_objects)
        resume = Resume(self._state, self._buckets, self._resuming, self._steps.last)
        try:
            restored = resume.run_or_begin(self._saves, start)
        finally:
            self.report = resume.report
        self._run_is_checked = True  # not after an error: the steps of the run stay protected
        self._changes.restart(is_restored=restored is not None)
        self._messages.tell(start.sentence)
        if restored is None:
            return Resumed(0)
        if restored.in_memory:  # not durable, so close() saves it if no step follows
            self._steps.take_over(restored.step)
            self._changes.note(restored.step)
        else:
            self._steps.resumed(restored.step)
            self._durable.resumed(restored.step)
        return Resumed(restored.step + 1, restored.in_memory, self.report.inexact)

    def run(self, function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        """Makes a step: calls the function, and again if a rank dies before the update in it.

            loss = ck.run(train, batch)     # it was: loss = train(batch)

        Under `holdfast launch`, the rank that died is replaced, and gets its state from the
        others. What ranks exchange must come before the update of the optimizer, and all
        micro-batches of the update belong into one call. What else the function does (prints,
        counters) may happen twice. Without `holdfast launch` this is a plain call.
        """
        while True:
            try:
                return self._recovery.run(function, args, kwargs)
            except FewerWorkers:
                args, kwargs = self._elastic.go_on_with_fewer(args, kwargs)

    def step(self, step: int, loss: Any = None, *, metrics: Mapping[str, Any] | None = None) -> None:
        """Call it when `step` is done. It saves if it is time, in the background.

        While gradients wait for an update (accumulation), it saves nothing: a save that is due waits
        for the next call between two updates. A save that has waited for 16 calls (or twice the
        longest accumulation so far), one after a stop signal, and that of the last step do not wait,
        and include the gradients.

        The loss is saved as the metric "loss", for Keep(best=). Reading a loss from the GPU would
        block training, so the saved metric may lag the step by up to about 20 steps. `metrics`,
        such as {"val_acc": 0.8}, go with the next save, of this step or later; rank 0's count.
        """
        step = self._steps.check_next(step, bool(self._boundaries.stepped))
        # Behind a long step, with cold caches, a call costs microseconds: parts that are not in use are not called.
        if self._rehearsal.is_on:
            self._rehearsal.made(self, step, loss)
        if metrics is not None:
            self._saves.metrics.tell(metrics)
        if not self._recovery.after_step(self._step, step, loss):
            self._changes.note_whole(step)
        if self.step_calls.waiting:
            self.step_calls.run(step)
        if self._elastic.is_member:
            self._elastic.after_step(step)

    def _step(self, step: int, loss: Any) -> None:
        job = self._saves.job or self._saves.live_job()
        if self._durable.pending:
            self._durable.look()
        self._state.data.note_step()
        self._changes.next_call(self._messages.warn_once, not (self._recovery.is_active or self.epoch_of))
        if not self._is_attached and not self._is_mid_update():
            self.check_new()
            self._is_attached = True
            self._saves.attach_all()
        idle = not self._boundaries.done and self._boundaries.is_idle
        if not idle and self._losses.decide is not None:
            self._losses.ask(job, step)
        if self._elastic.is_member:
            self._elastic.ask(job)
        known = None if idle or loss is None else self._losses.record(step, loss)
        due, last = self._stopping.due(job, step, not idle, known), step + 1 == self._steps.total
        due = due or (self._rehearsal.due(step) if self._rehearsal.is_on else None)
        if due is not None or last:
            self._elastic.appoint(due)
            self._due.ask(due, last)
        self._changes.note(step, last)
        if self._is_attached and self._watch.is_on:
            self._watch.step(step, loss, is_blind=self._boundaries.updates_unseen)
        if self._due.reason and (self._due.reason[0] or not self._changes.by_unknown):
            self._save_due(step, loss, last)

    def _save_due(self, step: int, loss: Any, last: bool) -> None:
        """Makes the save that is due, unless it should wait for the end of an update."""
        stop, why, mid_update = *self._due.reason, self._is_mid_update()
        if self._due.waits(mid_update and not (stop or last), self._boundaries.patience):
            return
        if mid_update and not (stop or last):
            self._messages.warn_once(messages.PENDING_GRADIENTS, self._due.calls_waited)
        self._due = DueSave()
        end = self._stopping.stop if stop else self._save
        end(step, loss, why, automatic=not last, with_gradients=mid_update)

    def _is_mid_update(self) -> bool:
        """True if gradients wait for an update on any rank."""
        mid_update = self._boundaries.is_mid_update()
        return self._saves.live_job().any(mid_update) if self._asks_all_ranks else mid_update

    def save(self, step: int, loss: Any = None, *, metrics: Mapping[str, Any] | None = None) -> Save:
        """Saves now, whatever is due. Call it on all ranks together, between two updates.

        The loss (the metric "loss") and `metrics` ({"val_acc": 0.8}) are of that very step. If they
        are on a GPU, save() waits. Without them, a step just saved is not saved again.
        """
        self._saves.metrics.tell(metrics, wait=True)
        save = functools.partial(self._save_asked, whole_number("step", step), wait_for_value(loss))
        self._with_those_left(lambda: self._recovery.save(save))
        self._rehearsal.saved(self, step, loss)
        return Save(self._saves, self._recovery.check_no_loss)

    def _save_asked(self, step: int, loss: Any) -> None:
        self._state.data.note_save()
        if loss is not None or step != self._steps.saved_last or not self._is_saved(step):
            self._save(step, loss, "asked for")
            self._changes.note(step)

    def _is_saved(self, step: int) -> bool:
        """True if on all ranks the newest save is of that step, and the model has not changed."""
        is_saved = self._saves.is_newest_good() and not (
            self._saves.metrics.has_news or self._changes.changed_since(step))
        return not self._saves.live_job().any(not is_saved)

    def _save(self, step: int, loss: Any, why: str, *, automatic: bool = False,
              with_gradients: bool = False) -> _native.SaveHandle:
        loss = self._before_save(step, loss)
        self._durable.look()
        handle = self._saves.begin(step, loss, why, automatic=automatic, with_gradients=with_gradients)
        self._durable.begun(step, handle)
        self._steps.saved(step)
        self._messages.detail(f"saving after step {step}: {why}")
        if self._changes.after_save(step, with_gradients, self._messages.warn_once):
            self._saves.settle()  # no hook may do it before the next update
        return handle

    def _before_save(self, step: int, loss: Any) -> float | None:
        """Checks that the run may be written to, and lets ranks compare. Returns the loss."""
        if not self._is_attached:
            self.check_new()
        self._watch.compare(step)
        return self._losses.newest(loss)

    def check_new(self, expected: str = "resume() before the first step, or another folder") -> None:
        """ValueError, on all ranks, if the run has steps; `expected` says what to do then.

        The first step() and save() call it, unless resume() has returned: steps of another training would
        be removed as older steps of this one."""
        if not self._run_is_checked:
            self._saves.live_job().check_new(expected)
        self._run_is_checked = True

    def _before_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Settles the newest save: the update changes its tensors."""
        if self._recovery.is_making_updates:
            return None
        self._changes.before_update(optimizer)
        changed = self._watch.before_update(optimizer, args, kwargs) if self._watch.is_on else None
        args, kwargs = changed or (args, kwargs)
        if self._recovery.is_active:
            changed = self._recovery.before_update(args, kwargs) or changed
            args, kwargs = changed or (args, kwargs)
        if not self._saves.is_unsettled or not self._boundaries.knows(optimizer):
            return changed
        return self._saves.settle_before_update(optimizer, args, kwargs) or changed

    def _after_update(self, optimizer: torch.optim.Optimizer) -> None:
        if self._recovery.is_making_updates:
            return
        if self._recovery.is_active:
            self._recovery.after_update(optimizer)
        self._changes.after_update(optimizer)

    def check(self) -> Check:
        """Saves to a scratch folder beside the run, and tells whether what comes back is in memory.

        Call it on all ranks together, between two updates: print(ck.check()). It also lists what was
        found and is not saved. `holdfast rehearse` tells more: it kills the script.
        """
        return check(self._state, self._saves, self._run, self._group, self._changes.find_unsaved())

    def close(self, timeout: float | None = None, *, save: bool = True) -> None:
        """Waits until everything is durable, and raises the error of the last save if it failed.

        Before that, it saves the last step if no checkpoint has it: if all ranks come to close()
        within 5 seconds of each other, no exception is on its way, and no write to the model was
        seen since then. Otherwise it warns. With save=False, or every="never", it saves nothing.
        """
        if self._saves.job is not None:
            self._with_those_left(lambda: self._close(timeout, save=save))

    def _close(self, timeout: float | None, *, save: bool) -> None:
        end = EndOfTraining(self._saves, self._steps, self._changes, self._watch, self._recovery.check_not_broken)
        self._recovery.at_end(lambda: end.save(self._save_last, save, self._never_saves, timeout),
                              self._closing, timeout)

    def _save_last(self, step: int) -> None:
        self._state.data.note_end()
        self._save(step, self._losses.of_step(step), "the end of the training", with_gradients=self._is_mid_update())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close() if error is None else self._closing.leave(error)

    def leave(self, error: BaseException | None) -> None:
        """Closes it without a save of the end; a failure becomes a note of the error, if any."""
        self._closing.leave(error)

    def _release(self) -> None:
        self._rehearsal.detach(self)
        self._elastic.release()
        self._release_parts()
        self._messages.tell(f"{self._run}: {self._durable.summary()}, for which training waited "
                            f"{self.stall:.2g} s")


_KEYWORDS = [name for name, parameter in inspect.signature(Checkpointer).parameters.items()
             if parameter.kind is parameter.KEYWORD_ONLY]
