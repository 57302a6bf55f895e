"""Steps that are made again if a rank dies in them.

A step has a gate, right before its first update. A rank that has passed it knows that all ranks
can make this update, and makes it. After a death the launcher asks all survivors: if one of them
has passed the gate, all others make the update, too (forward); otherwise all make the step again
(back). So all ranks have made the same updates, and none has to be undone.
"""

import contextlib
import logging
from collections.abc import Callable
from typing import Any, Literal

from holdfast.errors import Error
from holdfast.torch.data.read_loaders import watch_loaders
from holdfast.torch.loop.optimizer_hooks import call_before_scaler_updates, replace_closure
from holdfast.torch.recover.buddies import BuddyGate
from holdfast.torch.recover.crash_points import reach
from holdfast.torch.recover.membership import Membership
from holdfast.torch.recover.records import Made
from holdfast.torch.recover.repeated_calls import Call, SkippedCalls
from holdfast.torch.recover.replay import SAVE, Replay
from holdfast.torch.recover.step_start import StepStart
from holdfast.torch.recover.unknown_loaders import UnknownLoaders
from holdfast.torch.state.ddp_buckets import BucketOrders
from holdfast.torch.state.training_state import TrainingState

_log = logging.getLogger("holdfast")



class _Back(BaseException):
    """Leaves the step, which is then made again. No training catches it."""


class GatedSteps:
    """Makes the steps of one worker."""

    def __init__(self, membership: Membership, state: TrainingState, buckets: BucketOrders,
                 scalers: list[Any]) -> None:
        self._membership = membership
        self._link, self._groups = membership.link, membership.groups
        self._repeated, self._records = membership.repeated, membership.records
        self._loader, self._data, self._buckets = state.loader, state.data, buckets
        self._start = StepStart(state, buckets, scalers, self._repeated)
        speaks = state.rank == 0 and not self._link.is_replacement
        self._unknown = UnknownLoaders(state, self._repeated.unknown, speaks=speaks)
        watch_loaders()
        if self._loader is not None:
            self._end_listening = self._loader.listen(membership.draws.begin_iteration, self._ask_for_batch)
        self._phase: Literal["between", "step", "updated", "saving"] = "between"
        self._steps_done = 0
        self._skipped: SkippedCalls | None = None  # of a replacement
        self._replay: Replay | None = None  # of one that makes steps again alone
        self._messages, self._updates_log = membership.messages, membership.messages.updates
        self._update = 0  # that is made again
        self._batch_outside = -1  # the batch after which a collective call was made outside of run()
        self._updates = False  # the newest run has made an update
        self.has_run = False  # run() was called
        self._has_warned = False
        self._groups.on_call = self._on_call
        self._scalers = scalers
        for scaler in scalers:
            call_before_scaler_updates(scaler, self._pass_if_shut)

    def take_over(self) -> int:
        """Takes the place of a lost rank. Returns the last step that is done where it begins."""
        taken = self._membership.take_over()
        if isinstance(taken, Replay):
            self._replay = taken
        else:
            self._skipped = taken
        return self._repeated.first_step

    @property
    def is_replaying(self) -> bool:
        """True in a replacement that makes steps again alone."""
        return self._replay is not None

    @property
    def _made(self) -> int:
        """The newest update that this rank has made."""
        gate = self._membership.gate
        return self._update if self._replay is not None else 0 if gate is None else gate.committed

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Makes a step, as often as it takes."""
        self.has_run = True
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return self._run(name, function, args, kwargs)

    def save_asked(self, function: Callable[[], None]) -> None:
        """Calls the function, which saves, as if run() made it: it needs all ranks.

        In a loop that does not use run() it is a plain call. A replacement of a rank that has made
        it does not make it again, also not one from before the loop.
        """
        if self._phase != "between":
            function()
        elif self.has_run or self._skipped is not None or self._replay is not None:
            self._run(SAVE, function, (), {})
        else:
            function()
            self._repeated.function = SAVE
            self._repeated.returned(None)

    def _run_alone(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Makes a step of a job of one rank: if it dies, nobody is left who could go on."""
        self._membership.leave_if_told()
        result = function(*args, **kwargs)
        self._link.note_commit()
        return result

    def _run(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._groups.end_start_up()
        if self._membership.gate is None and self._replay is None:
            return self._run_alone(function, args, kwargs)
        skipped = self._skip("run", name)
        if skipped is not None:
            return skipped.result
        if self._replay is not None and (update := self._next_replayed(name)) is not None:
            return self._make_again(update, name, function, args, kwargs)
        self._reach_top()
        self._repeated.function = name
        if self._repeated.is_top(has_moved=False):
            self._unknown.settle()
        return self._make(name, function, args, kwargs)

    def _make(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Makes a run together with the others, as often as it takes."""
        assert self._membership.gate is not None
        while True:
            self.join()
            if name != SAVE:  # behind a step: to leave here would not save it
                self._membership.leave_if_told()
            self._begin(name, function, args, kwargs)
            self._phase, self._groups.may_repeat = "step", True
            self._messages.begin(self._membership.gate.committed + 1, name)
            self._unknown.begin_run()
            try:
                if self._membership.compare_starts():
                    self._start.keep(args, kwargs)  # values may have come from another rank
                result = function(*args, **kwargs)
                if self._phase == "step":
                    self._start.check_no_gradients_wait()
                    self._pass_gate(updates=False)
                return self._end_run(result)
            except _Back:
                pass
            except Exception as error:
                if self._phase != "step" or not self._was_void(error):
                    raise
                self._link.agree(self._status)
            finally:
                self._phase, self._groups.may_repeat = "between", False
                self._messages.end()
            self._unknown.end_run(is_done=False)
            if why := self._start.restore() or self._why_not_again():
                self._membership.ask_to_restart(ValueError(f"ck.run({name}): {why}"))

    def _begin(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Keeps what a run begins with."""
        self._start.keep(args, kwargs)

    def _next_replayed(self, name: str) -> int | None:
        """The update that this run makes again; None if the others are in it, and have been joined."""
        assert self._replay is not None
        try:
            update = self._replay.next(name)
        except ValueError as error:
            self._membership.ask_to_restart(error)
        if update is None:
            self._end_replay()
        return update

    def _end_replay(self) -> None:
        assert self._replay is not None
        if not self._replay.is_done:
            self._membership.ask_to_restart(ValueError("a replacement came to the end of the training before "
                                                       "it had made all steps of the lost rank again"))
        self._membership.end_replay(self._replay)
        self._replay = None

    def _make_again(self, update: int, name: str, function: Callable[..., Any], args: Any,
                    kwargs: Any) -> Any:
        """Makes a run again alone."""
        self._link.say("reached", phase="replayed")
        self._repeated.function, self._update = name, update
        self._start.keep(args, kwargs)
        self._phase = "step"
        self._messages.begin(update, name)
        self._unknown.begin_run()
        try:
            result = None if name == SAVE else function(*args, **kwargs)
            if self._phase == "step":
                self._pass_gate(updates=False)
            return self._end_run(result)
        finally:
            self._phase = "between"
            self._messages.end()

    def _why_not_again(self) -> str:
        """Why a step cannot be made again; "" if it can."""
        modules = self._buckets.unsettled()
        return f"DDP had not ordered the buckets of {', '.join(modules)} yet" if modules else ""

    def step(self, step: int) -> bool:
        """Notes that a step is done. False if the others have done it already."""
        if self._skip("step", str(step)) is not None:
            return False
        self._messages.stepped(step, self._made)
        if self._replay is not None:
            self._data.note_step()  # elsewhere, ck.step() does it
        self._steps_done += 1
        self._unknown.settle()
        self._note_step(step)
        if unsaved := self._repeated.news_of_unsaved():
            self._link.say("unsaved", what=unsaved)
        return True

    def _note_step(self, step: int) -> None:
        self._repeated.stepped(step)
        self._refresh()

    def leaves_out(self, step: int) -> bool:
        """True if another rank was through ck.step(step) before it had to make the step again: nobody saves it."""
        return False

    def save(self, function: Callable[[], None]) -> None:
        """Calls the function, whose collective calls a replacement does not have to make."""
        self._phase = "saving"
        try:
            function()
        finally:
            self._phase = "between"

    def end(self) -> None:
        """Called after the last step: returns when this process is part of the newest generation."""
        self._skip("run", "")
        if self._replay is not None:
            self._end_replay()
        self._repeated.function = ""
        self.join()
        if self._membership.compare_starts():
            self._membership.compare_at_gate()

    def close(self) -> None:
        """The training is over: takes back what it has put into other objects."""
        self._groups.on_call = _ignore
        self._unknown.close()
        if self._loader is not None:
            self._end_listening()
        for scaler in self._scalers:
            vars(scaler).pop("update", None)
        self._membership.close()

    def join(self) -> None:
        """Returns when this process is part of the newest generation."""
        if self._membership.is_broken:
            self._membership.is_outside = self._batch_outside == self._batches()
        self._membership.join(self._status)

    def _skip(self, kind: Literal["run", "step"], name: str) -> Call | None:
        """The call with its result, if this is a replacement and the others have made it already."""
        if self._replay is not None:
            return self._replay.skips(kind, name, is_in_loop=self._membership.has_batch())
        if self._skipped is None:
            return None
        call = self._skipped.skips(kind, name)
        if call is None:
            self._skipped = None
            self._groups.go_live()
        return call

    def _end_run(self, result: Any) -> Any:
        self._unknown.end_run(is_done=True)
        self._start.look(self._repeated.function)
        self.save(self._buckets.settle)
        self._repeated.returned(result)
        if self._repeated.has_more_runs or not self._updates or self._membership.is_broken:
            self._refresh()
        return result

    def _refresh(self) -> None:
        """Makes the record again, and sends it: the step may have changed more since the gate."""
        gate = self._membership.gate
        if gate is not None and self._records.values:
            self._records.seal |= self._messages.seal_at_end(self._made)
            self._records.make_at_end(self._repeated.calls)
            if self._replay is not None:
                self._replay.note_record(self._records, is_at_end=True)
            self._send_record(gate)

    def _send_record(self, gate: BuddyGate) -> None:
        if not self._membership.is_broken:
            with contextlib.suppress(Error, TimeoutError):  # a rank was lost just now
                gate.refresh(gate.committed, self._records.newest)

    def _ask_for_batch(self) -> None:
        """The loop, or a step, asks for a batch."""
        if self._phase == "between":
            self._unknown.settle()
        self._reach_top()

    def _reach_top(self) -> None:
        """The loop asks for a batch, or calls run()."""
        is_here = self._phase == "between" and (self._skipped is None or self._skipped.is_done)
        gate = self._membership.gate
        if is_here and gate is not None and self._membership.draws.reach():
            self._send_record(gate)

    def before_update(self, args: Any, kwargs: Any) -> Any:
        """The hook before an update. Returns other arguments for it, or None."""
        if self._phase == "updated":
            self._updates_log.begin_update(args[0])
        if self._phase != "step":
            return None
        changed = replace_closure(args, kwargs, self._gate_after)
        if changed is None:
            self._pass_gate(updates=True, optimizer=args[0])
            self._updates_log.begin_update(args[0])
        else:
            self._updates_log.refuse("its optimizer is called with a closure")
        return changed

    def after_update(self, optimizer: Any) -> None:
        """The hook after an update."""
        self._updates_log.end_update(optimizer, self._made)

    def _gate_after(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def then_pass() -> Any:
            result = closure()
            self._pass_if_shut()
            return result

        return then_pass

    def _pass_if_shut(self) -> None:
        if self._phase == "step":
            self._pass_gate(updates=True)

    def _pass_gate(self, *, updates: bool, optimizer: Any = None) -> None:
        gate = self._membership.gate
        assert gate is not None
        self._groups.wait_for_calls()
        self._messages.settle()
        writes = self._start.look_at_gate(self._repeated.function)
        updates, update = writes or updates, self._update if self._replay else gate.committed + 1
        self._records.seal = self._messages.seal(update)
        if self._replay is None and self._groups.failure is None:
            self._messages.prepare(update, optimizer, self._repeated.written if writes else [])
        record = self._records.capture()
        is_top = self._repeated.is_top(self._records.has_moved(record), updates)
        made = self._records.make_at_gate(record, self._repeated.calls, is_top=is_top)
        if self._replay is None:
            self._pass(gate, made)
        self._records.take(made)
        self._repeated.commit(is_top=is_top, updates=updates)
        self._updates = updates
        if self._replay is not None:
            self._replay.note_record(self._records, is_at_end=False)
            self._phase = "updated"
            return
        reach("committed")
        self._phase, self._groups.may_repeat = "updated", False
        self._link.note_commit()

    def _pass(self, gate: BuddyGate, made: Made) -> None:
        """Returns when this rank is committed to the update. Raises _Back if all make the step again."""
        reach("gate")
        try:
            self._check_may_pass()
            with self._groups.at_gate():
                self._membership.pass_on_update()
                self._membership.compare_at_gate()
                gate.pass_gate(gate.committed + 1, made.packed)
        except (Error, TimeoutError, RuntimeError):
            if not self._link.hears_of_loss():
                raise
            if self._link.agree(self._status)["course"] != "forward":
                raise _Back from None
            gate.forward(gate.committed + 1)
        self._membership.commit_messages()

    def _check_may_pass(self) -> None:
        if self._groups.failure is not None:
            raise self._groups.failure

    def _was_void(self, error: Exception) -> bool:
        """Whether a run has failed because a rank was lost: in a collective call, or in a save."""
        may_be = self._groups.failure is not None or isinstance(error, (Error, TimeoutError))
        return may_be and self._link.hears_of_loss()

    def _status(self) -> dict[str, Any]:
        gate = self._membership.gate
        assert gate is not None
        return {"committed": gate.committed, "ready": gate.ready, "begun": self._phase == "step"}

    def _batches(self) -> int:
        """How many batches the loader has handed out.

        For a loader that is not ours, a number below -1 that changes with each step.
        """
        return -2 - self._steps_done if self._loader is None else self._loader.handed_out

    def _on_call(self, name: str) -> None:
        if self._phase == "between" and not self._groups.is_recording:
            self._batch_outside = self._batches()
        self._updates_log.note_call(name)
        if self._phase == "updated" and not self._has_warned:
            self._has_warned = True
            _log.warning("%s is called after the update of a step: if a rank dies then, all ranks "
                         "start again from a checkpoint; expected calls of other ranks before the "
                         "update, and one ck.run() for each update", name)


def _ignore(_: str) -> None: ...
