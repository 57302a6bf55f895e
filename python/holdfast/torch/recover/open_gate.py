"""A gate at which no rank waits for another one: what SWIFT has in place of a gate (undo.py).

A rank sends its record to its buddies, and makes the update. Runs without an update are different: they may
exchange nothing, so all ranks wait for each other there. So no two ranks are more than one update apart if
the gradients of each update are those of all ranks.
"""

import contextlib
import time
from collections.abc import Sequence

from holdfast import _native
from holdfast.errors import Error
from holdfast.torch.recover.buddies import HEAD, LONG, TAG, BuddyGate, KeptRecord
from holdfast.torch.recover.peers import tell

_SLICE_S = 0.01  # how long a rank waits for room before it receives what has come
_Kept = dict[int, tuple[tuple[int, int], bool, bytes]]  # by update: as BuddyGate keeps the records of a peer


class OpenGate(BuddyGate):
    """Used as BuddyGate."""

    def __init__(self, transport: _native.TcpTransport, hosts: Sequence[int]) -> None:
        super().__init__(transport, hosts)
        self._buddies, self._peers = [self._gate.buddy], [self._gate.peer]
        if self._second is not None:
            self._buddies.append(self._second)
            self._peers.append(self._peer)
        self._at, self._generation = 0, 0
        self._awaited: int | None = None  # the update whose record every peer has sent, or sends now
        self.waits = False  # what comes now is no update
        self._records: dict[int, _Kept] = {peer: {} for peer in self._peers}

    @property
    def committed(self) -> int:
        """The newest update that this rank has made."""
        return self._at

    @property
    def ready(self) -> int:
        """The same: a rank that is ready makes the update."""
        return self._at

    def begin(self, generation: int, update: int, record: bytes) -> None:
        """Begins a generation, on all ranks together."""
        self._generation = generation
        self.go_back(update)
        for kept in self._records.values():
            for other in [one for one in kept if one != update]:
                del kept[other]
        self._send_all(update, record, is_at_end=True)
        self._awaited = update
        self._gate.begin(generation, update, record)

    def pass_gate(self, update: int, record: bytes) -> None:
        """Sends the record of the update. Before that, if `waits`, it waits until all ranks are here."""
        if self.waits:
            tell(self._transport, {}, patience=None)
        self._take_last()
        self._send_all(update, record, is_at_end=False)
        self._at = self._awaited = update

    def go_back(self, update: int) -> None:
        """This rank has the state after that update again."""
        self._at = update

    def refresh(self, update: int, record: bytes) -> None:
        """Sends the record again after the update, unless it is a long one (BuddyGate.refresh). Does not wait."""
        self._sent += 1
        head = HEAD.pack(self._generation, update, self._sent, True)
        for buddy in self._buddies:
            self._send_again(buddy, head, None if len(record) > LONG else record)

    def hear_last_words(self, seconds: float) -> None:
        """Takes in what lost ranks have sent. Called before the transport is closed."""
        self._take_all(seconds)

    def records(self) -> list[KeptRecord]:
        """The records that this rank keeps of the update that it has made."""
        self._take_all(0.0)
        with self._lock:
            return [self._told(peer, self._at, kept[self._at], is_first=peer == self._peers[0])
                    for peer, kept in self._records.items() if self._at in kept]

    def newest(self) -> list[list[int]]:
        """The peers, each with the newest update of which this rank has a record."""
        self._take_all(0.0)
        with self._lock:
            return [[peer, max(kept)] for peer, kept in self._records.items() if kept]

    def _send_all(self, update: int, record: bytes, *, is_at_end: bool) -> None:
        self._sent += 1
        head = HEAD.pack(self._generation, update, self._sent, is_at_end)
        for buddy in self._buddies:
            self._send_surely(buddy, head + record)

    def _send_surely(self, buddy: int, message: bytes) -> None:
        """Sends a record, and receives what comes until there is room for it.

        Two long records are more than the transport keeps for a rank, and the other ranks may wait here, too.
        """
        seconds = 0.0
        while True:
            try:
                return self._transport.send(buddy, TAG, message, seconds)
            except TimeoutError:
                seconds = _SLICE_S
                self._take_all(0.0)

    def _take_last(self) -> None:
        """Takes in what the peers have sent for their last gate, so that they find room at this one.

        It is here or on its way: this update has their gradients, which they made behind that gate.
        """
        for peer in self._peers:
            with contextlib.suppress(Error):  # the peer is gone
                while self._awaited is not None and self._awaited not in self._records[peer]:
                    self._keep(peer, self._transport.recv(peer, TAG))
        self._take_all(0.0)

    def _take_all(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        for peer in self._peers:
            with contextlib.suppress(Error, TimeoutError):  # nothing comes any more
                while True:
                    self._keep(peer, self._transport.recv(peer, TAG, max(0.0, until - time.monotonic())))
            self._hear_later(peer)

    def _keep(self, peer: int, message: bytes) -> None:
        generation, update, serial, is_at_end = HEAD.unpack_from(message)
        with self._lock:
            kept = self._records[peer]
            # Two threads may take records out of the transport, and come here in the other order.
            if update not in kept or kept[update][0] < (generation, serial):
                kept[update] = (generation, serial), is_at_end, message[HEAD.size:]
            for old in [one for one in kept if one < update - 1]:
                del kept[old]
