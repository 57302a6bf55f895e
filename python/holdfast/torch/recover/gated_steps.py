"""Steps that are made again if a rank dies in them.

A step has a gate, right before its first update. A rank that has passed it knows that all ranks
can make this update, and makes it. After a death the launcher asks all survivors: if one of them
has passed the gate, all others make the update, too (forward); otherwise all make the step again
(back). So all ranks have made the same updates, and none has to be undone.
"""

import logging
from collections.abc import Callable
from typing import Any, Literal

from holdfast.errors import Error
from holdfast.torch.loop.optimizer_hooks import replace_closure
from holdfast.torch.recover import peers
from holdfast.torch.recover.crash_points import reach
from holdfast.torch.recover.membership import Membership, Position
from holdfast.torch.recover.step_start import StepStart
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
        self._state, self._buckets = state, buckets
        self._start = StepStart(state, buckets, scalers)
        self._phase: Literal["between", "step", "updated"] = "between"
        self.position = Position()
        self.expected: str | None = None  # a replacement's first run() must get this function
        self._has_warned = False
        self._groups.on_call = self._on_call
        for scaler in scalers:
            self._guard(scaler)

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Makes a step, as often as it takes."""
        self._prepare()
        self.position.runs += 1
        self.position.function = getattr(function, "__qualname__", "")
        self._check_function()
        while True:
            self.join()
            self._membership.leave_if_told(self.position)
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

    def join(self) -> None:
        """Returns when this process is part of the newest generation."""
        self._membership.join(self.position, self._status)

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
        gate = self._membership.gate
        if gate is None:
            return self._commit()
        self._groups.wait_for_calls()
        made = peers.pack_record(self._state.record())
        reach("gate")
        try:
            if self._groups.failure is not None:
                raise self._groups.failure
            with self._groups.at_gate():
                gate.pass_gate(gate.committed + 1, made)
        except (Error, TimeoutError, RuntimeError):
            if not self._link.hears_of_loss():
                raise
            if self._link.agree(self._status)["course"] != "forward":
                raise _Back from None
            gate.forward(gate.committed + 1)
        self.position.record = made
        reach("committed")
        self._commit()

    def _commit(self) -> None:
        self._phase, self._groups.may_repeat = "updated", False
        self._link.note_commit()

    def _check_function(self) -> None:
        if self.expected not in (None, self.position.function):
            self._membership.ask_to_restart(
                ValueError(f"other ranks were in ck.run({self.expected})"))
        self.expected = None

    def _was_void(self) -> bool:
        return self._groups.failure is not None and self._link.hears_of_loss()

    def _status(self) -> dict[str, Any]:
        gate = self._membership.gate
        assert gate is not None
        return {"committed": gate.committed, "ready": gate.ready, "begun": self._phase == "step"}

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
