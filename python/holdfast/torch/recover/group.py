"""A process group whose connections can be replaced while the objects that use it live on.

Under `holdfast launch`, every process group of torch is one of these, around a group of the
backend that the program named (the inner group). DDP, FSDP2 and pipelines hold the outer group and
never notice that the inner one was replaced. What a collective call does depends on the mode:

  live      it goes to the inner group.
  void      the inner group is broken, and the step will be repeated: the call completes at once,
            with zeros. An exception would do harm: DDP does not survive one inside backward.
  replay    a replacement starts up: the call is answered with what this rank got when the job
            began (startup_log.py).
  silent    the call completes at once and changes nothing.

A call that fails in a live group makes it void, if a step is being made that can be repeated.
Otherwise it raises `Interrupted`.
"""

import contextlib
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from holdfast.torch.recover.startup_log import StartupLog

Mode = Literal["live", "void", "replay", "silent"]

NAME = "holdfast"  # of the backend, as torch knows it

_REDUCE = ("allreduce", "allreduce_coalesced", "broadcast", "allgather", "allgather_coalesced",
           "_allgather_base", "allgather_into_tensor_coalesced", "reduce_scatter",
           "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "alltoall_base", "alltoall",
           "all_gather_single", "reduce_scatter_single", "all_to_all_single",
           "all_gather_single_coalesced", "reduce_scatter_single_coalesced", "recv",
           "recv_anysource", "gather", "scatter", "reduce")  # the first argument is the output
_NO_OUTPUT = ("send", "barrier", "monitored_barrier")


class Interrupted(BaseException):
    """Another rank died during a collective call outside of Checkpointer.run().

    It is no Exception, so that a training does not catch it by accident. Unless it is caught, all
    ranks start again from the newest checkpoint.
    """


class Groups:
    """All process groups of this process, in the order in which they were made."""

    def __init__(self, log: StartupLog, prefix: str) -> None:
        """`prefix` is that of the keys in the job's store; each generation has its own."""
        self.prefix = prefix
        self.mode: Mode = "live"
        self.log = log
        self.is_recording = True  # start-up is not over: what calls return is kept in the log
        self.may_repeat = False  # a step is being made that can be repeated
        self.on_failure: Callable[[Exception], None] = _ignore  # called from any thread
        self.on_call: Callable[[str], None] = _ignore  # called before each live call
        self.failure: Exception | None = None  # why the groups are void
        self._groups: list[SwapGroup] = []
        self._lock = threading.Lock()

    def add(self, group: "SwapGroup") -> int:
        self._groups.append(group)
        return len(self._groups) - 1

    def break_off(self, why: Exception) -> None:
        """Ends all calls that wait, and makes all further ones void. Called by any thread."""
        with self._lock:
            self.failure = self.failure or why
            self.mode = "void" if self.mode == "live" else self.mode
        for group in list(self._groups):
            group.cut()

    def replace(self, prefix: str) -> None:
        """Makes new inner groups, together with all their members, which use the same prefix."""
        self.prefix = prefix
        for group in self._groups:
            group.connect(prefix)
        with self._lock:
            self.failure, self.mode = None, "live"

    def wait_for_calls(self) -> None:
        """Waits for calls whose results were not waited for yet."""
        for group in self._groups:
            group.wait_for_calls()

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Inside it, calls complete at once and change nothing."""
        before, self.mode = self.mode, "silent"
        try:
            yield
        finally:
            self.mode = before

    @contextlib.contextmanager
    def startup(self, is_replacement: bool) -> Iterator[None]:
        """Inside it, calls belong to start-up, although training has begun."""
        if not is_replacement:
            before, self.is_recording = self.is_recording, True
            try:
                yield
            finally:
                self.is_recording = before
            return
        with self._lock:
            self.mode = "replay"
        try:
            yield
        finally:
            with self._lock:
                self.mode = "live" if self.failure is None else "void"

    @contextlib.contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Inside it, calls are not part of start-up: a replacement does not make them."""
        before, self.is_recording = self.is_recording, False
        try:
            yield
        finally:
            self.is_recording = before

    def note_failure(self, why: Exception) -> None:
        """A call has failed in a live group. Raises unless the step can be repeated."""
        self.on_failure(why)
        if not self.may_repeat:
            raise why
        with self._lock:
            self.failure = self.failure or why
            self.mode = "void"


class SwapGroup(dist.ProcessGroup):
    """One process group, as torch holds it."""

    def __init__(self, groups: Groups, options: Any, wanted: str) -> None:
        super().__init__(options.group_rank, options.group_size)
        self._groups = groups
        self._store, self._wanted = options.store, wanted
        self._rank, self._size = options.group_rank, options.group_size
        self._timeout: timedelta = options.timeout
        self._name: str | None = None
        self._inner: dist.ProcessGroup | None = None
        self._sockets: set[tuple[int, str]] = set()
        self._waiting: weakref.WeakSet[_Call] = weakref.WeakSet()
        self._index = groups.add(self)
        if groups.mode == "live":
            self.connect(groups.prefix)

    def connect(self, prefix: str) -> None:
        """Makes the inner group anew."""
        before = _open_sockets()
        self._inner = None
        self._inner = _make_inner(self._wanted, dist.PrefixStore(prefix, self._store), self._rank,
                                  self._size, self._timeout)
        self._sockets = _open_sockets() - before

    def cut(self) -> None:
        """Ends the calls that wait in the inner group: Gloo has no call for that."""
        for descriptor, _ in self._sockets & _open_sockets():
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as one:
                # To touch a listening socket aborts the process.
                if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    one.getpeername()
                    one.shutdown(socket.SHUT_RDWR)

    def wait_for_calls(self) -> None:
        for call in list(self._waiting):
            call.wait()

    def _call(self, name: str, outputs: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        groups = self._groups
        if groups.mode == "live":
            groups.on_call(name)
            return self._call_live(name, outputs, args, options)
        if groups.mode == "void":
            if not groups.may_repeat:
                groups.note_failure(groups.failure or RuntimeError("a rank was lost"))
            _zero(outputs)
        elif groups.mode == "replay":
            groups.log.answer(self._index, name, _tensors(outputs))
        return _Done(outputs)

    def _call_live(self, name: str, outputs: Any, args: tuple[Any, ...],
                   options: dict[str, Any]) -> Any:
        try:
            call = _Call(self._groups, getattr(self._inner, name)(*args, **options), outputs)
        except RuntimeError as error:
            self._groups.note_failure(error)
            _zero(outputs)
            return _Done(outputs)
        if self._groups.is_recording:
            call.wait()
            self._groups.log.record(self._index, name, _tensors(outputs))
        else:
            self._waiting.add(call)
        return call

    def getBackendName(self) -> str:  # noqa: N802  (torch's name)
        return NAME

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    @property
    def group_name(self) -> str | None:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name


def _forward(name: str, has_output: bool) -> Any:
    def call(self: SwapGroup, *args: Any, **options: Any) -> Any:
        return self._call(name, args[0] if has_output else None, args, options)

    call.__name__ = name
    return call


for _name in (*_REDUCE, *_NO_OUTPUT):
    setattr(SwapGroup, _name, _forward(_name, _name in _REDUCE))


class _Call(dist._Work):
    """A call that was passed to the inner group. If it fails, it completes with zeros."""

    def __init__(self, groups: Groups, inner: Any, outputs: Any) -> None:
        super().__init__()
        self._groups, self._inner, self._outputs = groups, inner, outputs
        self._is_done = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        if not self._is_done:
            try:
                self._inner.wait() if timeout is None else self._inner.wait(timeout)
            except RuntimeError as error:
                self._fail(error)
            self._is_done = True
        return True

    def is_completed(self) -> bool:
        return self._is_done or self._inner.is_completed()

    def is_success(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> Any:
        return self._inner.get_future().then(self._finish)

    def _finish(self, future: Any) -> Any:
        try:
            return future.value()
        except RuntimeError as error:
            self._fail(error)
            return self._outputs

    def _fail(self, error: Exception) -> None:
        self._groups.note_failure(error)
        _zero(self._outputs)


class _Done(dist._Work):
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


def install(groups: Groups) -> None:
    """From now on, every process group that torch makes is a SwapGroup."""
    wanted: list[str] = []  # the backend of the first group, and that of the one being made
    make = c10d._new_process_group_helper

    def make_around(size: int, rank: int, ranks: Any, backend: Any, *args: Any,
                    **options: Any) -> Any:
        # A group without a backend of its own has that of the first group.
        wanted.append(wanted[0] if NAME in str(backend) else str(backend))
        try:
            return make(size, rank, ranks, dist.Backend(NAME), *args, **options)
        finally:
            del wanted[max(1, len(wanted) - 1):]

    dist.Backend.register_backend(NAME, lambda options, _: SwapGroup(groups, options, wanted[-1]),
                                  extended_api=True, devices=["cpu", "cuda"])
    c10d._new_process_group_helper = make_around


def _make_inner(wanted: str, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """A plain process group of torch with the backends that the program named."""
    group = dist.ProcessGroup(store, rank, size)
    made: dict[str, tuple[Any, Any]] = {}
    for device, backend in c10d.BackendConfig(dist.Backend(wanted)).get_device_backend_map().items():
        if device != "cpu" and not torch.cuda.is_available():
            continue
        if backend not in made:
            made[backend] = _make_backend(backend, dist.PrefixStore(backend, store), rank, size,
                                          timeout)
        group._register_backend(torch.device(device), *made[backend])
    group._set_default_backend(next(reversed(made.values()))[0])
    return group


def _make_backend(name: str, store: Any, rank: int, size: int, timeout: timedelta) -> tuple[Any, Any]:
    kinds = dist.ProcessGroup.BackendType
    if name == "gloo":
        made = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    elif name == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        made = dist.ProcessGroupNCCL(store, rank, size, options)
    else:
        raise ValueError(f"backend {name}: not known to holdfast launch; expected gloo or nccl, or "
                         "Checkpointer(recover=False) and torchrun")
    made._set_sequence_number_for_group()
    return (kinds.GLOO if name == "gloo" else kinds.NCCL), made


def _tensors(outputs: Any) -> list[torch.Tensor]:
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    return [tensor for one in outputs or () for tensor in _tensors(one)]


def _zero(outputs: Any) -> None:
    for tensor in _tensors(outputs):
        tensor.detach().zero_()


def _open_sockets() -> set[tuple[int, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/self/fd/{name}")
            if link.startswith("socket:"):
                found.add((int(name), link))
    return found


def _ignore(*_: Any) -> None: ...
