"""What a training has in the place of parts that it does not use: recovery, a watch, a rehearsal, and changes
of its configuration. Each has the calls of the real part, and nothing is done by most of them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from holdfast import _native
from holdfast.torch.loop.closing import Closing
from holdfast.torch.loop.transport import connect


class Resumed(NamedTuple):
    """What resume() tells of the place at which a training begins."""

    start: int  # the next step
    in_memory: bool = False  # its state was left in the memory of the hosts
    inexact: Sequence[str] = ()  # why its bits are not those of a training that was never stopped


class PlainSteps:
    """Has the calls of Recovery, and recovers nothing: the steps are made as the program makes them."""

    is_active = is_replaying = is_making_updates = False
    helper_folder: str | None = None

    def __init__(self, group: Any) -> None:
        self._group = group

    def connect(self) -> _native.TcpTransport | None:
        return connect(self._group)

    def serve(self, saves: Any, rejoin: Any, leave: Any, durable: Any) -> None: ...

    def tell_steps_again(self, listener: Callable[[int], None]) -> None: ...

    def agreed(self, step: int | None) -> None: ...

    def resume(self, resume: Callable[[], Resumed], take_over: Callable[[int], int]) -> int:
        return resume().start

    def begin_after(self, step: int) -> None: ...

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def after_step(self, function: Callable[[int, Any], None], step: int, loss: Any) -> bool:
        function(step, loss)
        return True

    def save(self, function: Callable[[], None]) -> None:
        function()

    def at_end(self, save: Callable[[], None], closing: Closing, timeout: float | None) -> None:
        save()
        closing.close(timeout)

    def check_not_broken(self) -> None: ...

    def check_no_loss(self) -> None: ...

    def close(self) -> None: ...


class NoWatch:
    """Has the calls of FreezeWatch, and watches nothing."""

    watched = None
    is_on = is_damaged = False

    def compare(self, step: int) -> None: ...

    def restart(self) -> None: ...

    def close(self) -> None: ...


class NoRehearsal:
    """Stands for a rehearsal in a process that is not rehearsed."""

    is_on = False

    def attach(self, checkpointer: Any) -> None: ...

    def detach(self, checkpointer: Any) -> None: ...

    def to_resume(self, step: int | None, initial: Any) -> tuple[int | None, Any]:
        return step, initial

    def resumed(self, checkpointer: Any, start: int) -> None: ...

    def saved(self, checkpointer: Any, step: int, loss: Any) -> None: ...


class NotElastic:
    """Has the calls of Member, for a model that stays as it is."""

    waits = is_member = False
    configuration = ""

    def attach(self, checkpointer: Any) -> bool:
        return False

    def release(self) -> None: ...

    def appoint(self, due: Any) -> None: ...

    def join(self) -> int:
        return 0
