"""Puts together lines that several processes print at once, each with a label before it.

A line is printed when it is complete: behind a line feed, or a carriage return, with which progress bars
go back to the beginning of their line. What comes behind a carriage return is also printed without an end,
a moment after it came, and on a terminal so is everything, such as a question.
"""

import contextlib
import os
import re
import select
import time
from collections.abc import Iterable

_MOMENT = 0.1  # seconds
_MOST = 1 << 16  # bytes that are read at once: all that a pipe holds
_LONGEST = 1 << 20  # bytes of a line that is printed as one
_ERASE = b"\r\x1b[K"  # has a terminal erase the line
_PIECE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)")


class Out:
    """A place for lines: the standard output, the standard error, or both if they are one file."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_terminal = os.isatty(number)
        self.line_of: Source | None = None  # whose text is in the last line; None if that is empty
        self.is_open = False  # the text has no end yet, so that more of it can follow
        self.is_bar = False  # the text is a progress bar
        self._is_gone = False  # nobody reads it any more

    def write(self, data: bytes) -> None:
        """Prints all of it, unless that is impossible: ranks do not fail because nobody reads them."""
        while data and not self._is_gone:
            try:
                data = data[os.write(self.number, data):]
            except BlockingIOError:
                select.select([], [self.number], [])
            except BrokenPipeError:
                self._is_gone = True
            except OSError:
                return

    def show(self, source: "Source | None", *, is_open: bool = False, is_bar: bool = False) -> None:
        """Notes what is in the last line now."""
        self.line_of, self.is_open, self.is_bar = source, is_open, is_bar

    def leave_line(self, source: "Source", *, for_bar: bool) -> bytes:
        """What must be printed before the source can begin a line, or a progress bar."""
        is_free = self.line_of in (None, source) or (for_bar and not self.is_open)
        if self.is_bar and self.is_terminal and not is_free:
            return _ERASE
        return b"\n" if self.is_open and not is_free else b""


class Source:
    """What one process prints into one pipe."""

    def __init__(self, number: int, label: bytes, out: Out) -> None:
        self.number, self._label, self._out = number, label, out
        self._waiting = b""  # a line that has no end yet
        self._came = 0.0  # when its newest part came
        self._has_returned = False  # the last line has ended with a carriage return

    @property
    def can_flush(self) -> bool:
        """Whether a line without an end is printed after a moment."""
        return bool(self._waiting) and (self._has_returned or self._out.is_terminal)

    def take(self, data: bytes) -> None:
        """Prints the lines that are complete now."""
        waiting, at, made = self._waiting + data, 0, []
        for piece in _PIECE.finditer(waiting):
            made.append(self._print(piece[0]))
            at = piece.end()
        self._waiting, self._came = waiting[at:], time.monotonic()
        self._out.write(b"".join(made))
        if len(self._waiting) > _LONGEST:
            self.flush()

    def flush(self) -> None:
        """Prints a line that has no end."""
        if self._waiting:
            before = self._out.leave_line(self, for_bar=self._has_returned) + self._label
            self._out.write((b"" if self._is_in_line else before) + self._waiting)
            self._out.show(self, is_open=True, is_bar=self._has_returned)
            self._waiting = b""

    def flush_if_idle(self, now: float) -> None:
        if self.can_flush and now - self._came >= _MOMENT:
            self.flush()

    def end(self) -> None:
        """The process has ended, with all of its children."""
        self.flush()
        if self._out.line_of is self:
            self._out.write(b"\n")
            self._out.show(None)

    @property
    def _is_in_line(self) -> bool:
        """True if it has printed the beginning of the last line, so that the rest needs no label."""
        return self._out.line_of is self and self._out.is_open

    def _print(self, piece: bytes) -> bytes:
        """What is printed for a line with its end."""
        has_returned, self._has_returned = self._has_returned, piece.endswith(b"\r")
        shown = self if self._has_returned else None
        before = self._out.leave_line(self, for_bar=self._has_returned) + self._label
        if self._is_in_line:
            before = b""
        elif piece == b"\r":  # a progress bar begins
            return b""
        elif piece == b"\n" and has_returned:  # a progress bar ends, which others may have overwritten
            if self._out.line_of is not self:
                return b""
            before = b""
        self._out.show(shown, is_bar=self._has_returned)
        return before + piece


class Printing:
    """All that is printed."""

    def __init__(self, out: int, err: int) -> None:
        first, second = Out(out), Out(err)
        same = os.path.sameopenfile(out, err)
        self._outs = {1: first, 2: first if same else second}
        self._sources: dict[int, Source] = {}

    @property
    def has_sources(self) -> bool:
        return bool(self._sources)

    def numbers(self) -> Iterable[int]:
        """The descriptors to read."""
        return self._sources

    def add(self, number: int, stream: int, label: bytes) -> None:
        """Prints what is read from the descriptor to the standard output (1) or the standard error (2)."""
        self._sources[number] = Source(number, label, self._outs[stream])

    def milliseconds(self) -> float | None:
        """How long to wait for more; None: for ever."""
        return _MOMENT * 1000 if any(one.can_flush for one in self._sources.values()) else None

    def read(self, ready: set[int]) -> None:
        """Reads what is there. The launcher comes last: it tells of what ranks have done before."""
        for source in sorted(self._sources.values(), key=lambda one: not one._label):
            if source.number in ready:
                self._read_once(source)

    def read_all(self) -> None:
        """Reads and prints all that is there now, also lines without an end."""
        for source in list(self._sources.values()):
            while self._read_once(source):
                pass
            source.flush()

    def flush_idle(self, now: float) -> None:
        for source in self._sources.values():
            source.flush_if_idle(now)

    def _read_once(self, source: Source) -> bool:
        """False if there is nothing to read any more."""
        try:
            data = os.read(source.number, _MOST)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            source.take(data)
            return True
        if self._sources.pop(source.number, None) is not None:
            source.end()
            with contextlib.suppress(OSError):
                os.close(source.number)
        return False
