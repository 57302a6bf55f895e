"""What collective calls returned while a rank started up, so that a replacement can start alone.

A program exchanges values before it trains: DDP compares shapes, a script broadcasts a seed. The
process that replaces a lost one runs the program from its beginning, while the others are in the
middle of a step and cannot take part. So each rank keeps what its calls returned, in memory that
belongs to the launcher, and its replacement reads it.

Results above 1 MiB are not kept. They are parameters that rank 0 sends to all, as a rule, and a
replacement gets its state from others anyway; `unanswered` has the tensors that are left, other than
those that DDP sends. If one of them is not part of the state, all ranks start again.
"""

import json
import os
import struct
from collections.abc import Callable
from typing import Any

import torch

from holdfast.torch.values.dtypes import bytes_of, tensor_from

_MOST = 1 << 20  # bytes of a result that is kept
_FULL = 64 << 20  # bytes of a log; a program that never trains by run() would fill the memory
_HEAD = struct.Struct("<II")  # the length of the description, and of the bytes behind it


class StartupLog:
    """The log of one rank: written by its first process, read by the others."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` belongs to a file in memory; its position is not used."""
        self._file = descriptor
        self._at = 0
        self.unanswered: list[torch.Tensor] = []
        self._unwritten: list[list[bytes]] = []  # calls; an empty list stands for one that is not complete
        self.is_state = False  # DDP sends parameters right now
        self.on_full: Callable[[], None] = _nothing  # called once

    @property
    def is_full(self) -> bool:
        """True if nothing more is added: the rank cannot be replaced then."""
        return self._at > _FULL

    def set_aside(self) -> bytes:
        """Forgets all calls, because the job begins anew for another configuration; returns the log."""
        log = os.pread(self._file, os.fstat(self._file).st_size, 0)
        self.put_back(b"")
        return log

    def put_back(self, log: bytes) -> None:
        """Goes back to that log."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, log, 0)
        self._at = len(log)
        self.unanswered.clear()
        self._unwritten.clear()

    def record(self, group: int, name: str, outputs: list[torch.Tensor]) -> None:
        """Adds what a call has returned."""
        self.reserve(group, name, outputs)()

    def reserve(self, group: int, name: str, outputs: list[torch.Tensor]) -> Callable[[], None]:
        """Adds a call that is not complete. What is returned here is called when it is.

        A call between two ranks must not be waited for before the program does so: the other rank may
        wait for what the program sends next.
        """
        entry: list[bytes] = []
        self._unwritten.append(entry)

        def complete() -> None:
            if not entry:
                entry.append(_pack(group, name, outputs))
                self._write()

        return complete

    def _write(self) -> None:
        """Writes the calls that are complete, up to the first that is not: the order is that of calls."""
        while self._unwritten and self._unwritten[0]:
            (written,) = self._unwritten.pop(0)
            os.pwrite(self._file, written, self._at)
            self._at += len(written)
            if self.is_full:
                self.on_full()

    def answer(self, group: int, name: str, outputs: list[torch.Tensor]) -> None:
        """Gives the tensors the values of the next call in the log."""
        told, body = self._next()
        asked = _describe(group, name, outputs)
        if told is None or {key: told[key] for key in asked} != asked:
            raise RuntimeError(f"start-up: this process calls {_words(asked)}, and the lost one "
                               f"called {_words(told)}; expected the same program, with the same "
                               "model and arguments")
        at = 0
        for tensor, kept in zip(outputs, told["kept"], strict=True):
            if not kept:
                self.unanswered += [] if self.is_state else [tensor]
                continue
            dtype = str(tensor.dtype).removeprefix("torch.")
            tensor.detach().copy_(tensor_from(body[at:at + tensor.nbytes], dtype, tensor.shape))
            at += tensor.nbytes

    def _next(self) -> tuple[dict[str, Any] | None, bytes]:
        head = os.pread(self._file, _HEAD.size, self._at)
        if len(head) < _HEAD.size:
            return None, b""
        text, body = _HEAD.unpack(head)
        read = os.pread(self._file, text + body, self._at + _HEAD.size)
        self._at += _HEAD.size + text + body
        return json.loads(read[:text]), read[text:]


def _nothing() -> None: ...


def _pack(group: int, name: str, outputs: list[torch.Tensor]) -> bytes:
    data = [bytes_of(one) if one.layout == torch.strided and one.nbytes <= _MOST else None
            for one in outputs]
    text = json.dumps(_describe(group, name, outputs)
                      | {"kept": [one is not None for one in data]}).encode()
    body = b"".join(one for one in data if one is not None)
    return _HEAD.pack(len(text), len(body)) + text + body


def _describe(group: int, name: str, outputs: list[torch.Tensor]) -> dict[str, Any]:
    return {"group": group, "call": name,
            "outputs": [[str(one.dtype), list(one.shape)] for one in outputs]}


def _words(call: dict[str, Any] | None) -> str:
    if call is None:
        return "no more"
    shapes = ", ".join(f"{dtype.removeprefix('torch.')} {shape}" for dtype, shape in call["outputs"])
    return f"{call['call']}({shapes}) of group {call['group']}"
