"""How a Checkpointer makes steps under `holdfast launch`: they survive the death of a rank."""

import functools
import re
from collections.abc import Callable
from typing import Any

from holdfast import _native
from holdfast.errors import Error, Interrupted, UnavailableError
from holdfast.options import Recover
from holdfast.torch.loop.closing import Closing
from holdfast.torch.loop.end_of_training import is_exception_on_its_way
from holdfast.torch.loop.plain_parts import PlainSteps, Resumed
from holdfast.torch.loop.saves import Saves
from holdfast.torch.loop.step_numbers import DurableSteps
from holdfast.torch.recover.crash_points import reach
from holdfast.torch.recover.gated_steps import GatedSteps
from holdfast.torch.recover.helper_steps import HelperSteps, room_for
from holdfast.torch.recover.membership import Membership
from holdfast.torch.recover.open_steps import OpenSteps
from holdfast.torch.recover.restarted_steps import RestartedSteps, warn
from holdfast.torch.recover.undo import check_undoable
from holdfast.torch.recover.worker_side import AFTER_CLOSE, WorkerSide, current
from holdfast.torch.state.ddp_buckets import BucketOrders
from holdfast.torch.state.training_state import TrainingState

_CLOSE_WAIT = 60.0  # seconds that a rank waits for the others to come to close()


class Recovery:
    """The part of a worker of `holdfast launch` that makes steps."""

    is_active = True

    def __init__(self, side: WorkerSide, state: TrainingState, buckets: BucketOrders,
                 scalers: list[Any], run: str, options: Recover, steps_between_saves: int = 0) -> None:
        self._side, self._link, self._groups = side, side.link, side.groups
        self._membership = Membership(side, state, buckets, run, options)
        self._membership.messages.steps_between_saves = steps_between_saves
        kind = HelperSteps if self._link.is_helper else OpenSteps if options.undo else GatedSteps
        self._steps = kind(self._membership, state, buckets, scalers)
        self._membership.messages.shared.on_helpers = self._tell_helpers
        self._all_at_end = False  # all ranks have come to the end of the training
        self._is_plain = False  # the launcher was told that a lost rank cannot be replaced
        self._job: _native.Job | None = None
        self._saves: Saves | None = None

    @property
    def is_replaying(self) -> bool:
        """True in a replacement that makes steps again alone."""
        return self._steps.is_replaying

    @property
    def is_making_updates(self) -> bool:
        """True in a replacement that makes updates again from what was kept of them."""
        return self._membership.is_making_updates

    def connect(self) -> _native.TcpTransport | None:
        """The transport of the first generation, or of the one that a replacement joins."""
        return self._membership.connect()

    def serve(self, saves: Saves, rejoin: Callable[[], None],
              leave: Callable[[int, str, int], None], durable: DurableSteps) -> None:
        """Takes what is needed when a rank is lost. `rejoin` connects the job to the replacement.

        `leave` saves a step, for a reason, and ends the process with an exit code.
        """
        self._membership.messages.durable = durable
        self._side.has_checkpointer = True
        self._membership.serve(saves, rejoin, leave)
        self._job, self._saves = saves.live_job(), saves
        saves.on_stopped = lambda: self._link.say("saved")
        self._link.events.write_to(self._job)

    def tell_steps_again(self, listener: Callable[[int], None]) -> None:
        """Calls the function with each step that was done, and was made again behind its ck.step() (undo.py)."""
        if self._membership.undo is not None:
            self._membership.undo.on_step_again = listener

    @property
    def helper_folder(self) -> str | None:
        """The folder in which a helper of a replacement opens its job; None in a process that is a rank."""
        if self._link.is_helper and not self._link.folder:
            raise OSError("the launcher could not make a folder for the job of a helper in the temporary directory")
        return self._link.folder if self._link.is_helper else None

    def _tell_helpers(self, many: int) -> None:
        self._link.say("helps", many=room_for(many))

    def agreed(self, step: int | None) -> None:
        """All ranks have agreed that this is the newest durable step; None if there is none."""
        self._membership.agreed(step)

    def resume(self, resume: Callable[[], Resumed], take_over: Callable[[int], int]) -> int:
        """Resumes from a checkpoint, or in the place of a lost rank. Returns the next step."""
        if self._membership.is_replacement:
            start = take_over(self._steps.take_over())
            if not self._steps.is_replaying:
                self._membership.leave_at_start()
            return start
        with self._groups.unrecorded():
            begun = resume()
        self._membership.repeated.resumed(begun.start - 1)
        self._membership.messages.resumed(begun.start - 1)
        self._link.note_start(begun.start, in_memory=begun.in_memory, inexact=begun.inexact)
        return begun.start

    def begin_after(self, step: int) -> None:
        """Begins behind that step, whose state the rank has got in a change of the configuration."""
        self._membership.repeated.resumed(step)
        self._membership.messages.resumed(step)
        self._link.note_start(step + 1)
        self._link.note_step(step + 1)

    def step_in_memory(self) -> int:
        """The step whose state this rank has, when it hears that no process takes the place of a lost one.

        ValueError if it is in the middle of one.
        """
        repeated = self._membership.repeated
        if repeated.calls and repeated.calls[-1].kind != "step":
            raise ValueError(f"a rank was lost behind {repeated.calls[-1]}, in the middle of a step; expected one "
                             "ck.run() in each")
        if repeated.gradients["are kept"]:
            raise ValueError("gradients of earlier steps wait for an update; expected all micro-batches of an "
                             "update in one ck.run()")
        return repeated.last_step

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Makes a step, as often as it takes."""
        return self._steps.run(function, args, kwargs)

    def before_update(self, args: Any, kwargs: Any) -> Any:
        """The hook before an update. Returns other arguments for it, or None."""
        return self._steps.before_update(args, kwargs)

    def after_update(self, optimizer: Any) -> None:
        """The hook after an update."""
        self._steps.after_update(optimizer)

    def after_step(self, function: Callable[[int, Any], None], step: int, loss: Any) -> bool:
        """Calls the function, which needs all ranks. False if a rank was lost before its end.

        Also False in a replacement, if the others have made this step before it was filled.
        """
        self._groups.end_start_up()  # also if steps are not made by run()
        if not self._steps.step(step):
            return False
        self._link.note_step(step + 1)
        if self._steps.is_replaying:
            return False
        if not (self._steps.has_run or self._is_plain):
            warn(self._side, "steps are not made by ck.run()",
                 "ck.run(train, batch) in place of train(batch)")
            self._tell_plain("steps are not made by ck.run()", is_open=True)
            self._link.note_commit()
        reach("step")
        if self._membership.is_broken or self._steps.leaves_out(step):
            return False
        is_whole = self._unless_lost(lambda: self._steps.save(functools.partial(function, step, loss)))
        if is_whole and self._job is not None:
            self._membership.messages.look(self._job)
        return is_whole

    def save(self, function: Callable[[], None]) -> None:
        """Calls the function, which saves what the program asked for, again if a rank dies in it."""
        self._steps.save_asked(function)

    def at_end(self, save: Callable[[], None], closing: Closing, timeout: float | None) -> None:
        """Saves the end of the training, together with all ranks, and closes.

        A rank that dies before the end is durable on all ranks is replaced, and `save` is called
        again. A closed job cannot take a replacement in. So all ranks start again after a later
        death; they find the end in the newest checkpoint, and have nothing to do but to close.
        """
        if is_exception_on_its_way():  # the other ranks may be anywhere
            if not self._link.is_helper:
                save()
            return closing.close(timeout)
        while not self._unless_lost(lambda: self._make_durable(save, timeout)):
            pass
        reach("ended")
        self._side.is_closed = self._is_plain = True
        if self._all_at_end:
            self._link.say("closed")
        if not self._unless_lost(lambda: closing.close(timeout)) or self._membership.is_broken:
            self._membership.ask_to_restart(UnavailableError(AFTER_CLOSE))

    def _make_durable(self, save: Callable[[], None], timeout: float | None) -> None:
        """Returns when all ranks are here, and their saves are durable or have failed."""
        self._steps.end()
        self._membership.leave_if_told()
        self._link.note_commit()  # there is no other one
        save()
        reach("ending")
        assert self._saves is not None and self._job is not None
        self._saves.wait_until_done(timeout)
        self._all_at_end = self._job.all_agree(True, _CLOSE_WAIT)
        if not self._all_at_end:
            self._membership.check_not_broken()

    def _unless_lost(self, function: Callable[[], None]) -> bool:
        """Calls the function. False if it failed because a rank was lost."""
        try:
            function()
        except (Error, TimeoutError) as error:
            if not self._link.hears_of_loss():
                raise
            if self._link.is_current and not self._all_at_end:  # the launcher was killed: nobody replaces a rank
                self._link.give_up(error)
            return False
        return True

    def _tell_plain(self, why: str, *, is_open: bool) -> None:
        """From now on, all ranks start again if one dies. `is_open` if events can be written."""
        self._is_plain = True
        self._link.say("plain", why=why, is_open=is_open)

    def close(self) -> None:
        """Ends recovery: a Checkpointer that this process makes later is not recovered."""
        self._steps.close()
        self._link.events.stop(self._job)
        self._job = self._saves = None

    def check_not_broken(self) -> None:
        """UnavailableError if a rank was lost; also if the launcher says so in a moment."""
        self._membership.check_not_broken()

    def check_no_loss(self) -> None:
        """Interrupted if a rank was lost: a program waits for other ranks outside of run()."""
        if self._link.hears_of_loss():
            raise Interrupted("a rank died while Save.durable() waited for a save")


def recovery_for(wanted: bool | Recover | None, state: TrainingState, buckets: BucketOrders, scaler: Any,
                 group: Any, run: str, every: Any) -> Recovery | PlainSteps:
    """How a Checkpointer makes steps: with recovery under `holdfast launch`, if that is possible."""
    if not isinstance(wanted, bool | Recover | None):
        raise TypeError(f"recover={wanted!r}; expected True, False or holdfast.Recover(...)")
    side, options = current(), wanted if isinstance(wanted, Recover) else Recover()
    wanted = None if isinstance(wanted, Recover) else wanted
    scalers = [one for one in (scaler if isinstance(scaler, list) else [scaler]) if one is not None]
    if options.undo:
        check_undoable(state.optimizers, scalers)
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
    steps = re.fullmatch(r"(\d+) *steps?", every) if isinstance(every, str) else None
    return Recovery(side, state, buckets, scalers, run, options, int(steps[1]) if steps else 0)


def _why_not(side: WorkerSide | None, group: Any) -> str:
    """Why no rank can be replaced; "" if one can."""
    if side is None:
        return "this process was not started by holdfast launch"
    if group is not None:
        return "group= is not all ranks"
    return "this is a second Checkpointer of the program" if side.has_checkpointer else ""
