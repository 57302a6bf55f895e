"""Steps of a training that `holdfast launch` did not start: as plain as the program makes them."""

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
    """Has the calls of Recovery, and recovers nothing."""

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
