"""The connection of a worker to its launcher, and what the launcher has said."""

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from holdfast import _native
from holdfast.launch.messages import Reader, send
from holdfast.launch.place import (
    PAGE_BEAT,
    PAGE_LOOKED,
    PAGE_STEP,
    PAGE_WAITS_SINCE,
    STOPPED,
    Place,
)
from holdfast.torch.recover.run_events import RunEvents

_LOOK = 500  # milliseconds between two looks at the calls that this process waits in
_PATIENCE = 10.0  # seconds that a worker waits to hear why a collective call has failed


class Link:
    """A thread listens to the launcher; the training thread asks what it has heard."""

    def __init__(self, place: Place, on_lost: Callable[[list[int]], None],
                 waits_since: Callable[[], int]) -> None:
        """`waits_since` says since when this process waits in a collective call; 0 if it does not."""
        self.rank, self.world, self.incarnation = place.rank, place.world, place.incarnation
        self.hosts = place.hosts
        self.is_replacement = place.is_replacement
        self.generation = -1 if place.is_replacement else place.generation  # that it is part of
        self.born = place.generation
        self.announced = place.generation  # the newest one that the launcher has begun
        self._page = place.page
        self._connection = place.connection
        self._on_lost, self._waits_since = on_lost, waits_since
        self.leave: dict[str, Any] | None = None  # all ranks are to save and end: the code, and why
        self.events = RunEvents()
        self._stepped = 0  # when note_step() or join() was called
        self._has_told_start = False
        self._has_to_tell_commit = True  # the launcher has not heard of one in this generation
        self._decided: dict[str, Any] | None = None
        self._reported = -1
        self._news = threading.Condition()
        self.is_closed = False
        _native.start_heartbeat(place.page, PAGE_BEAT)
        threading.Thread(target=self._listen, name="holdfast-link", daemon=True).start()

    @property
    def is_current(self) -> bool:
        """True as long as no rank was lost since this process became part of the job."""
        return self.announced == self.generation

    def note_step(self, step: int) -> None:
        """Tells the launcher which step this rank is in, for its messages."""
        self._page[PAGE_STEP] = step
        self._stepped = time.monotonic_ns()

    def note_start(self, step: int, *, in_memory: bool = False) -> None:
        """Tells the launcher where the training of this process begins, once.

        `in_memory` says that its state was left in the memory of the hosts.
        """
        if not self._has_told_start:
            self._has_told_start = True
            self.note_step(step)
            self.say("resumed", step=step, in_memory=in_memory)

    def note_commit(self) -> None:
        """Called after each update: tells the launcher of the first one in each generation."""
        if self._has_to_tell_commit:
            self._has_to_tell_commit = False
            self.say("committed", generation=self.generation)

    def join(self, generation: int, **told: Any) -> None:
        """This process is part of that generation now."""
        self.generation = generation
        self._has_to_tell_commit = True
        self._stepped = time.monotonic_ns()  # calls that wait in the groups before are given up
        self._page[PAGE_WAITS_SINCE] = 0
        self.say("joined", generation=generation, **told)

    def say(self, kind: str, **message: Any) -> None:
        """Sends a message. If the launcher is gone, this process will end soon."""
        try:
            send(self._connection, say=kind, **message)
        except OSError:
            self._close()

    def hears_of_loss(self, patience: float = _PATIENCE) -> bool:
        """Waits for the launcher to say that a rank was lost. False if it says nothing."""
        if self.is_current:
            self.say("cut_off", generation=self.generation)
        with self._news:
            return self._news.wait_for(lambda: not self.is_current or self.is_closed, patience)

    def agree(self, status: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What is decided about the newest generation; `status` says where this rank is."""
        with self._news:
            while True:
                generation = self.announced
                if self._decided is not None and self._decided["generation"] == generation:
                    return self._decided
                if self._reported != generation and not (self.is_replacement
                                                         and self.generation < 0):
                    self._reported = generation
                    self.say("at", generation=generation, **status())
                self._wait()

    def hears_of_newer(self, generation: int, patience: float = _PATIENCE) -> bool:
        """Waits for the launcher to begin a newer generation than that one. False if it does not."""
        with self._news:
            return self._news.wait_for(lambda: self.announced > generation or self.is_closed,
                                       patience)

    def _wait(self) -> None:
        if self.is_closed:
            raise SystemExit(STOPPED)
        self._news.wait(1.0)

    def _listen(self) -> None:
        reader, poll = Reader(self._connection), select.poll()
        poll.register(self._connection, select.POLLIN)
        while True:
            self._look()
            if not poll.poll(_LOOK):
                continue
            if (messages := reader.read()) is None:
                break
            for message in messages:
                self._hear(message)
        self._close()
        os.kill(os.getpid(), signal.SIGTERM)  # the launcher is gone: save and stop

    def _look(self) -> None:
        """Tells the launcher whether this process waits in a collective call."""
        since = self._waits_since()
        # A call that is never waited for does not count: steps are made meanwhile.
        self._page[PAGE_WAITS_SINCE] = max(since, self._stepped) if since else 0
        self._page[PAGE_LOOKED] = time.monotonic_ns()

    def _hear(self, message: dict[str, Any]) -> None:
        kind = message.pop("say")
        if kind == "event":
            return self.events.put(**message)
        with self._news:
            if kind == "lost":
                self.announced = message["generation"]
            elif kind == "decided":
                self._decided = message
            elif kind == "leave":
                self.leave = message
            self._news.notify_all()
        if kind == "lost":
            self._on_lost(message["ranks"])

    def _close(self) -> None:
        with self._news:
            self.is_closed = True
            self._news.notify_all()
