"""Steps whose updates pass no gate, and of which the newest can be taken back (undo.py)."""

import functools
from collections.abc import Callable
from typing import Any

from holdfast.errors import UnavailableError
from holdfast.torch.recover.buddies import BuddyGate
from holdfast.torch.recover.gated_steps import GatedSteps
from holdfast.torch.recover.membership import Membership
from holdfast.torch.recover.open_gate import OpenGate
from holdfast.torch.recover.records import Made
from holdfast.torch.recover.step_start import StepStart
from holdfast.torch.recover.undo import Undo
from holdfast.torch.state.ddp_buckets import BucketOrders
from holdfast.torch.state.training_state import TrainingState


class OpenSteps(GatedSteps):
    """Makes the steps of one worker."""

    def __init__(self, membership: Membership, state: TrainingState, buckets: BucketOrders,
                 scalers: list[Any]) -> None:
        super().__init__(membership, state, buckets, scalers)
        make_start = functools.partial(StepStart, state, buckets, scalers, self._repeated)
        self._undo = membership.undo = Undo(state, make_start, self._repeated, self._records)

    def join(self) -> None:
        super().join()
        self._undo.make_again(self._make, self._note_step, self._reach_top)

    def leaves_out(self, step: int) -> bool:
        if step not in self._undo.skipped:
            return False
        self._data.note_step()
        return True

    def before_update(self, args: Any, kwargs: Any) -> Any:
        changed = super().before_update(args, kwargs)
        if self._phase in ("step", "updated"):
            self._undo.keep(args[0], has_closure=changed is not None)
        return changed

    def _begin(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self._start = self._undo.begin(name, function, args, kwargs)
        super()._begin(name, function, args, kwargs)

    def _pass_gate(self, *, updates: bool, optimizer: Any = None) -> None:
        gate = self._membership.gate
        assert isinstance(gate, OpenGate)
        gate.waits = not updates
        super()._pass_gate(updates=updates, optimizer=optimizer)

    def _check_may_pass(self) -> None:
        super()._check_may_pass()
        if self._membership.is_broken:  # nothing holds the update back, and it would have to be taken back
            raise UnavailableError("a rank was lost")

    def _pass(self, gate: BuddyGate, made: Made) -> None:
        super()._pass(gate, made)
        self._undo.commit()

    def _end_run(self, result: Any) -> Any:
        super()._end_run(result)
        self._undo.end()
        return result

    def _note_step(self, step: int) -> None:
        self._undo.stepped(step)
        super()._note_step(step)

    def _status(self) -> dict[str, Any]:
        gate = self._membership.gate
        assert isinstance(gate, OpenGate)
        return {**super()._status(), "records": gate.newest()}
