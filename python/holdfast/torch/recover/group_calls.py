"""Collective calls of a process group whose connections may be cut (group.py)."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from holdfast.torch.recover.group import Groups

_SLICE = timedelta(seconds=0.2)  # a call is waited for in slices of this length


class _Waiter(threading.Thread):
    """Waits for a call between two ranks, in a thread of its own, because Gloo closes the connection
    if the wait for such a call times out."""

    def __init__(self, inner: Any) -> None:
        super().__init__(daemon=True)
        self._inner, self._error = inner, None
        self.start()

    def run(self) -> None:
        try:
            self._inner.wait()
        except RuntimeError as error:
            self._error = error

    def wait(self, timeout: timedelta | None = None) -> None:
        """Waits as a call does: raises RuntimeError if it has failed, or the time is over."""
        self.join(None if timeout is None else timeout.total_seconds())
        if self.is_alive():
            raise RuntimeError("the call is not complete yet")
        if self._error is not None:
            raise self._error


class _Future(torch.futures.Future[Any]):
    """The result of a call.

    A communication hook may make other calls in what it passes to then(), and wait for them, as
    PowerSGD does. Gloo completes futures in two threads of its own. If both were to wait there, nothing
    would complete what they wait for. And ranks would make the calls of two buckets in different
    orders. So then() waits here, in the thread of the hook.
    """

    def then(self, callback: Callable[[Any], Any]) -> Any:
        self.wait()
        return super().then(callback)


class Call(dist._Work):
    """A call that was passed to the inner group. If it fails, it completes with zeros.

    Gloo may never end a call that it began just when its connections were cut. So a call on the
    CPU is waited for in slices, and given up some time after the cut. It cannot write any more:
    nothing can arrive for it.
    """

    def __init__(self, groups: "Groups", inner: Any, outputs: Any, is_pair: bool = False) -> None:
        super().__init__()
        self._groups, self._inner, self._outputs = groups, inner, outputs
        self._is_pair = is_pair  # a send or a receive, on the CPU
        self.began = time.monotonic_ns()
        self._is_done = False  # it was waited for, or its future is complete
        self._future: torch.futures.Future[Any] | None = None
        self._has_result = False  # the future is complete
        self.on_done: Callable[[], None] | None = None  # called once, when it is complete
        self._lock = threading.Lock()

    def wait(self, timeout: timedelta | None = None) -> bool:
        # torch passes no time, or none left, for a call that may take as long as its group allows.
        is_limited = timeout is not None and timeout.total_seconds() > 0
        deadline = time.monotonic() + timeout.total_seconds() if is_limited else None
        waited = _Waiter(self._inner) if self._is_pair and not self._is_done else self._inner
        since = time.perf_counter()
        while not self._is_done:
            # A call may complete just after its slice is over: only a second wait tells whether it
            # has failed or was late.
            is_over = self._is_on_gpu() or self._inner.is_completed()
            try:
                waited.wait() if is_over else waited.wait(_SLICE)
                self._is_done = True
            except RuntimeError as error:
                if is_over or self._groups.is_cut_for_long():
                    self._fail(error)
                    self._is_done = True
                elif deadline is not None and time.monotonic() > deadline:
                    raise
        self._groups.log.waited += time.perf_counter() - since
        self._tell_done()
        return True

    def _tell_done(self) -> None:
        with self._lock:
            on_done, self.on_done = self.on_done, None
        if on_done is not None:
            on_done()

    def is_completed(self) -> bool:
        if self._is_pair and not self._is_done and self._inner.is_completed():
            self._tell_done()  # what is sent may be written to from now on
        return self._is_done or self._inner.is_completed()

    def is_completed_inside(self) -> bool:
        """Whether the inner group has ended it."""
        return self._inner.is_completed()

    def is_success(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> Any:
        if self._is_on_gpu():
            return self._inner.get_future().then(self._value_of)
        if self._future is None:
            self._future = _Future()
            self._inner.get_future().add_done_callback(self._complete)
        return self._future

    def give_up(self) -> None:
        """Completes the future of a call that Gloo does not end."""
        if self._future is not None and not self._inner.is_completed():
            self._complete(None)

    def _complete(self, future: Any) -> None:
        with self._lock:
            if self._has_result or self._future is None:
                return
            self._has_result = True
        try:
            value = self._value_of(future)
            self._tell_done()
            self._future.set_result(value)
        except BaseException as error:  # also Interrupted: whoever waits must hear of it
            self._future.set_exception(RuntimeError(str(error)))
        self._is_done = True  # not before a failure is noted: the gate looks for one

    def _value_of(self, future: Any) -> Any:
        try:
            if future is not None:
                return future.value()
            raise RuntimeError("a rank was lost")
        except RuntimeError as error:
            self._fail(error)
            return self._outputs

    def _is_on_gpu(self) -> bool:
        return any(one.is_cuda for one in tensors_in(self._outputs)[:1])

    def _fail(self, error: Exception) -> None:
        self.on_done = None
        self._groups.note_failure(error)
        self._groups.clear(self._outputs)


class Done(dist._Work):
    """A call that is complete already."""

    def __init__(self, outputs: Any) -> None:
        super().__init__()
        self._outputs = outputs

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def get_future(self) -> Any:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._outputs)
        return future


def tensors_in(outputs: Any) -> list[torch.Tensor]:
    """The tensors that a call fills."""
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    return [tensor for one in outputs or () for tensor in tensors_in(one)]


def zero(outputs: Any) -> None:
    """Fills them with zeros."""
    for tensor in tensors_in(outputs):
        tensor.detach().zero_()
