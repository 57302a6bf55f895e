"""Begins saves, and settles each of them before training changes the tensors.

The engine copies the tensors of a save in the background. Settling a save means: wait until the
copy is complete, and find out whether a tensor was written to while it was copied. Such a save is
torn: all ranks drop it, and it is made again at the next step. A save that nobody settles is
never committed. Training settles a save before the next update; if no update comes for a while,
a background thread settles it (settle_thread.py).
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from holdfast import _native
from holdfast.checkpoint import log_messages
from holdfast.errors import Interrupted, UnavailableError
from holdfast.torch.loop import metrics
from holdfast.torch.loop.metrics import Metrics
from holdfast.torch.loop.optimizer_hooks import replace_closure
from holdfast.torch.state.capture import Captured, current_stream
from holdfast.torch.state.ddp_buckets import BucketOrders
from holdfast.torch.state.diverged_replicas import Divergence, divergence_warning
from holdfast.torch.state.peer_step import put_back_position
from holdfast.torch.state.training_state import TrainingState

_log = logging.getLogger("holdfast")

_DROP = 10.0  # seconds for saves to end that are given up


class Saves:
    """The saves of one Checkpointer. The lock is for the thread that settles in the background."""

    def __init__(self, job: _native.Job, state: TrainingState, buckets: BucketOrders,
                 keep: Any = None) -> None:
        """`keep` is that of the Checkpointer."""
        self.metrics = Metrics(keep)
        self.job: _native.Job | None = job  # None once the Checkpointer is closed
        self.is_attached = False  # whether the engine knows the tensors
        self.handle: _native.SaveHandle | None = None  # the newest save
        self.is_unsettled = False  # whether the newest save must be settled
        self.stalled = 0.0  # seconds that training has waited
        # The plain values of a record (state/peer_step.py), if the next save is of the moment at
        # which it was made: the loader has handed out another batch since.
        self.record: dict[str, Any] | None = None
        self._state = state
        self._buckets = buckets
        self._lock = threading.RLock()
        self._captured: Captured | None = None  # what the unsettled save holds
        self._stream = 0  # the CUDA stream of the newest save
        # True if every save waits until all tensors are copied. Set when a tensor was written to
        # through .data, which torch's version counter does not see.
        self._settles_at_once = False
        # Mends tensors of these names whose replicas differ, and returns the names of those mended
        # (watch/freeze_watch.py); None if nothing watches the tensors.
        self.vote_on: Callable[[set[str]], set[str]] | None = None
        self._damaged: set[str] = set()  # tensors that were damaged while a save copied them
        # Called when the last save of a job that stops is durable, or its state stays in memory.
        self.on_stopped: Callable[[], None] = _nothing

    def live_job(self) -> _native.Job:
        """The job; ValueError if the Checkpointer is closed."""
        if self.job is None:
            raise ValueError("Checkpointer: closed; expected a call before close()")
        return self.job

    def note_damaged(self, name: str) -> None:
        """Notes that a tensor was damaged: the save that is being copied may have the damage."""
        if self.is_unsettled:
            self._damaged.add(name)

    def drop(self) -> None:
        """Gives up the saves that are not durable yet: a rank that they need was lost."""
        with self._lock:
            self.live_job().drop_saves(_DROP)
            self.metrics.rejoin()
            self.is_attached = self.is_unsettled = False
            self.handle = self._captured = None

    def objects(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The plain values of a save, as they are now: those of all ranks, and this rank's."""
        captured = self.look()
        return captured.objects, captured.rank_objects

    def look(self) -> Captured:
        """What a save would hold now, with its plain values. Nothing is copied."""
        captured = self._state.capture()
        self._objects_of(captured)
        return captured

    def resumed(self, objects: Mapping[str, Any]) -> None:
        """Notes that a checkpoint with these objects was restored: the engine knows its tensors."""
        self.metrics.resumed(objects)
        self.is_attached = True
        self.handle = None  # the old one is for a step that may be newer than the resumed one

    def attach(self) -> None:
        """Makes the tensors of the model and its optimizers known to the engine."""
        def describe_again(found: list[Divergence]) -> _native.Pieces:
            self._mark_diverged(found)
            return self._state.tensor_pieces()

        self.live_job().attach(self._state.tensor_pieces(), current_stream(), describe_again)
        self.is_attached = True

    def attach_all(self) -> None:
        """Makes all that will be saved known to the engine, and refuses what cannot be stored.

        Called after the first update, which makes the slots of the optimizer, so that the first
        save takes no longer than the others.
        """
        start = time.perf_counter()
        self.settle()
        captured = self._state.capture()
        self._objects_of(captured)
        self.live_job().attach(captured.pieces, current_stream(), self._capture_again(captured))
        self.is_attached = True
        self.stalled += time.perf_counter() - start

    def begin(self, step: int, loss: float | None, why: str, *, automatic: bool = False,
              with_gradients: bool = False) -> _native.SaveHandle:
        """Begins a save, for the reason `why`. The tensors may not change before the next settle().

        `automatic` says that the schedule or a signal asked for it, and not the program.
        """
        start = time.perf_counter()
        with self._lock:
            self.handle = self._begin(step, loss, why, automatic, with_gradients)
        self.stalled += time.perf_counter() - start
        return self.handle

    def hand_over(self, step: int, loss: float | None, *, with_gradients: bool = False) -> str:
        """Leaves the state in the memory of the hosts. Returns the folder on this host.

        Raises the same error on all ranks if that is not possible.
        """
        with self._lock:
            self.settle()
            job = self.live_job()
            if not self.is_attached:
                self.attach()
            captured = self._state.capture(with_gradients=with_gradients)
            folder = str(job.hand_over(
                step, captured.pieces, self._metrics_of(job, loss), self._state.parallel,
                lambda: self._objects_of(captured), current_stream(),
                self._capture_again(captured, with_gradients)))
        self.on_stopped()
        return folder

    def settle(self, timeout: float | None = None) -> None:
        """Returns when the copies of the newest save are complete and checked."""
        if not self.is_unsettled or self.job is None:
            return
        start = time.perf_counter()
        with self._lock:
            if self.is_unsettled:
                self._settle(current_stream(), timeout)
        self.stalled += time.perf_counter() - start

    def settle_before_update(self, optimizer: torch.optim.Optimizer, args: Any,
                             kwargs: Any) -> Any:
        """Settles the newest save before that optimizer changes its tensors.

        Returns other arguments for the optimizer's step, or None. An optimizer of torch changes
        nothing before it has called its closure. Forward and backward are inside the closure,
        and hide the copying: so the save is settled after it.
        """
        if type(optimizer).__module__.startswith("torch.optim."):
            changed = replace_closure(args, kwargs, self._settle_after)
            if changed is not None:
                return changed
        self.settle()
        return None

    def _settle_after(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def then_settle() -> Any:
            result = closure()
            self.settle()
            return result

        return then_settle

    def settle_if_copied(self) -> None:
        """Settles a save whose copy is complete. Called by the background thread.

        Also logs the job's messages, because training may be waiting for other ranks and hold
        the lock meanwhile.
        """
        if (job := self.job) is not None:
            log_messages(job)
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self.is_unsettled and self.handle is not None and self.handle.is_captured:
                self._settle(self._stream, None)
        finally:
            self._lock.release()

    def wait_stopped(self, handle: _native.SaveHandle,
                     save_again: Callable[[], _native.SaveHandle]) -> None:
        """Waits for the last save of a job that stops; a torn one is made again, once."""
        self.settle()
        try:
            self.live_job().wait_stopped(handle)
        except UnavailableError:
            if not handle.is_torn:
                raise
            again = save_again()
            self.settle()
            self.live_job().wait_stopped(again)
        self.on_stopped()

    def is_newest_good(self) -> bool:
        """True if there is a newest save and it has not failed."""
        if self.handle is None or not self.handle.is_done:
            return self.handle is not None
        try:
            self.handle.durable()
        except Exception:
            return False
        return True

    def wait_until_done(self, timeout: float | None = None) -> None:
        """Waits for the newest save, so that a resume finds it. TimeoutError if that takes longer.

        Ignores a failure of that save, which is reported elsewhere.
        """
        self.settle(timeout)
        if self.handle is not None:
            with contextlib.suppress(Exception):
                self.handle.durable(timeout)
            if not self.handle.is_done:
                raise TimeoutError(f"a save is under way after {timeout} s; expected a longer timeout, "
                                   "or another call")

    def is_torn(self, timeout: float | None = None) -> bool:
        """Waits for the newest save. True if all ranks have dropped it, to be made again.

        That is so if its tensors were written to, or if replicas differ that were equal before.
        """
        self.wait_until_done(timeout)
        return self.handle is not None and self.handle.is_torn

    def _begin(self, step: int, loss: float | None, why: str, automatic: bool,
               with_gradients: bool) -> _native.SaveHandle:
        # The job may have found only after the last settle() that the save before was torn.
        self.is_unsettled = True
        self.settle()
        job = self.live_job()
        log_messages(job)
        if not self.is_attached:
            self.attach()
        told = self._metrics_of(job, loss)
        captured = self._state.capture(with_gradients=with_gradients)
        self._stream = current_stream()

        def make_objects() -> tuple[dict[str, Any], dict[str, Any]]:
            """Called by the job while it copies the tensors."""
            self._captured, self.is_unsettled = captured, True
            if job.may_tear():
                captured.watch()
            return self._objects_of(captured)

        handle = job.save(step, captured.pieces, captured.owners, told, self._state.parallel,
                          make_objects, self._stream,
                          self._capture_again(captured, with_gradients), why, automatic)
        if self._settles_at_once and job.may_tear():
            self._settle(self._stream, None)
        return handle

    def _metrics_of(self, job: _native.Job, loss: float | None) -> dict[str, float]:
        lost = self.handle is not None and not self.is_newest_good()
        return self.metrics.take(job, loss, again=lost)

    def _objects_of(self, captured: Captured) -> tuple[dict[str, Any], dict[str, Any]]:
        self._state.add_plain_values(captured)
        captured.objects["buckets"] = self._buckets.state()
        captured.objects[metrics.KEY] = self.metrics.state()
        if self.record is not None:
            put_back_position(self.record, captured.objects, captured.rank_objects)
        return captured.objects, captured.rank_objects

    def _settle(self, stream: int, timeout: float | None) -> None:
        changed = [] if self._captured is None else self._captured.changed()
        changed += sorted(self._damaged - set(changed))
        torn = self.live_job().settle(changed, stream, timeout)
        # Not reached if the wait was interrupted: then the save is still unsettled.
        self.is_unsettled, self._captured = False, None
        damaged, self._damaged = self._damaged, set()
        if torn and damaged.issuperset(torn):
            _log.warning("%s was damaged while it was saved: that save is given up, and the next "
                         "step is saved", torn[0])
        elif torn:
            self._note_torn(torn, changed)

    def _note_torn(self, torn: list[str], changed: list[str]) -> None:
        """Copies tensors earlier from now on: those that torch saw written to, or else all."""
        more = f" (and {len(torn) - 1} more tensors)" if len(torn) > 1 else ""
        if set(torn) <= set(changed):
            self._state.copy_at_once(torn)
            _log.warning("%s was written to between two updates: it is saved again at the next "
                         "step, and copied at once from now on%s", torn[0], more)
        else:
            self._settles_at_once = True
            _log.warning("%s was written to between two updates in a way that torch does not "
                         "count (.data)%s: it is saved again at the next step, and from now on "
                         "every save waits until all tensors are copied", torn[0], more)

    def _capture_again(self, captured: Captured, with_gradients: bool = False
                       ) -> Callable[[list[Divergence]], _native.Pieces]:
        """What the engine calls when it finds that replicas of a save have diverged."""
        def capture_again(found: list[Divergence]) -> _native.Pieces:
            self._mark_diverged(found)
            again = self._state.capture(with_gradients=with_gradients)
            captured.pieces, captured.watched = again.pieces, again.watched
            captured.averaged = again.averaged
            captured.objects, captured.rank_objects = again.objects, again.rank_objects
            # The job holds this very list, so that the tensors stay alive.
            captured.owners.extend(again.owners)
            return captured.pieces

        return capture_again

    def _mark_diverged(self, found: list[Divergence]) -> None:
        if self.vote_on is not None:
            mended = self.vote_on({name for name, *_ in found})
            found = [one for one in found if one[0] not in mended]
        if found:
            self._state.mark_diverged(found)
            _log.warning("%s", divergence_warning(found))


class Save:
    """A save that save() began. Only the thread that trains may wait for it."""

    def __init__(self, saves: Saves, check_no_loss: Callable[[], None]) -> None:
        """Stands for the newest save. `check_no_loss` raises Interrupted if a rank was lost."""
        self._saves = saves
        self._handle = saves.handle  # None in the replacement of a rank that had made the save
        self._check_no_loss = check_no_loss

    @property
    def is_done(self) -> bool:
        """True if the save is durable, or has failed."""
        return self._handle is None or self._handle.is_done

    def captured(self, timeout: float | None = None) -> None:
        """Waits until the tensors may change again."""
        self._saves.settle(timeout)
        if self._handle is not None:
            self._handle.captured(timeout)

    def durable(self, timeout: float | None = None) -> _native.Durable:
        """Waits until no crash can lose the save; raises the error that it failed with."""
        if self._handle is None:
            raise Interrupted("save(): it was made by a process that died, and its replacement does "
                              "not know how it ended")
        try:
            self._saves.settle(timeout)  # a save that nobody settles is never committed
            return self._handle.durable(timeout)
        except UnavailableError:
            self._check_no_loss()
            raise


def _nothing() -> None: ...
