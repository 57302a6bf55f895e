"""How a Checkpointer makes steps under `holdfast launch`: they survive the death of a rank."""

import functools
from collections.abc import Callable
from typing import Any

from holdfast import _native
from holdfast.errors import Error
from holdfast.torch.loop.saves import Saves
from holdfast.torch.recover.crash_points import reach
from holdfast.torch.recover.gated_steps import GatedSteps
from holdfast.torch.recover.membership import Membership
from holdfast.torch.recover.plain_steps import PlainSteps
from holdfast.torch.recover.restarted_steps import RestartedSteps, warn
from holdfast.torch.recover.worker_side import WorkerSide, current
from holdfast.torch.state.ddp_buckets import BucketOrders
from holdfast.torch.state.training_state import TrainingState


class Recovery:
    """The part of a worker of `holdfast launch` that makes steps."""

    is_active = True

    def __init__(self, side: WorkerSide, state: TrainingState, buckets: BucketOrders,
                 scalers: list[Any]) -> None:
        self._side, self._link, self._groups = side, side.link, side.groups
        self._membership = Membership(side, state, buckets)
        self._steps = GatedSteps(self._membership, state, buckets, scalers)
        self._is_plain = False  # the launcher was told that a lost rank cannot be replaced
        self._job: _native.Job | None = None

    def connect(self) -> _native.TcpTransport | None:
        """The transport of the first generation, or of the one that a replacement joins."""
        return self._membership.connect()

    def serve(self, saves: Saves, rejoin: Callable[[], None],
              leave: Callable[[int, str, int], None]) -> None:
        """Takes what is needed when a rank is lost. `rejoin` connects the job to the replacement.

        `leave` saves a step, for a reason, and ends the process with an exit code.
        """
        self._side.has_checkpointer = True
        self._membership.serve(saves, rejoin, leave)
        self._job = saves.live_job()
        self._link.events.write_to(self._job)

    def resume(self, resume: Callable[[], tuple[int, bool]], take_over: Callable[[int], int]) -> int:
        """Resumes from a checkpoint, or in the place of a lost rank. Returns the next step.

        `resume` returns the next step, and whether the state came from the memory of the hosts.
        """
        if self._membership.is_replacement:
            return take_over(self._steps.take_over())
        with self._groups.unrecorded():
            start, in_memory = resume()
        self._membership.trail.resumed(start - 1)
        self._link.note_start(start, in_memory=in_memory)
        return start

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Makes a step, as often as it takes."""
        return self._steps.run(function, args, kwargs)

    def before_update(self, args: Any, kwargs: Any) -> Any:
        """The hook before an update. Returns other arguments for it, or None."""
        return self._steps.before_update(args, kwargs)

    def after_step(self, function: Callable[[int, Any], None], step: int, loss: Any) -> None:
        """Calls the function, unless a rank was lost: what it does needs all ranks."""
        self._groups.is_recording = False  # also if steps are not made by run()
        if not self._steps.step(step):
            return
        self._link.note_step(step + 1)
        if not (self._steps.has_run or self._is_plain):
            warn(self._side, "steps are not made by ck.run()",
                 "ck.run(train, batch) in place of train(batch)")
            self._tell_plain("steps are not made by ck.run()", is_open=True)
            self._link.note_commit()
        reach("step")
        if self._membership.is_broken:
            return
        try:
            self._steps.save(functools.partial(function, step, loss))
        except (Error, TimeoutError):
            if not self._link.hears_of_loss():
                raise

    def at_end(self, function: Callable[[], None]) -> None:
        """Calls the function, which needs all ranks, and again if a rank died meanwhile."""
        while True:
            self._steps.end()
            self._link.note_commit()  # there is no other one
            try:
                function()
            except (Error, TimeoutError):
                if not self._link.hears_of_loss():
                    raise
            else:
                return self._tell_plain("the Checkpointer was closed", is_open=False)

    def _tell_plain(self, why: str, *, is_open: bool) -> None:
        """From now on, all ranks start again if one dies. `is_open` if events can be written."""
        self._is_plain = True
        self._link.say("plain", why=why, is_open=is_open)

    def close(self) -> None:
        """Ends recovery: a Checkpointer that this process makes later is not recovered."""
        self._steps.close()
        self._link.events.stop(self._job)
        self._job = None

    def check_not_broken(self) -> None:
        """UnavailableError if a rank was lost; also if the launcher says so in a moment."""
        self._membership.check_not_broken()


def recovery_for(wanted: bool | None, state: TrainingState, buckets: BucketOrders, scaler: Any,
                 group: Any) -> Recovery | PlainSteps:
    """How a Checkpointer makes steps: with recovery under `holdfast launch`, if that is possible."""
    side = current()
    why = _why_not(side, group)
    if wanted and why:
        raise ValueError(f"recover=True: {why}; expected `holdfast launch -n N script.py`, and "
                         "one Checkpointer for all ranks and models")
    if side is None:
        return PlainSteps(group)
    if wanted is False or why:
        if wanted is None:
            warn(side, why, "one Checkpointer for all ranks and models, or recover=False to accept "
                 "this")
        return RestartedSteps(side, group, why if wanted is None else "recover=False")
    scalers = scaler if isinstance(scaler, list) else [scaler]
    return Recovery(side, state, buckets, [one for one in scalers if one is not None])


def _why_not(side: WorkerSide | None, group: Any) -> str:
    """Why no rank can be replaced; "" if one can."""
    if side is None:
        return "this process was not started by holdfast launch"
    if group is not None:
        return "group= is not all ranks"
    return "this is a second Checkpointer of the program" if side.has_checkpointer else ""
