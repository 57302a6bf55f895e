"""The checkpoints of a training loop: `holdfast.Checkpointer`."""

import atexit
import contextlib
import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist

from holdfast import _native
from holdfast.checkpoint import Tiers, absolute
from holdfast.errors import NotFoundError, UnavailableError
from holdfast.torch.loop.job import complete, open_job, warn
from holdfast.torch.loop.losses import Losses, waited_for
from holdfast.torch.loop.optimizer_hooks import hook_updates, with_closure
from holdfast.torch.loop.resume_report import Report, compare
from holdfast.torch.loop.settle_thread import Settler
from holdfast.torch.loop.step_numbers import Steps, whole_number
from holdfast.torch.loop.transport import connect
from holdfast.torch.loop.update_boundaries import Boundaries
from holdfast.torch.state.capture import Captured
from holdfast.torch.state.ddp_buckets import Buckets
from holdfast.torch.state.diverged_replicas import Differing, warning
from holdfast.torch.state.module_names import Renaming
from holdfast.torch.state.tensor_state import Models, Optimizers
from holdfast.torch.state.training_state import Contents
from holdfast.torch.values.boxes import Rule

_NEVER = "1000000000000 steps"  # a function decides
STOPPED = 143  # the exit code of a process that was asked to stop and has saved
_AT_EXIT = 600.0  # seconds for the last saves of a process that ends without close()

_log = logging.getLogger("holdfast")


class Checkpointer:
    """Saves a training loop while it runs, and takes it up again with the same bits.

        ck = holdfast.Checkpointer("runs/gpt", model=model, optimizer=opt, scheduler=sched,
                                   data=loader)
        start = ck.resume()                     # the next step to run; 0 at first
        for step, batch in enumerate(loader, start):
            loss = train(batch)
            ck.step(step, loss=loss)            # decides, captures, returns
        ck.close()                              # waits until all is durable

    Made on all ranks, after the model is wrapped and sharded and the optimizer is made:
    plain, DDP, FSDP2, tensor-parallel (DTensor), pipeline stages (`model` is then a list),
    and what is made of them on a mesh. A checkpoint can be resumed on any number of ranks
    and any split.

    scheduler, scaler, ema, data, and any other keyword: objects with `state_dict` and
    `load_state_dict`, or lists or dicts of such. `data` is one loader: holdfast.data's, or one
    that knows its position.

    every       "500 steps", "10m", "auto" (the longest interval that is as good as the best
                for what saves cost and how often the job fails), "young", "daly",
                "checkfreq", "coci", or a function of (step, seconds since the start) that
                says whether to save; rank 0's counts.
    objective   of "auto": "delay", "progress", "explore" or "priced"; mtbf, deadline: in
                seconds; total_steps, budget (saves in all), slack, stop_rate, milestones,
                durable_steps: docs/schedule.md.
    keep        steps to keep: a number or a Keep; None keeps all.
    tiers       further places for copies of each step, made in the background once it is
                durable: folders, "s3://bucket/prefix", Tier (holdfast.Saver has more). A run
                directory that was lost comes back from whichever is left. Without a step it
                does not start while a tier is silent, unless allow_unreachable_tiers=True,
                nor where all that a tier has is damaged or of another run.
    guard       what catches writes to tensors before they are captured: "sample" (versions,
                and the beginning, the end and other places of every tensor, which find
                weights that are exchanged through .data), "full" (every byte: for code that
                writes to a few elements through .data), "off" (nothing). A save that was
                caught is made again; after a write that no version told, every save copies
                all tensors before it returns.
    strict      False: resume() leaves out what is missing in the checkpoint or unexpected,
                and the state of an optimizer or scheduler of another kind.
    spec        rules by name pattern for tensors that do not show how they are cut, or what
                ranks hold of them ("equal", "own", "first"; Sharded, Part); the words are for
                plain values of objects, too: {"tracker.best": "first"}.
    names       renames tensors of pipeline stages whose names begin anew.
    generators  random generators of your own, by name; Python's, NumPy's and torch's are
                saved anyway.
    grace       seconds for the save after SIGTERM or SIGUSR1, upon which all ranks save at
                the same step and exit with 143; and for the saves under way when an exception
                ends one rank of several. signals=False leaves the signals alone.
    verify      "fast", or "full": resume() reads and checks all of a checkpoint first.
    ring        bytes of staging memory; 0: as much as the state, a quarter of what is free
                at most, which the ranks of a machine share. `backpressure`, `in_flight`,
                `read_back`, `incremental`, `compress` and `space_reserve` are those of
                holdfast.Saver.

    fail_after  "30m", or seconds: ends training once all saves have failed for so long; None
                lets it go on for ever.

    A save that fails for a reason that may pass (a full disk) is dropped and tried again, with
    pauses that grow to a minute, while training goes on; a warning at least every minute
    names the last durable step. close() raises it if the last save failed. Anything else is
    raised by the next step() that may save. Both are raised on all ranks alike.
    """

    def __init__(
        self,
        run: str | PathLike[str],
        *,
        model: Models,
        optimizer: Optimizers | None = None,
        scheduler: Any = None,
        scaler: Any = None,
        ema: Any = None,
        data: Any = None,
        every: str | Callable[[int, float], bool] = "auto",
        objective: str | None = None,
        mtbf: float | None = None,
        budget: int | None = None,
        total_steps: int | None = None,
        deadline: float | None = None,
        slack: float | None = None,
        stop_rate: float | None = None,
        milestones: Sequence[int] | None = None,
        durable_steps: Sequence[int] | None = None,
        keep: int | _native.Keep | None = None,
        tiers: Tiers = (),
        allow_unreachable_tiers: bool = False,
        guard: str = "sample",
        strict: bool = True,
        spec: Mapping[str, Rule] | None = None,
        names: Renaming | Sequence[Renaming | None] | None = None,
        generators: Mapping[str, Any] | None = None,
        group: dist.ProcessGroup | None = None,
        grace: float = 60.0,
        signals: bool = True,
        verify: str = "fast",
        ring: int = 0,
        backpressure: str = "wait",
        in_flight: int = 2,
        read_back: bool = False,
        incremental: bool = False,
        compress: int = 0,
        space_reserve: int = 64 << 20,
        direct: bool = True,
        timeout: float = 60.0,
        fail_after: str | float | None = None,
        **objects: Any,
    ) -> None:
        if verify not in ("fast", "full"):
            raise ValueError(f"verify={verify!r}: want 'fast' or 'full'")
        if not (isinstance(every, str) or callable(every)):
            raise TypeError(f'every={every!r}: want "500 steps", "10m", a policy or a function')
        self._run = absolute(run)
        things = {"scheduler": scheduler, "scaler": scaler, "ema": ema} | objects
        self._contents = Contents(model, optimizer, things, data, names, spec, generators, group)
        self._buckets = Buckets(model)
        self._strict = strict
        self._verify_all = verify == "full"
        self._boundaries = Boundaries(self._contents.optimizers, self._contents.models)
        self._owed: tuple[bool, str] | None = None  # a save that is due: is it the last, and why
        self._waited = 0  # calls of step() that it has waited for the end of an update
        self._stranger = False  # an optimizer that was not given has updated the model
        self._warned: set[str] = set()  # what was said once
        self._steps = Steps(total_steps)
        self._asked = False  # whether there is something to resume
        self._attached = False
        self._looked = False  # at all that is saved, when it was there
        # The newest save, until it is settled; by another thread, too (settle_thread.py).
        self._lock = threading.RLock()
        self._unsettled: Captured | None = None
        self._handle: _native.SaveHandle | None = None
        self._stream = 0  # in which that save was made
        self._saved = False  # and not settled yet
        self._at_once = False  # saves are settled before they return: no version tells of writes
        self._stalled = 0.0
        self.report = Report()
        self._grace = grace
        self._transport = connect(group)
        self._job: _native.Job | None = open_job(
            self._run, self._transport, every=_NEVER if callable(every) else every, grace=grace,
            signals=signals, keep=keep, tiers=tiers, ring=ring, backpressure=backpressure,
            in_flight=in_flight, read_back=read_back, incremental=incremental,
            compress=compress, space_reserve=space_reserve, direct=direct, guard=guard,
            timeout=timeout, fail_after=fail_after,
            allow_unreachable_tiers=allow_unreachable_tiers,
            schedule={"objective": objective, "mtbf": mtbf, "budget": budget,
                      "total_steps": total_steps, "deadline": deadline, "slack": slack,
                      "stop_rate": stop_rate, "milestones": _listed(milestones),
                      "durable_steps": _listed(durable_steps)},
        )
        warn(self._job)
        # Ranks that have other optimizers may see other boundaries.
        self._agrees = self._job.any(self._boundaries.number != 1)
        self._decide = every if callable(every) else None
        self._started = time.monotonic()
        self._losses = Losses()
        self._hooks = hook_updates(self._before_update, self._after_update)
        self._settler = Settler(self._settle_late)
        atexit.register(_close_at_exit, weakref.ref(self))

    @property
    def stall(self) -> float:
        """Seconds that training has waited for saves, all in all: the first look included."""
        return self._stalled

    def resume(self) -> int:
        """Takes up the newest whole checkpoint; the next step to run, 0 if there is none.

        `report` then says what was not as expected, which newer ones were damaged, and from
        which tier it came. ValueError, with that report and before anything is touched, if the
        checkpoint is of another model and `strict`, or if a tensor has another shape or dtype.
        """
        self._asked = True
        self._await_saves()
        tried: list[_native.Looked] = []
        try:
            restored = self._live().resume(lambda found: self._room_for(found, tried),
                                           self._verify_all, _stream())
        except NotFoundError:
            _log.info("resume: no checkpoint in %s nor in its tiers, starting from 0", self._run)
            self._attach()
            return 0
        found = tried[-1]
        self._contents.load(restored, found)
        self._attached = True
        self.report.tier = restored.tier
        self.report.skipped = restored.skipped
        self._steps.resumed(restored.step)
        for folder, why in restored.skipped:
            _log.warning("resume: %s is passed over: %s", folder, why)
        for reason in self._buckets.restore(restored.objects["buckets"]):
            self.report.inexact.append(f"buckets of {reason}")
        self.report.inexact += self._contents.inexact(found)
        self._contents.load_gradients()
        self._contents.restore_generators(found, self.report)
        self.report.inexact += self._contents.inexact_gradients(found)
        for line in self.report.inexact:
            _log.warning("resume: %s", line)
        _log.info("resumed after step %d from %s%s", restored.step, restored.folder,
                  f", copied from {restored.tier}" if restored.tier else "")
        return restored.step + 1

    def _room_for(self, found: _native.Looked, tried: list[_native.Looked]) -> _native.Pieces:
        """Memory for the newest step, and for an older one if that turns out to be damaged."""
        tried.append(found)
        self._contents.take_parted(found)
        self.report = compare(self._contents, found)
        if self.report.reshaped or (self._strict and not self.report.exact):
            damaged = f" ({tried[0].folder} is damaged, and has been read in part)"
            raise ValueError(f"{found.folder}: {self.report.refusal}{damaged if tried[1:] else ''}")
        if not self.report.exact:
            _log.warning("resume: %s: %s", found.folder, self.report)
            if not self._contents.has_any(found):
                raise ValueError(f"{found.folder}: none of its tensors is one of the model's")
        return _native.Pieces(self._contents.make_room(found))

    def step(self, step: int, loss: Any = None) -> None:
        """To be called when `step` is done: saves if it is time, in the background.

        Saves nothing in the middle of gradient accumulation, where gradients wait for an
        update: what is due then waits for the next call that lies between two updates. A save
        that has waited for 16 calls (twice the longest accumulation so far, if that is more),
        one at a stop signal and that of the last step are made at once, with the gradients.
        The loss is saved as the metric "loss", for Keep(best=); no GPU is waited for, so that
        of a loss there it is the newest that has come from it, of some 20 steps before at most.
        """
        job = self._live()
        step = self._steps.take(step)
        self._boundaries.look()
        if not self._looked and not self._is_middle():
            self._look()
        idle = self._boundaries.is_idle
        if not idle:
            self._tell_policies(step, loss)
        due, last = job.due(step, not idle), self._steps.is_last_of_all(step)
        if due is not None or (last and self._owed is None):
            self._owed = due or (False, "the last step")
        if self._stranger:
            self._warn_once("an optimizer that the Checkpointer was not given has updated the "
                            "model: such steps are not saved, want a new Checkpointer")
        if self._owed is not None and (self._owed[0] or not self._stranger):
            self._save_what_is_owed(step, loss, last, *self._owed)

    def _tell_policies(self, step: int, loss: Any) -> None:
        job = self._live()
        if loss is not None and (known := self._losses.take(step, loss)) is not None:
            job.loss(*known)
        if self._decide is not None and self._decide(step, time.monotonic() - self._started):
            job.want("asked for by every=")

    def _save_what_is_owed(self, step: int, loss: Any, last: bool, stop: bool, why: str) -> None:
        """Now, or after a later call: not while gradients wait for an update."""
        middle = self._is_middle()
        self._waited += 1
        if middle and not (stop or last):
            if self._waited <= self._boundaries.patience:
                return
            self._warn_once("gradients have waited for an update for %d steps: saved with them, "
                            "in the middle of it", self._waited)
        self._owed, self._waited = None, 0
        handle = self._save(step, loss, why, gradients=middle)
        if stop:
            self._stop(step, handle, why)

    def _is_middle(self) -> bool:
        """True if on any rank gradients wait for an update."""
        middle = self._boundaries.is_middle()
        return self._live().any(middle) if self._agrees else middle

    def save(self, step: int, loss: Any = None) -> "Save":
        """Saves now, whatever is due. On all ranks together, between two updates.

        A loss is saved as the metric "loss" of that very step: for one on a GPU it waits.
        """
        return Save(self, self._save(whole_number(step), waited_for(loss), "asked for"))

    def close(self, timeout: float | None = None) -> None:
        """Waits until all is durable, and raises what the last save did.

        It saves nothing: the model may be another by now. It warns of steps that are lost so.
        """
        if self._job is not None and (lost := self._steps.lost()):
            _log.warning("%s", lost)
        self._close(timeout)

    def _close(self, timeout: float | None = None, *, orderly: bool = True) -> None:
        if self._job is None:
            return
        try:
            self._settle(timeout)
            self._job.close(timeout, alone=not orderly, orderly=orderly)
        except TimeoutError:  # saves go on, and it may be called again
            raise
        except Exception:
            self._let_go()
            raise
        self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        """Closes it; an error that is on its way stays what it is."""
        if error is None:
            self._close()
            return
        try:
            self._end(error)
        except Exception as failure:
            error.add_note(f"and the last save failed: {failure}")

    def _end(self, error: BaseException | None) -> None:
        """A close() of a process that ends before its time, for that error if any.

        The other ranks may be waiting for this one in a collective call: nothing is agreed
        upon with them, and they find it gone.
        """
        if self._job is None:
            return
        # The next process counts any other end as a failure, and saves more often.
        orderly = error is None or isinstance(error, SystemExit)
        if self._transport is None:
            self._close(orderly=orderly)
            return
        timeout = _AT_EXIT if orderly else self._grace
        try:
            self._settle(timeout)
            self._job.close(timeout, alone=True, orderly=orderly)
        finally:
            self._transport.close()  # and whoever waits for others here gives up
            self._let_go()

    def _let_go(self) -> None:
        self._settler.close()
        job, self._job = self._live(), None
        for hook in self._hooks:
            hook.remove()
        self._buckets.close()
        warn(job)

    def _live(self) -> _native.Job:
        if self._job is None:
            raise ValueError("the checkpointer is closed")
        return self._job

    def _attach(self) -> None:
        def part(found: list[Differing]) -> _native.Pieces:
            self._part(found)
            return self._contents.held()

        self._live().attach(self._contents.held(), _stream(), part)
        self._attached = True

    def _part(self, found: list[Differing], captured: Captured | None = None) -> None:
        """When tensors differ between ranks that were taken for the same; of that save."""
        self._contents.part(found)
        _log.warning("%s", warning(found))
        if captured is not None:
            again = self._contents.capture()
            captured.held, captured.watched = again.held, again.watched
            captured.objects, captured.rank_objects = again.objects, again.rank_objects
            captured.owners.extend(again.owners)  # the list that the save keeps

    def _parting(self, captured: Captured) -> Callable[[list[Differing]], _native.Pieces]:
        def part(found: list[Differing]) -> _native.Pieces:
            self._part(found, captured)
            return captured.held

        return part

    def _look(self) -> None:
        """After the first update, which makes slots: the first save is like the others."""
        start = time.perf_counter()
        self._check_new()
        self._looked = True
        self._settle()
        captured = self._contents.capture()
        self._objects(captured)  # what cannot be stored is said now
        self._live().attach(captured.held, _stream(), self._parting(captured))
        self._attached = True
        self._stalled += time.perf_counter() - start

    def _check_new(self) -> None:
        """Or steps of another training would be taken for older ones of this, and removed."""
        if self._asked:
            return
        there = sorted(path.name for path in Path(self._run).glob("step-*"))
        if there:
            raise ValueError(f"{self._run}: {there[-1]} is there already, want resume() before the "
                             "first step, or another folder")
        self._asked = True

    def _await_saves(self) -> None:
        """Of this process, so that the newest is found; what becomes of them is said elsewhere."""
        self._settle()
        if self._handle is not None:
            with contextlib.suppress(Exception):
                self._handle.durable()

    def _save(self, step: int, loss: Any, why: str, *,
              gradients: bool = False) -> _native.SaveHandle:
        if not self._looked:
            self._check_new()
        start = time.perf_counter()
        with self._lock:
            self._handle = self._begin_save(step, loss, gradients)
        self._steps.saved(step)
        self._stalled += time.perf_counter() - start
        _log.info("saving after step %d: %s", step, why)
        if self._boundaries.updates_unseen:
            self._warn_once("no hook tells of the optimizer's updates (it is no torch optimizer, "
                            "or a CUDA graph replays its steps): each step() is taken for the "
                            "end of an update, and every save waits until it is copied")
            self._settle()  # nobody else does so before the update
        return self._handle

    def _begin_save(self, step: int, loss: Any, gradients: bool) -> _native.SaveHandle:
        self._saved = True  # what was seen late of the last save is said, too
        self._settle()
        warn(self._live())
        if not self._attached:
            self._attach()
        captured = self._contents.capture(gradients=gradients)
        self._stream = _stream()
        known = self._losses.newest(loss)
        job = self._live()
        handle = job.save(step, captured.held, captured.owners,
                          {} if known is None else {"loss": known}, self._contents.parallel,
                          self._stream, self._parting(captured))
        if job.may_tear():
            captured.watch()
        self._unsettled = captured
        self._saved = True
        complete(job, lambda: self._objects(captured))
        if self._at_once and job.may_tear():
            self._settle_now(self._stream, None)
        return handle

    def _objects(self, captured: Captured) -> tuple[dict[str, Any], dict[str, Any]]:
        self._contents.complete(captured)
        captured.objects["buckets"] = self._buckets.state()
        return captured.objects, captured.rank_objects

    def _settle(self, timeout: float | None = None) -> None:
        """Before tensors change: their copies are complete, and as they were."""
        if not self._saved or self._job is None:
            return
        start = time.perf_counter()
        with self._lock:
            if self._saved:
                self._settle_now(_stream(), timeout)
        self._stalled += time.perf_counter() - start

    def _settle_late(self) -> None:
        """Called by the settler: what is copied already waits for nobody but this.

        What is to be said is said, also while training waits for other ranks, with the lock.
        """
        if (job := self._job) is not None:
            warn(job)
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._saved and self._handle is not None and self._handle.is_captured:
                self._settle_now(self._stream, None)
        finally:
            self._lock.release()

    def _settle_now(self, stream: int, timeout: float | None) -> None:
        changed = [] if self._unsettled is None else self._unsettled.changed()
        torn = self._live().settle(changed, stream, timeout)
        self._saved, self._unsettled = False, None  # not if the wait was interrupted
        if torn:
            self._note_torn(torn, changed)

    def _note_torn(self, torn: list[str], changed: list[str]) -> None:
        """Tensors whose versions have told are known; after other writes none is trusted."""
        more = f" ({len(torn) - 1} more)" if len(torn) > 1 else ""
        if set(torn) <= set(changed):
            self._contents.copy_at_once(torn)
            _log.warning("%s was written to between two updates: saved again, and copied at "
                         "once from now on%s", torn[0], more)
        else:
            self._at_once = True
            _log.warning("%s was written to between two updates in a way that torch does not "
                         "count (.data)%s: saved again, and from now on every save waits until "
                         "all tensors are copied", torn[0], more)

    def _stop(self, step: int, handle: _native.SaveHandle, why: str) -> None:
        self._settle()
        try:
            self._live().wait_stopped(handle)
        except UnavailableError:
            if not handle.is_torn:
                raise
            handle = self._save(step, None, why)  # on all ranks: replicas were seen to differ
            self._settle()
            self._live().wait_stopped(handle)
        self._close()
        _log.warning("stopped after step %d, which is saved: %s", step, why)
        raise SystemExit(STOPPED)

    def _before_update(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        if not self._saved or not self._boundaries.knows(optimizer):
            return None
        # Torch's own change nothing before they have called it.
        if type(optimizer).__module__.startswith("torch.optim."):
            changed = with_closure(args, kwargs, self._settle_after)
            if changed is not None:
                return changed
        self._settle()
        return None

    def _settle_after(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Forward and backward are in there, which hide the copying."""

        def then_settle() -> Any:
            result = closure()
            self._settle()
            return result

        return then_settle

    def _warn_once(self, text: str, *values: Any) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning(text, *values)

    def _after_update(self, optimizer: torch.optim.Optimizer) -> None:
        if self._boundaries.updated(optimizer):
            self._stranger = False  # it may be inside of it
        elif not (self._stranger or self._boundaries.has_stepped):
            self._stranger = self._contents.owns(optimizer)


class Save:
    """A save that was asked for. To wait for it is left to the thread that trains."""

    def __init__(self, checkpointer: Checkpointer, handle: _native.SaveHandle) -> None:
        self._checkpointer = checkpointer
        self._handle = handle

    @property
    def is_done(self) -> bool:
        """True if it is durable, or has failed."""
        return self._handle.is_done

    def captured(self, timeout: float | None = None) -> None:
        """Waits until the tensors may change."""
        self._checkpointer._settle(timeout)
        self._handle.captured(timeout)

    def durable(self, timeout: float | None = None) -> _native.Durable:
        """Waits until no crash can lose it; raises what it failed with."""
        self._checkpointer._settle(timeout)  # or nobody would say that the copy is good
        return self._handle.durable(timeout)


def _close_at_exit(ref: "weakref.ref[Checkpointer]") -> None:
    live = ref()
    if live is not None:
        try:
            live._end(getattr(sys, "last_value", None))  # what nobody has caught
        except Exception as error:
            _log.error("at exit: %s", error)


def _listed(numbers: Sequence[int] | None) -> list[int] | None:
    return None if numbers is None else list(numbers)


def _stream() -> int:
    """Of CUDA, in which training's work is; without an object around it, which takes long."""
    if not torch.cuda.is_initialized():
        return 0
    return torch._C._cuda_getCurrentRawStream(torch._C._cuda_getDevice())
