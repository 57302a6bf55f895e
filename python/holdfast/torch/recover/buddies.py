"""The two buddies of a rank: the other ranks that keep its record, for the process that may replace it.

The gate sends the record to the first buddy, and waits until every rank has that of its peer. With
three and more ranks the record goes to a second buddy as well, over the same connections, and nobody
waits for it. So a rank and its first buddy may die together, or one while the other is replaced. If the ranks
form islands (islands.py), the second buddy is in another one.
"""

import contextlib
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast import _native
from holdfast.errors import Error
from holdfast.torch.recover.call_log import Key
from holdfast.torch.recover.islands import Island, ranks_outside

TAG = 0x4824  # of records for second buddies; the tags of other messages are in wire_tags.h
LATER = 0x4825  # of a HEAD alone: a record that was not sent, so that the one before it is not the newest
LONG = 4 << 20  # bytes; the transport keeps 16 MiB of a tag for a rank
HEAD = struct.Struct("<qqq?")  # generation, update, serial number, whether it is of the end of a step

_Record = tuple[tuple[int, int], bool, bytes]  # its generation and serial number, whether it is of an end, its bytes


@dataclass
class KeptRecord:
    """The record of another rank."""

    peer: int  # that rank
    record: bytes
    is_at_end: bool  # it was made at the end of a step
    is_first: bool  # this rank is the first buddy of the other one


def second_buddies(hosts: Sequence[int], rank: int, first: int) -> list[int]:
    """The second buddy of each rank; `first` is the first buddy of `rank`.

    Like the first buddies, they are all as far away on a circle on which ranks of a host are side by
    side. Of some distances, that is taken with which most ranks have buddies on other hosts than
    their own, and than each other's.
    """
    size = len(hosts)
    circle = sorted(range(size), key=lambda one: hosts[one])
    near = (circle.index(first) - circle.index(rank)) % size

    def count_same_hosts(far: int) -> int:
        on = [hosts[one] for one in circle]
        return sum(2 * (on[k] == on[(k + far) % size]) + (on[(k + near) % size] == on[(k + far) % size])
                   for k in range(size))

    fars = [far % size for far in (2 * near, near + 1, near - 1, 1, -1)]
    far = min((far for far in fars if far not in (0, near)), key=count_same_hosts)
    after = {one: circle[(k + far) % size] for k, one in enumerate(circle)}
    return [after[one] for one in range(size)]


class BuddyGate:
    """A gate whose records go to two buddies. May be used as _native.Gate, and from the same threads."""

    def __init__(self, transport: _native.TcpTransport, hosts: Sequence[int]) -> None:
        self._transport, self._gate = transport, _native.Gate(transport, hosts)
        self.interrupt, self.forward = self._gate.interrupt, self._gate.forward
        self._second: int | None = None  # None in a job of two ranks
        if transport.size > 2:
            second = second_buddies(hosts, transport.rank, self._gate.buddy)
            self._second, self._peer = second[transport.rank], second.index(transport.rank)
        self._islands: list[Island] = []
        self._sent = 0  # records, to the second buddy
        self._awaited: int | None = None  # the update whose record the peer has sent, or sends now
        # Records of the peer by update.
        self._kept: dict[int, _Record] = {}
        # The newest records that peers have made and not sent, by peer: update, generation and serial number.
        self._later: dict[int, tuple[int, tuple[int, int]]] = {}
        self._lock = threading.Lock()

    @property
    def rank(self) -> int:
        """This rank."""
        return self._transport.rank

    @property
    def peer(self) -> int:
        """The rank whose first buddy this one is."""
        return self._gate.peer

    @property
    def committed(self) -> int:
        """The newest update that this rank is committed to."""
        return self._gate.committed

    @property
    def ready(self) -> int:
        """The newest update that this rank was ready for."""
        return self._gate.ready

    def begin(self, generation: int, update: int, record: bytes) -> None:
        """Begins a generation, on all ranks together."""
        with self._lock:
            self._kept = {one: kept for one, kept in self._kept.items() if one == update}
        self._send(generation, update, record, is_at_end=True)
        self._awaited = update
        self._gate.begin(generation, update, record)

    def pass_gate(self, update: int, record: bytes) -> None:
        """Returns when this rank is committed to the update."""
        self._take_last()
        self._send(self._gate.generation, update, record, is_at_end=False)
        self._awaited = update
        self._gate.pass_gate(update, record)

    def pass_on(self, log: _native.CallLog, key: Key, text: str, parts: list[tuple[int, int]]) -> str:
        """Gives the first buddy a record to keep in its log, and keeps that of the peer. Returns its text."""
        return log.pass_on(self._transport, self._gate.buddy, self._gate.peer, key, text, parts)

    def refresh(self, update: int, record: bytes) -> None:
        """Sends the record again after the update. Does not wait.

        A long one does not go to the second buddy, who receives nothing before its next gate: the record of
        that gate would have to wait for a rank that waits in the gate itself. It hears that there is a newer one.
        """
        try:
            self._gate.refresh(update, record)
        finally:
            if self._second is not None:
                self._sent += 1
                head = HEAD.pack(self._gate.generation, update, self._sent, True)
                self._send_again(self._second, head, None if len(record) > LONG else record)

    def hear_last_words(self, seconds: float) -> None:
        """Takes in what lost ranks have sent. Called before the transport is closed."""
        until = time.monotonic() + seconds
        self._gate.record_of_peer(self.committed, seconds)
        self._take_all(max(0.0, until - time.monotonic()))

    def records(self) -> list[KeptRecord]:
        """The records that this rank keeps of the update that it is committed to."""
        update, made = self.committed, []
        if (kept := self._gate.record_of_peer(update)) is not None:
            made.append(KeptRecord(self._gate.peer, *kept, is_first=True))
        self._take_all(0.0)
        with self._lock:
            if (second := self._kept.get(update)) is not None:
                made.append(self._told(self._peer, update, second, is_first=False))
        return made

    def keep_apart(self, islands: list[Island]) -> None:
        """From now on, second buddies are in other islands. All ranks call it behind the same gate."""
        if self._second is None or islands == self._islands:
            return
        self._islands = islands
        second = ranks_outside(islands, self._transport.size)
        self._second, self._peer = second[self.rank], second.index(self.rank)
        with self._lock:
            self._kept, self._awaited = {}, None  # the new peer sends its next record here

    def _send(self, generation: int, update: int, record: bytes, *, is_at_end: bool) -> None:
        if self._second is not None:
            self._sent += 1
            head = HEAD.pack(generation, update, self._sent, is_at_end)
            self._transport.send(self._second, TAG, head + record)

    def _send_again(self, buddy: int, head: bytes, record: bytes | None) -> None:
        """Sends a record without waiting. If that cannot be, the buddy hears that it does not have the newest."""
        if record is not None:
            with contextlib.suppress(TimeoutError):
                self._transport.send(buddy, TAG, head + record, 0.0)
                return
        self._transport.send(buddy, LATER, head, 0.0)

    def _hear_later(self, peer: int) -> None:
        """Takes in which records that peer has not sent."""
        with contextlib.suppress(Error, TimeoutError):  # nothing more has come
            while True:
                generation, update, serial, _ = HEAD.unpack_from(self._transport.recv(peer, LATER, 0.0))
                with self._lock:
                    known = self._later.get(peer, (0, (-1, 0)))
                    self._later[peer] = max(known, (update, (generation, serial)), key=lambda one: one[1])

    def _told(self, peer: int, update: int, kept: _Record, *, is_first: bool) -> KeptRecord:
        """The record of a peer. One that is not its newest counts as one of the gate."""
        age, is_at_end, record = kept
        made, newest = self._later.get(peer, (0, (-1, 0)))
        return KeptRecord(peer, record, is_at_end and not (made == update and newest > age), is_first)

    def _take_last(self) -> None:
        """Takes in the record that the peer has sent for its last gate, which is here already as a rule.

        Otherwise records would pile up in the transport.
        """
        if self._second is not None:
            self._hear_later(self._peer)
        while self._second is not None and self._awaited is not None:
            if self._take(self._transport.recv(self._peer, TAG)) == self._awaited:
                break

    def _take_all(self, seconds: float) -> None:
        """Takes in what has come, and what comes until the peer is known to be gone."""
        until = time.monotonic() + seconds
        try:
            while self._second is not None:
                self._take(self._transport.recv(self._peer, TAG, max(0.0, until - time.monotonic())))
        except (Error, TimeoutError):
            self._hear_later(self._peer)

    def _take(self, message: bytes) -> int:
        """Keeps a record. Returns its update."""
        generation, update, serial, is_at_end = HEAD.unpack_from(message)
        with self._lock:
            # Two threads may take records out of the transport, and come here in the other order.
            if update not in self._kept or self._kept[update][0] < (generation, serial):
                self._kept[update] = (generation, serial), is_at_end, message[HEAD.size:]
            for old in [one for one in self._kept if one < update - 1]:
                del self._kept[old]
        return update
