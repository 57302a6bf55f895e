"""A process group whose connections can be replaced while the objects that use it live on.

Under `holdfast launch`, every process group of torch is one of these, around a group of the
backend that the program named (the inner group). DDP, FSDP2 and pipelines hold the outer group and
never notice that the inner one was replaced. What a collective call does depends on the mode:

  live      it goes to the inner group.
  void      the inner group is broken, and the step will be repeated: the call completes at once,
            with zeros. An exception would do harm: DDP does not survive one inside backward.
  replay    a replacement starts up, or makes steps again alone: the call is answered with what
            other ranks said then (call_log.py).
  silent    the call completes at once and changes nothing.

A call that fails in a live group makes it void, if a step is being made that can be repeated.
Otherwise it raises `Interrupted`.
"""

import contextlib
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from holdfast.errors import Error, UnavailableError
from holdfast.torch.recover.call_log import START_UP, CallLog, Key
from holdfast.torch.recover.group_calls import Call, Done, tensors_in, zero
from holdfast.torch.recover.inner_group import (
    cut_sockets,
    make_inner,
    open_sockets,
    shared,
    wait_for,
)

Mode = Literal["live", "void", "replay", "silent"]

_LONG = 0.3  # seconds after which a call that was cut off should have ended

NAME = "holdfast"  # the name by which torch knows this backend

# Calls whose first argument is what they fill.
_WITH_OUTPUT = ("allreduce", "allreduce_coalesced", "broadcast", "allgather", "allgather_coalesced",
               "_allgather_base", "allgather_into_tensor_coalesced", "reduce_scatter",
               "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "alltoall_base", "alltoall",
               "all_gather_single", "reduce_scatter_single", "all_to_all_single",
               "all_gather_single_coalesced", "reduce_scatter_single_coalesced", "recv",
               "recv_anysource", "gather", "scatter", "reduce")
_PAIRS = ("send", "recv", "recv_anysource")  # calls between two ranks
# Calls that fill nothing.
_NO_OUTPUT = ("send", "barrier", "monitored_barrier")


class Groups:
    """The process groups of this process, in the order in which they were made."""

    def __init__(self, log: CallLog, prefix: str) -> None:
        """`prefix` is that of the keys in the job's store; each generation has its own."""
        self.prefix = prefix
        self.mode: Mode = "live"
        self.log = log
        self.may_repeat = False  # a step is being made that can be repeated
        self.on_failure: Callable[[Exception], None] = _ignore  # called from any thread
        self.on_call: Callable[[str], None] = _ignore  # called before each live call
        self.on_unanswered: Callable[[Exception], None] = _ignore  # in mode replay
        self.is_stale: Callable[[], bool] = lambda: False  # a group that is being made has no use any more
        self.keeps_outputs = False  # calls that fail now leave their outputs as they are (ddp_calls.py)
        self.failure: Exception | None = None  # why the groups are void
        self._cut_at = math.inf  # when connections were cut
        self._groups: list[SwapGroup] = []  # without those that the program has destroyed
        self._gate_since = 0  # when this process began to wait at the gate
        self._lock = threading.Lock()

    @property
    def is_recording(self) -> bool:
        """True as long as calls belong to start-up."""
        return self.log.update == START_UP

    def end_start_up(self) -> None:
        """Calls do not belong to start-up any more."""
        if self.is_recording:
            self.log.begin(None)

    def waits_since(self) -> int:
        """When the oldest call was made that is not complete, in ns; 0 if all are."""
        since = [self._gate_since] if self._gate_since else []
        with contextlib.suppress(RuntimeError):  # the training thread makes a call right now
            since += [call.began for group in list(self._groups) for call in group.pending()]
        return min(since, default=0)

    @contextlib.contextmanager
    def at_gate(self) -> Iterator[None]:
        """Inside it, this process waits for all ranks."""
        self._gate_since = time.monotonic_ns()
        try:
            yield
        finally:
            self._gate_since = 0

    def add(self, group: "SwapGroup") -> None:
        self._groups.append(group)

    def remove(self, group: "SwapGroup") -> None:
        """The program has destroyed the group: it is not connected again after a death."""
        self._groups = [one for one in self._groups if one is not group]

    def set_aside(self) -> tuple[list["SwapGroup"], Any]:
        """Forgets all groups, and how they were made. Returns what put_back() needs."""
        kept = self._groups, self.log.set_aside()
        self._groups = []
        return kept

    def forget_failure(self) -> None:
        """What has failed is of groups that are not used any more."""
        with self._lock:
            self.failure, self.mode, self._cut_at = None, "live", math.inf

    def put_back(self, kept: tuple[list["SwapGroup"], Any]) -> None:
        """Has those groups again, and no others; replace() connects them."""
        self._groups, log = kept
        self.log.put_back(log)
        self.log.begin(None)

    def begin_anew(self, prefix: str, is_stale: Callable[[], bool]) -> None:
        """The groups that are made from now on belong to the start-up of another configuration."""
        self._groups = []
        self.prefix, self.is_stale = prefix, is_stale
        self.log.set_aside()
        self.log.begin(START_UP)
        self.forget_failure()

    def describe(self) -> list[Any]:
        """The groups, as plain values."""
        return [group.describe() for group in self._groups]

    def break_off(self, why: Exception) -> None:
        """Ends all calls that wait, and makes all further ones void. Called by any thread."""
        with self._lock:
            self.failure = self.failure or why
            self.mode = "void" if self.mode == "live" else self.mode
            self._cut_at = time.monotonic()
        for group in list(self._groups):
            group.cut()
        timer = threading.Timer(2 * _LONG, self._give_up)
        timer.daemon = True
        timer.start()

    def _give_up(self) -> None:
        """Gives up the calls that wait, again and again: a thread may begin one late, on cut connections."""
        while self.mode == "void":
            for group in list(self._groups):
                with contextlib.suppress(RuntimeError):  # the training thread makes a call right now
                    group.give_up()
            time.sleep(_LONG)

    def is_cut_for_long(self) -> bool:
        """True if connections were cut so long ago that a call that still waits never ends."""
        return self.mode == "void" and time.monotonic() - self._cut_at > _LONG

    def replace(self, prefix: str, is_stale: Callable[[], bool], mode: Mode = "live") -> None:
        """Makes new inner groups, together with all their members, which use the same prefix.

        The mode is then that one. UnavailableError if `is_stale` becomes true meanwhile: a member
        was lost.
        """
        self.prefix = prefix
        for group in self._groups:
            group.connect(prefix, is_stale)
        with self._lock:
            self.failure, self.mode, self._cut_at = None, mode, math.inf

    def connect_island(self, prefix: str, island: Sequence[int], is_stale: Callable[[], bool]) -> None:
        """In mode replay: calls in which only ranks of the island take part are live. All of them call it."""
        for group in self._groups:
            group.connect_island(f"{prefix}/island {island[0]}", island, is_stale)

    def go_live(self) -> None:
        """Ends the start-up of a replacement: from now on, calls go to the other ranks."""
        with self._lock:
            self.mode = "live" if self.failure is None else "void"

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
        before = self.mode
        if is_replacement:
            with self._lock:
                self.mode = "replay"
        try:
            with self.log.belonging_to(START_UP):
                yield
        finally:
            if is_replacement and before == "live":
                self.go_live()

    def unrecorded(self) -> Any:
        """Inside it, calls are not part of start-up: a replacement does not make them."""
        return self.log.belonging_to(None)

    def note_failure(self, why: Exception) -> None:
        """A call has failed in a live group. Raises unless the step can be repeated."""
        self.on_failure(why)
        if not self.may_repeat:
            raise why
        with self._lock:
            self.failure = self.failure or why
            self.mode = "void"

    def clear(self, outputs: Any) -> None:
        """What a call that has failed leaves in its outputs."""
        if not self.keeps_outputs:
            zero(outputs)


class SwapGroup(dist.ProcessGroup):
    """One process group, as torch holds it."""

    def __init__(self, groups: Groups, options: Any, wanted: str) -> None:
        super().__init__(options.group_rank, options.group_size)
        self._groups = groups
        self._id, self._wanted = options.group_id, wanted
        self._rank, self._size = options.group_rank, options.group_size
        self._members = list(options.global_ranks_in_group)  # none stands for all ranks
        self._timeout: timedelta = options.timeout
        self._name: str | None = None
        self._inner: dist.ProcessGroup | None = None
        self._inside: list[int] = []  # the members in it, if an island makes steps again (islands.py)
        self._sockets: set[tuple[int, str]] = set()
        self._waiting: weakref.WeakSet[Call] = weakref.WeakSet()
        # Inner groups of earlier generations with calls that had not ended when they were replaced.
        self._old: list[tuple[dist.ProcessGroup | None, list[Call]]] = []
        groups.add(self)
        if groups.mode == "live":
            self.connect(groups.prefix, groups.is_stale)

    def describe(self) -> list[Any]:
        """Its name, and its ranks in the job, as plain values."""
        return [str(self._id), self.members]

    @property
    def members(self) -> list[int]:
        """Its ranks in the job."""
        return self._members or list(range(self._size))

    def connect(self, prefix: str, is_stale: Callable[[], bool] = lambda: False, inside: Sequence[int] = ()) -> None:
        """Makes the inner group anew; only of the members `inside`, if there are any."""
        self._let_go_of_inner()
        self._inside = list(inside)
        rank, size = (inside.index(self._rank), len(inside)) if inside else (self._rank, self._size)
        store = dist.PrefixStore(f"holdfast/{prefix}/{self._id}", shared.to_store(self._timeout))
        before = open_sockets()
        try:
            self._inner = wait_for(lambda: make_inner(self._wanted, store, rank, size, self._timeout), is_stale)
        except UnavailableError:
            cut_sockets(open_sockets() - before)  # else the attempt waits for its timeout
            shared.cut()
            raise
        self._sockets = open_sockets() - before

    def _let_go_of_inner(self) -> None:
        """Keeps old groups whose calls have not ended. A thread destroys the others, as that may never end."""
        self._old.append((self._inner, list(self._waiting)))
        self._waiting.clear()
        self._inner = None
        kept = [one for one in self._old if any(not call.is_completed_inside() for call in one[1])]
        ended = [inner for inner, _ in self._old if all(inner is not one for one, _ in kept)]
        self._old = kept
        destroying = threading.Thread(target=ended.clear, daemon=True)
        destroying.start()
        destroying.join(_LONG)

    def cut(self) -> None:
        """Ends the calls that wait in the inner group, by its sockets: Gloo has no call for that."""
        cut_sockets(self._sockets)

    def wait_for_calls(self) -> None:
        for call in list(self._waiting) if self._waiting else ():
            call.wait()

    def pending(self) -> list[Call]:
        """The calls that are not complete."""
        return [call for call in list(self._waiting) if not call.is_completed()]

    def give_up(self) -> None:
        if self._groups.is_cut_for_long():
            for call in list(self._waiting):
                call.give_up()

    def _call(self, name: str, outputs: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        groups = self._groups
        if groups.mode == "live":
            groups.on_call(name)
            return self._call_live(name, outputs, args, options)
        if groups.mode == "void":
            if not groups.may_repeat:
                groups.note_failure(groups.failure or RuntimeError("a rank was lost"))
            groups.clear(outputs)
        elif groups.mode == "replay":
            return self._answer(name, outputs, args, options)
        return Done(outputs)

    def _key(self, name: str, args: tuple[Any, ...]) -> Key | None:
        """Under which key the call is kept; None if it is not."""
        log, group = self._groups.log, str(self._id)
        if name == "send":
            return log.key_of(group, "send", (self._rank_of(self._rank), self._rank_of(args[1])))
        if name == "recv":
            return log.key_of(group, "send", (self._rank_of(args[1]), self._rank_of(self._rank)))
        return log.key_of(group, name)

    def _rank_of(self, member: int) -> int:
        """The rank in the job of a member of the group."""
        return self._members[member] if self._members else member

    def connect_island(self, prefix: str, island: Sequence[int], is_stale: Callable[[], bool]) -> None:
        """Connects the members that are in an island, which makes steps again together."""
        inside = [member for member in range(self._size) if self._rank_of(member) in island]
        if len(inside) > 1:
            self.connect(prefix, is_stale, inside)

    def _is_inside(self, name: str, args: tuple[Any, ...]) -> bool:
        """Whether only ranks of the island take part in a call."""
        if self._size == 1 and self._inner is None:
            self.connect(self._groups.prefix, inside=[0])
        return args[1] in self._inside if name in ("send", "recv") else len(self._inside) == self._size

    def _answer(self, name: str, outputs: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Completes a call of a process that acts alone."""
        log, key = self._groups.log, self._key(name, args)
        if key is not None and key[0] != START_UP and self._is_inside(name, args):
            if name in ("send", "recv"):
                args = args[0], self._inside.index(args[1]), *args[2:]
            return self._call_inner(name, outputs, args, options)
        try:
            if name == "send":
                if key is not None and log.keeps(key, self.members, is_sent=True):
                    log.keep(key, tensors_in(args[0]))  # others may need it, if they die next
            elif key is None:
                raise RuntimeError(f"{name} is called outside of ck.run(), and nobody knows what the "
                                   "lost rank got; expected it inside")
            elif outputs is not None:
                log.answer(key, tensors_in(outputs))
        except (RuntimeError, Error) as error:
            self._groups.on_unanswered(error)
            raise
        return Done(outputs)

    def _call_live(self, name: str, outputs: Any, args: tuple[Any, ...],
                   options: dict[str, Any]) -> Any:
        log, is_sent = self._groups.log, name == "send"
        key = self._key(name, args)
        call = self._call_inner(name, outputs, args, options)
        has_failed = isinstance(call, Done)
        if has_failed or key is None or (outputs is None and not is_sent) or not log.keeps(
                key, self.members, is_sent=is_sent):
            return call
        if is_sent:
            call.on_done = log.keep_beside(key, tensors_in(args[0]))
        else:
            call.on_done = lambda: log.keep(key, tensors_in(outputs), self.members)
            if key[0] == START_UP and name not in _PAIRS:
                call.wait()
        return call

    def _call_inner(self, name: str, outputs: Any, args: tuple[Any, ...],
                    options: dict[str, Any]) -> Any:
        is_pair = name in _PAIRS and not any(one.is_cuda for one in tensors_in(args[0]))
        try:
            inner = getattr(self._inner, name)(*args, **options)
            call = Call(self._groups, inner, outputs, is_pair)
        except RuntimeError as error:
            self._groups.note_failure(error)
            self._groups.clear(outputs)
            return Done(outputs)
        self._waiting.add(call)
        return call

    def shutdown(self) -> None:
        """Called by dist.destroy_process_group()."""
        self._groups.remove(self)

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


for _name in (*_WITH_OUTPUT, *_NO_OUTPUT):
    setattr(SwapGroup, _name, _forward(_name, _name in _WITH_OUTPUT))


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


def _ignore(*_: Any) -> None: ...
