"""What ranks said to each other in collective calls, so that the replacement of a lost rank can act alone.

The process that replaces a lost rank runs the program from its beginning, while the others are in the
middle of a step and cannot take part. So calls are kept by key (holdfast/recovery/call_log.h):

  start-up   is update -1. Each rank keeps what its own calls returned, in memory that belongs to the
             launcher, and its replacement reads it. Results above 1 MiB are not kept. They are
             parameters that rank 0 sends to all, as a rule, and a replacement gets its state from
             elsewhere anyway; `unanswered` has the tensors that are left, other than those that DDP
             sends. If one of them is not part of the state, all ranks start again.
  steps      if `keeps_steps`: each rank keeps what it sends, and the results of collective calls. The
             others answer the replacement of a lost rank with that (messages.py).

A call of a step is kept at once, or when it is complete. What is on a GPU is copied by a stream of its
own, and a long message by a thread while it is sent; both are in the log when settle() has returned.
"""

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch

from holdfast import _native
from holdfast.errors import NotFoundError
from holdfast.torch.values.dtypes import tensor_from

START_UP = -1  # the update of calls before the first one
_ALL = -1  # stands for the ends of a collective call
_MOST = 1 << 20  # bytes of a result of a collective call that is kept
_LONG = 256 << 10  # bytes of a message from which on a thread keeps it
_FULL = 64 << 20  # bytes of start-up; a program that never trains by run() would fill the memory

# Collective calls that give all ranks of a group the same, so that others have what a lost rank got.
_ALIKE = ("allreduce", "allreduce_coalesced", "broadcast", "allgather", "allgather_coalesced",
          "_allgather_base", "allgather_into_tensor_coalesced", "all_gather_single",
          "all_gather_single_coalesced")

Key = tuple[int, str, str, int, int, int]  # update, group, call, from, to, number


class CallLog:
    """The log of one rank."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` belongs to a file in memory; its position is not used."""
        self.native = _native.CallLog()
        self.update: int | None = START_UP  # that calls belong to now; None if they are not kept
        self.keeps_steps = False
        self.inside: frozenset[int] = frozenset()  # the ranks of this one's island (islands.py)
        self.whole_after: int | None = None  # behind this update all calls are kept; None if none is yet
        self.unanswered: list[torch.Tensor] = []
        self.is_state = False  # DDP sends parameters right now
        self.on_full: Callable[[], None] = _nothing  # called once, when start-up has become too long
        # A step makes a call that others cannot answer, in a group of these ranks.
        self.on_unfit: Callable[[str, Sequence[int]], None] = _nothing
        self.make_room: Callable[[], bool] = _no_room  # called if a record does not fit
        self.seconds = 0.0  # that steps have waited for the log
        self.waited = 0.0  # seconds that this rank has waited for others in calls
        self.borders: dict[str, int] = {}  # bytes that were sent in the newest step, by "from>to"
        self.size = 0  # bytes that were kept of it
        self._file = descriptor
        self._counts: dict[int, dict[Any, int]] = {START_UP: {}}
        self._copies: list[tuple[Key, torch.Tensor, torch.Tensor, Any]] = []  # from GPUs, under way
        self._puts: dict[Key, tuple[list[torch.Tensor], Future[bool]]] = {}  # of the thread, under way
        self._thread: ThreadPoolExecutor | None = None
        self._end = os.fstat(descriptor).st_size
        self.native.take(os.pread(descriptor, self._end, 0))

    @property
    def is_full(self) -> bool:
        """True if nothing more is added to start-up: the rank cannot be replaced then."""
        return self._end > _FULL

    def set_aside(self) -> Any:
        """Forgets all calls, because the job begins anew for another configuration. Returns start-up."""
        kept = os.pread(self._file, self._end, 0), self._counts[START_UP]
        self._begin_with(b"", {})
        return kept

    def put_back(self, kept: Any) -> None:
        """Goes back to that start-up."""
        self._begin_with(*kept)

    def _begin_with(self, packed: bytes, counts: dict[Any, int]) -> None:
        wait([put for _, put in self._puts.values()])
        self.native.clear()
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, packed, 0)
        self.native.take(packed)
        self._end, self._counts, self.whole_after = len(packed), {START_UP: counts}, None
        self.unanswered.clear()
        self._copies.clear()
        self._puts.clear()

    def begin(self, update: int | None) -> None:
        """Calls belong to that update from now on, and are counted from 0; None if to none."""
        self.update = update
        if update is not None:
            self._counts = {START_UP: self._counts[START_UP], update: {}}
            self.borders, self.size = {}, 0

    @contextlib.contextmanager
    def belonging_to(self, update: int | None) -> Iterator[None]:
        """Inside it, calls belong to that update; to start-up, for example."""
        before, self.update = self.update, update
        try:
            yield
        finally:
            self.update = before

    def key_of(self, group: str, call: str, ends: tuple[int, int] = (_ALL, _ALL)) -> Key | None:
        """The key of the call that is made now; None if calls are not kept.

        A message has the name "send" at both ends, and ends the ranks (from, to).
        """
        if self.update is None:
            return None
        counts = self._counts[self.update]
        number = counts[group, call, ends] = counts.get((group, call, ends), -1) + 1
        return self.update, group, call, *ends, number

    def keeps(self, key: Key, members: Sequence[int], *, is_sent: bool = False) -> bool:
        """Whether this rank keeps the call. `is_sent` for a message at its sender; `members` of its group."""
        if key[0] == START_UP:
            return not is_sent and not self.is_full
        is_message = key[3] != _ALL
        if not self.keeps_steps or len(members) == 1 or (is_message and not is_sent):
            return False
        if key[4] in self.inside if is_message else self.inside.issuperset(members):
            return False
        if not is_message and key[2] not in _ALIKE:
            self.on_unfit(f"{key[2]} in group {key[1]}, whose result only one rank gets", members)
            return False
        return True

    def keep(self, key: Key, tensors: list[torch.Tensor], members: Sequence[int] = ()) -> None:
        """Keeps what a call of these ranks gave, or what was sent."""
        if key[0] == START_UP:
            return self._keep_start_up(key, tensors)
        began = time.perf_counter()
        size = sum(one.nbytes for one in tensors)
        if key[3] == _ALL and size > _MOST:
            return self.on_unfit(f"{key[2]} of {size} bytes in group {key[1]}", members)
        self._count(key, size)
        if len(tensors) == 1 and tensors[0].is_cuda:
            self._copies.append((key, tensors[0], *_copy_beside(tensors[0])))
        else:
            self._put(key, tensors, [True] * len(tensors))
        self.seconds += time.perf_counter() - began

    def keep_beside(self, key: Key, tensors: list[torch.Tensor]) -> Callable[[], None] | None:
        """Keeps what is sent. If it is long, a thread does that while it is sent: what is returned is to be called
        before the program may write to the tensors."""
        size = sum(one.nbytes for one in tensors)
        if key[0] == START_UP or size < _LONG or any(one.is_cuda for one in tensors):
            self.keep(key, tensors)
            return None
        began = time.perf_counter()
        self._count(key, size)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "holdfast-log")
        self._puts[key] = tensors, self._thread.submit(self._try_put, key, tensors, [True] * len(tensors))
        self.seconds += time.perf_counter() - began
        return functools.partial(self._finish_put, key)

    def _finish_put(self, key: Key) -> None:
        """Waits until the thread has kept a message."""
        began = time.perf_counter()
        if key in self._puts:
            tensors, put = self._puts.pop(key)
            if not put.result():
                self._put(key, tensors, [True] * len(tensors))  # waits for room, which the thread must not
        self.seconds += time.perf_counter() - began

    def _count(self, key: Key, size: int) -> None:
        self.size += size
        if key[3] != _ALL:
            border = f"{key[3]}>{key[4]}"
            self.borders[border] = self.borders.get(border, 0) + size

    @property
    def messages(self) -> int:
        """How many messages went over one border in the newest step, at most."""
        counts = self._counts.get(START_UP if self.update is None else self.update, {})
        return max((count + 1 for (_, call, _), count in counts.items() if call == "send"), default=0)

    def settle(self) -> None:
        """Returns when all that was kept is in the log."""
        for key in list(self._puts):
            self._finish_put(key)
        began = time.perf_counter()
        copies, self._copies = self._copies, []
        for key, _, copy, event in copies:
            event.synchronize()
            self._put(key, [copy], [True])
        self.seconds += time.perf_counter() - began

    def _keep_start_up(self, key: Key, tensors: list[torch.Tensor]) -> None:
        self._put(key, tensors, [one.layout == torch.strided and one.nbytes <= _MOST
                                 for one in tensors])
        packed = self.native.pack(key)
        os.pwrite(self._file, packed, self._end)
        self._end += len(packed)
        if self.is_full:
            self.on_full()

    def _put(self, key: Key, tensors: list[torch.Tensor], kept: list[bool]) -> None:
        # If there is no room later, either, the log tells of the hole.
        if not self._try_put(key, tensors, kept) and self.make_room():
            self._try_put(key, tensors, kept)

    def _try_put(self, key: Key, tensors: list[torch.Tensor], kept: list[bool]) -> bool:
        """False if there is no room."""
        flat = [one.detach().cpu().contiguous() for one, is_kept in zip(tensors, kept, strict=True)
                if is_kept]
        parts = [(one.data_ptr(), one.nbytes) for one in flat]
        try:
            self.native.put(key, json.dumps([_described(tensors), kept]), parts)
        except OSError:
            return False
        return True

    def answer(self, key: Key, tensors: list[torch.Tensor]) -> None:
        """Gives the tensors what other ranks said.

        RuntimeError if this process makes another call than the lost one, or an error of the log.
        """
        try:
            text, body = self.native.find(key)
        except NotFoundError as error:
            if key[0] != START_UP:
                raise
            raise RuntimeError(f"start-up: this process calls {_words(key, tensors)}, and the lost one "
                               "called no such thing; expected the same program, with the same model "
                               "and arguments") from error
        told, kept = json.loads(text)
        if told != _described(tensors):
            raise RuntimeError(f"{'start-up' if key[0] == START_UP else f'update {key[0]}'}: this process "
                               f"calls {_words(key, tensors)}, and the lost one had {_shapes(told)} there; "
                               "expected the same program, with the same model and arguments")
        at = 0
        for tensor, is_kept in zip(tensors, kept, strict=True):
            if not is_kept:
                self.unanswered += [] if self.is_state else [tensor]
                continue
            dtype = str(tensor.dtype).removeprefix("torch.")
            tensor.detach().copy_(tensor_from(body[at:at + tensor.nbytes], dtype, tensor.shape))
            at += tensor.nbytes


@functools.cache
def _side_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)


def _copy_beside(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """A copy of a tensor of a GPU in pinned memory, and the event that says when it is complete.

    The caller holds the tensor until then: else its memory could be given to another one.
    """
    stream = _side_stream(tensor.device)
    stream.wait_stream(torch.cuda.current_stream(tensor.device))
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    with torch.cuda.stream(stream):
        copy.copy_(tensor.detach(), non_blocking=True)
        event = torch.cuda.Event()
        event.record(stream)
    return copy, event


def _nothing(*_: Any) -> None: ...


def _no_room() -> bool:
    return False


def _described(tensors: list[torch.Tensor]) -> list[Any]:
    return [[str(one.dtype), list(one.shape)] for one in tensors]


def _words(key: Key, tensors: list[torch.Tensor]) -> str:
    return f"{key[2]}({_shapes(_described(tensors))}) of group {key[1]}"


def _shapes(told: list[Any]) -> str:
    return ", ".join(f"{dtype.removeprefix('torch.')} {shape}" for dtype, shape in told)
