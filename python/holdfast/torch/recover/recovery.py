"""Checkpointer.run(): a step that is made again if a rank dies in it.

A step has a gate, right before its first update. A rank that has passed it knows that all ranks
can make this update, and makes it. After a death the launcher asks all survivors: if one of them
has passed the gate, all others make the update, too (forward); otherwise all make the step again
(back). So all ranks have made the same updates, and none has to be undone.
"""

import logging
from collections.abc import Callable
from typing import Any, Literal

from holdfast import _native
from holdfast.errors import Error, NotFoundError, UnavailableError
from holdfast.torch.loop.optimizer_hooks import replace_closure
from holdfast.torch.loop.saves import Saves
from holdfast.torch.recover import peers
from holdfast.torch.recover.crash_points import reach
from holdfast.torch.recover.meet import meet
from holdfast.torch.recover.plain_steps import PlainSteps
from holdfast.torch.recover.step_start import StepStart
from holdfast.torch.recover.worker_side import WorkerSide, current, wait_for_end
from holdfast.torch.state.ddp_buckets import BucketOrders
from holdfast.torch.state.training_state import TrainingState

_log = logging.getLogger("holdfast")

_FAILURES = (Error, OSError, RuntimeError, TimeoutError, LookupError, ValueError)


class _Back(BaseException):
    """Leaves the step, which is then made again. No training catches it."""


class Recovery:
    """The part of a worker of `holdfast launch` that makes steps."""

    is_active = True

    def __init__(self, side: WorkerSide, state: TrainingState, buckets: BucketOrders,
                 scalers: list[Any]) -> None:
        self._link, self._groups = side.link, side.groups
        self._state, self._buckets = state, buckets
        self._start = StepStart(state, buckets, scalers)
        self._phase: Literal["between", "step", "updated"] = "between"
        self._record = b""  # the record that this rank made for the last update
        self._gate: _native.Gate | None = None  # None in a job of one rank
        self._runs = 0  # calls of run() since the last step()
        self._function = ""  # the name of the function that run() was given last
        self._expected: str | None = None  # a replacement's first run() must get this function
        self._has_warned = False
        self._last_step = -1
        self._transport: _native.TcpTransport | None = None
        self._saves: Saves | None = None
        self._rejoin_job: Callable[[], None] = _nothing
        self._leave: Callable[[int, str, int], None] = _nothing
        side.tell_losses_to(self)
        self._groups.on_call = self._on_call
        for scaler in scalers:
            self._guard(scaler)

    @property
    def is_replacement(self) -> bool:
        """True until the state of the lost rank is here."""
        return self._link.is_replacement and self._link.generation < 0

    @property
    def is_broken(self) -> bool:
        """True if a rank was lost, and this process has not met its replacement yet."""
        return not self._link.is_current

    def on_lost(self) -> None:
        """Called by another thread when a rank was lost: ends what waits for other ranks."""
        if self._gate is not None and self._transport is not None:
            self._gate.interrupt(self._link.announced - 1)
            self._transport.close()

    def serve(self, saves: Saves, rejoin: Callable[[], None],
              leave: Callable[[int, str, int], None]) -> None:
        """`rejoin` has the job of these saves go on with the replacement of a lost rank.

        `leave` saves a step, for a reason, and ends the process with an exit code.
        """
        self._saves, self._rejoin_job, self._leave = saves, rejoin, leave
        self._link.events.write_to(saves.live_job())

    def resume(self, resume: Callable[[], int], take_over: Callable[[int], int]) -> int:
        """Resumes from a checkpoint, or in the place of a lost rank. Returns the next step."""
        if self.is_replacement:
            return take_over(self._take_over())
        with self._groups.unrecorded():
            start = resume()
        self._last_step = start - 1
        self._link.note_step(start)
        self._link.say("resumed", step=start)
        return start

    def after_step(self, step: int, function: Callable[[], None]) -> None:
        """Calls the function, unless a rank was lost: what it does needs all ranks."""
        self._last_step, self._runs = step, 0
        self._groups.is_recording = False  # also if steps are not made by run()
        self._link.note_step(step + 1)
        if self.is_broken:
            return
        try:
            function()
        except (Error, TimeoutError):
            if not self._link.hears_of_loss():
                raise

    # Steps

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Makes a step, as often as it takes."""
        self._prepare()
        self._runs += 1
        self._function = getattr(function, "__qualname__", "")
        if self._expected not in (None, self._function):
            self._ask_to_restart(ValueError(f"other ranks were in ck.run({self._expected})"))
        self._expected = None
        while True:
            self.join()
            self._leave_if_told()
            self._start.keep()
            self._phase, self._groups.may_repeat = "step", True
            try:
                result = function(*args, **kwargs)
                if self._phase == "step":
                    self._start.check_no_gradients_wait()
                    self._pass_gate()
                return result
            except _Back:
                pass
            except Exception:
                if self._phase != "step" or not self._was_void():
                    raise
                self._link.agree(self._status)
            finally:
                self._phase, self._groups.may_repeat = "between", False
            self._start.restore()

    def before_update(self, args: Any, kwargs: Any) -> Any:
        """The hook before an update. Returns other arguments for it, or None."""
        if self._phase != "step":
            return None
        changed = replace_closure(args, kwargs, self._gate_after)
        if changed is None:
            self._pass_gate()
        return changed

    def _gate_after(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def then_pass() -> Any:
            result = closure()
            if self._phase == "step":
                self._pass_gate()
            return result

        return then_pass

    def _pass_gate(self) -> None:
        if self._gate is None:
            return self._commit()
        self._groups.wait_for_calls()
        made = peers.pack_record(self._state.record())
        reach("gate")
        try:
            if self._groups.failure is not None:
                raise self._groups.failure
            with self._groups.at_gate():
                self._gate.pass_gate(self._gate.committed + 1, made)
        except (Error, TimeoutError, RuntimeError):
            if not self._link.hears_of_loss():
                raise
            if self._link.agree(self._status)["course"] != "forward":
                raise _Back from None
            self._gate.forward(self._gate.committed + 1)
        self._record = made
        reach("committed")
        self._commit()

    def _commit(self) -> None:
        self._phase, self._groups.may_repeat = "updated", False
        self._link.note_commit()

    def _leave_if_told(self) -> None:
        """Saves the last step that is done and ends, if the launcher has told all ranks to."""
        told = self._link.leave
        if told is None:
            return
        if self._last_step >= 0 and self._runs <= 1 and self._saves is not None:
            self._saves.record = peers.values_of(self._record)
            self._leave(self._last_step, told["why"], told["code"])
        raise SystemExit(told["code"])

    def _was_void(self) -> bool:
        return self._groups.failure is not None and self._link.hears_of_loss()

    def _status(self) -> dict[str, Any]:
        assert self._gate is not None
        return {"committed": self._gate.committed, "ready": self._gate.ready,
                "begun": self._phase == "step"}

    def _prepare(self) -> None:
        """Before the first step: DDP must have made its buckets before a step can be repeated."""
        if self._groups.is_recording:
            self._groups.is_recording = False
            if not self._link.is_replacement:
                self._buckets.ensure()

    def _guard(self, scaler: Any) -> None:
        """A GradScaler that skips an update calls no hook; it changes in its own update()."""
        update = scaler.update

        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self._phase == "step":
                self._pass_gate()
            return update(*args, **kwargs)

        scaler.update = guarded

    def _on_call(self, name: str) -> None:
        if self._phase == "updated" and not self._has_warned:
            self._has_warned = True
            _log.warning("%s is called after the update of a step: if a rank dies then, all ranks "
                         "start again from a checkpoint; expected calls of other ranks before the "
                         "update, and one ck.run() for each update", name)

    # The end

    def at_end(self, function: Callable[[], None]) -> None:
        """Calls the function, which needs all ranks, and again if a rank died meanwhile."""
        while True:
            self._function = ""
            self.join()
            self._link.note_commit()  # there is no other one
            try:
                return function()
            except (Error, TimeoutError):
                if not self._link.hears_of_loss():
                    raise

    def check_not_broken(self) -> None:
        """UnavailableError if a rank was lost; also if the launcher says so in a moment."""
        if self._link.hears_of_loss(0.5):
            raise UnavailableError("a rank was lost")

    # Meeting again

    def connect(self) -> _native.TcpTransport | None:
        """The transport of the first generation, or of the one that a replacement joins."""
        if self._link.world == 1:
            return None
        generation = self._link.announced
        if self.is_replacement:
            self._link.say("started")
            reach("started")
            generation = self._link.agree(dict)["generation"]
        self._transport = meet(self._link, generation)
        self._gate = _native.Gate(self._transport, self._link.hosts)
        return self._transport

    def _take_over(self) -> int:
        """Fills this replacement. Returns the last step that is done."""
        decided = self._link.agree(dict)
        try:
            with self._groups.silent():
                filled, record = peers.receive(self._transport, self._state, self._buckets,
                                               self._link.rank)
            reach("filled")
            self._last_step, self._expected = filled.step, filled.function or None
            self._become_part(decided, record, step=filled.step + 1, bytes=filled.moved,
                              inexact=filled.inexact)
        except _FAILURES as error:
            is_sure = isinstance(error, (LookupError, NotFoundError))  # nobody has what it needs
            if not is_sure and self._link.hears_of_newer(decided["generation"]):
                wait_for_end()  # another rank died, and another process takes this one's place
            self._ask_to_restart(error)
        return self._last_step

    def join(self) -> None:
        """Returns when this process is part of the newest generation."""
        while not self._link.is_current:
            decided = self._link.agree(self._status)
            if self._runs > 1:  # a replacement begins with the first one
                self._ask_to_restart(ValueError(f"ck.run({self._function}) was call {self._runs} "
                                                f"since ck.step({self._last_step})"))
            try:
                self._rejoin(decided)
            except _FAILURES as error:
                if not self._link.hears_of_newer(decided["generation"]):
                    self._ask_to_restart(error)

    def _rejoin(self, decided: dict[str, Any]) -> None:
        assert self._gate and self._transport and self._saves
        kept = self._gate.record_of_peer(self._gate.committed)
        self._saves.drop()
        reach("dropped")
        self._transport.replace(meet(self._link, decided["generation"]))
        reach("met")
        self._rejoin_job()
        reach("rejoined")
        peers.give(self._transport, self._state, self._buckets, self._saves.objects(),
                   step=self._last_step, function=self._function, record=self._record,
                   peer=self._gate.peer, record_of_peer=None if kept is None else kept[0])
        reach("given")
        self._become_part(decided, self._record)

    def _become_part(self, decided: dict[str, Any], record: bytes, **told: Any) -> None:
        assert self._gate is not None
        generation, self._record = decided["generation"], record
        self._groups.replace(f"{self._link.incarnation}.{generation}",
                             lambda: self._link.announced != generation)
        self._gate.begin(generation, decided["target"], record)
        reach("joined")
        self._link.join(generation, **told)

    def _ask_to_restart(self, error: Exception) -> None:
        self._link.say("restart", why=str(error))
        wait_for_end()


def recovery_for(wanted: bool | None, state: TrainingState, buckets: BucketOrders, scaler: Any,
                 group: Any) -> Recovery | PlainSteps:
    """How a Checkpointer makes steps: plainly outside of `holdfast launch`, or if so wanted."""
    side = current()
    if wanted and (side is None or group is not None):
        where = "this process was not started by holdfast launch" if side is None else "group="
        raise ValueError(f"recover=True: {where}; expected `holdfast launch -n N script.py`, and "
                         "one Checkpointer for all ranks")
    if side is None or wanted is False or group is not None:
        return PlainSteps(group)
    scalers = scaler if isinstance(scaler, list) else [scaler]
    return Recovery(side, state, buckets, [one for one in scalers if one is not None])


def _nothing(*_: Any) -> None: ...
