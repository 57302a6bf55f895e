"""The connection of a worker to its launcher, and what the launcher has said."""

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from holdfast import _native
from holdfast.errors import UnavailableError
from holdfast.launch.messages import Reader, send
from holdfast.launch.worker_identity import (
    FAILED,
    PAGE_BEAT,
    PAGE_LOOKED,
    PAGE_STEP,
    PAGE_WAITS_SINCE,
    WorkerIdentity,
)
from holdfast.torch.recover import without_launcher
from holdfast.torch.recover.run_events import RunEvents

_LOOK = 500  # milliseconds between two looks at the calls that this process waits in
_PATIENCE = 10.0  # seconds that a worker waits to hear why a collective call has failed
_ORPHANED = 10.0  # seconds that a worker of another host goes on without its own launcher

_log = logging.getLogger("holdfast")


class FewerWorkers(BaseException):
    """Ranks are lost for good, and those that are left go on with another configuration."""


class Link:
    """A thread listens to the launcher; the training thread asks what it has heard."""

    def __init__(self, identity: WorkerIdentity, on_lost: Callable[[list[int]], None],
                 waits_since: Callable[[], int]) -> None:
        """`waits_since` says since when this process waits in a collective call; 0 if it does not."""
        self.slot, self.home, self.incarnation = identity.slot, identity.home, identity.incarnation
        # A change of the configuration may change these.
        self.members, self.rank, self.world = identity.members, identity.rank, identity.world
        self.hosts = identity.hosts
        self.address_key = "address"  # in the store: under it the ranks of the generation say their addresses
        self.is_replacement = identity.is_replacement
        # Processes that share the steps which a replacement makes again (helping.py).
        self.helper, self.helpers, self.alone = identity.helper, identity.helpers, identity.alone
        self.folder = identity.folder  # in which a helper opens its job
        self.is_joiner = identity.rank < 0  # this process has no rank yet
        self.configuration, self.is_rebuilt = identity.configuration, identity.is_rebuilt
        self.generation = -1 if identity.rank < 0 or identity.is_replacement else identity.generation  # of this process
        self.born = identity.generation
        self.announced = identity.generation  # the newest one that the launcher has begun
        self._newest_loss = identity.generation  # the newest one that was begun because a rank was lost
        self._page = identity.page
        self._connection = identity.connection
        self._on_lost, self._waits_since = on_lost, waits_since
        self.leave: dict[str, Any] | None = None  # all ranks are to save and end: the code, and why
        self.inexact: list[str] = []  # what the launcher is told with the next commit
        self._late: Sequence[str] = ()  # and what was not exact at the start
        self.events = RunEvents()
        self._stepped = 0  # when note_step() or join() was called
        self._has_told_start = False
        self._has_to_tell_commit = True  # the launcher has not heard of one in this generation
        self._decided: dict[str, Any] | None = None
        self._reported = -1
        self.missing: list[int] = []  # the ranks without a process when a generation was announced
        self._patient_until = 0.0  # until then, it is no surprise to hear of no loss
        self._change: dict[str, Any] | None = None  # the newest change that the launcher has begun
        self._committed_change = -1  # the generation of the newest one that is the job now
        self.answers: dict[str, dict[str, Any]] = {}  # to requests of this rank, by their ids
        self.spares = 0  # workers that could get a place in the job, as rank 0 has heard
        self.wishes: list[str] = []  # configurations that the launcher would have rank 0 ask for
        self.on_change: Callable[[], None] = _nothing  # called when a change begins
        self._news = threading.Condition()
        self._closed_at: float | None = None  # when the launcher was seen to be gone
        self._has_stopped = False  # this process has got the signal that follows from that
        _native.start_heartbeat(identity.page, PAGE_BEAT)
        threading.Thread(target=self._listen, name="holdfast-link", daemon=True).start()

    @property
    def is_current(self) -> bool:
        """True as long as no rank was lost since this process became part of the job."""
        return self.announced == self.generation

    @property
    def is_closed(self) -> bool:
        """True if the launcher is gone."""
        return self._closed_at is not None

    @property
    def is_helper(self) -> bool:
        """True in a process that helps a replacement, and is no rank."""
        return self.helper > 0

    @property
    def is_unfilled(self) -> bool:
        """True in a replacement that does not have the state of the lost rank yet."""
        return (self.is_replacement or self.is_joiner) and self.generation < 0

    def take_place(self, change: dict[str, Any]) -> None:
        """A generation has those members; this process is one of its ranks, unless it has no place."""
        self.members = change["members"]
        if self.slot not in self.members:
            return
        self.hosts = [change["homes"][str(one)] for one in self.members]
        self.address_key = "address again" if change.get("is_placed") else "address"
        self.rank, self.world = self.members.index(self.slot), len(self.members)
        self.generation, self.configuration, self.is_rebuilt = change["generation"], change["to"], True
        self.missing, self._decided, self._has_to_tell_commit = [], None, True
        os.environ.update(RANK=str(self.rank), WORLD_SIZE=str(self.world))

    def await_change(self, after: int) -> dict[str, Any] | None:
        """Waits for a change of a generation behind that one. None if a rank was lost before it."""
        with self._news:
            while True:
                change = self._change
                if change is not None and change["generation"] > after:
                    return change
                if self.announced > after and not self.is_joiner:
                    return None
                if self.is_closed:
                    self.give_up(UnavailableError("the launcher was killed"))
                self._news.wait(1.0)

    @property
    def fewer(self) -> dict[str, Any] | None:
        """The change that the ranks that are left make because others are lost for good, if it has come."""
        change = self._change
        is_due = change is not None and change["after_loss"] and change["generation"] == self.announced
        return change if is_due else None

    def await_commit(self, generation: int) -> bool:
        """Waits until the change of that generation is the job. False if it has failed."""
        with self._news:
            while self._committed_change != generation:
                if self.announced != generation:
                    return False
                if self.is_closed:
                    self.give_up(UnavailableError("the launcher was killed during a change"))
                self._news.wait(1.0)
        return True

    def is_stale(self, generation: int) -> bool:
        """True if that generation will never be complete: another one has begun, or there was no
        launcher for so long that a rank that has not come will not come any more."""
        alone = 0.0 if self._closed_at is None else time.monotonic() - self._closed_at
        return self.announced != generation or alone > without_launcher.PATIENCE

    def note_step(self, step: int) -> None:
        """Tells the launcher which step this rank is in, for its messages."""
        self._page[PAGE_STEP] = step
        self._stepped = time.monotonic_ns()

    def note_start(self, step: int, *, in_memory: bool = False, inexact: Sequence[str] = ()) -> None:
        """Tells the launcher where the training of this process begins, once.

        `in_memory` says that its state was left in the memory of the hosts, `inexact` why its bits are not those
        of a training that was never stopped.
        """
        if not self._has_told_start:
            self._has_told_start = True
            self.note_step(step)
            self._late = inexact  # grows until the loader has begun
            self.say("resumed", step=step, in_memory=in_memory, inexact=list(inexact))

    def note_commit(self) -> None:
        """Called after each update: tells the launcher of the first one in each generation."""
        if self._has_to_tell_commit:
            self._has_to_tell_commit = False
            self.say("committed", generation=self.generation, inexact=[*self.inexact, *self._late])
            self.inexact, self._late = [], ()

    def join(self, generation: int, **told: Any) -> None:
        """This process is part of that generation now."""
        self.generation = generation
        self._has_to_tell_commit = True
        self._stepped = time.monotonic_ns()  # calls that wait in the groups before are given up
        self._page[PAGE_WAITS_SINCE] = 0
        self.say("joined", generation=generation, **told)
        self._stop_without_launcher()

    def say(self, kind: str, **message: Any) -> None:
        """Sends a message, unless the launcher is gone. That is noted only when all it has said was heard."""
        with contextlib.suppress(OSError):
            send(self._connection, say=kind, **message)

    def hears_of_loss(self, patience: float = _PATIENCE) -> bool:
        """Waits for the launcher to say that a rank was lost. False if it says nothing."""
        if self.is_current:
            self.say("cut_off", generation=self.generation)
        until = time.monotonic() + patience
        with self._news:
            while self.is_current and not self.is_closed:
                left = max(until, self._patient_until) - time.monotonic()
                if left <= 0:
                    return False
                self._news.wait(left)
        return True

    def agree(self, status: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What is decided about the newest generation; `status` says where this rank is."""
        with self._news:
            while True:
                generation = self._newest_loss
                if self._decided is not None and self._decided["generation"] == generation \
                        and not self.is_current:  # else that is done, and another rank is lost
                    return self._decided
                if self.is_closed:
                    break
                if self._reported != generation and not self.is_unfilled:
                    self._reported = generation
                    self.say("at", generation=generation, **status())
                self._news.wait(1.0)
        return self._agree_alone(generation, status)

    def _agree_alone(self, generation: int, status: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """As agree(), if the launcher was killed."""
        prefix = f"{self.incarnation}.{generation}"
        try:
            if self.is_unfilled:
                decided = without_launcher.read_decision(prefix)
            elif self.is_current:  # nobody starts a replacement
                raise UnavailableError("the launcher was killed, and a rank is lost")
            else:
                survivors = [one for rank, one in enumerate(self.members) if rank not in self.missing]
                floor = self._decided["target"] if self._decided is not None else 0
                decided = without_launcher.decide(prefix, self.slot, survivors, status(), floor)
        except Exception as error:
            self.give_up(error)
        self._decided = self._for_this({"generation": generation, **decided})
        return self._decided

    def _for_this(self, decision: dict[str, Any]) -> dict[str, Any]:
        """A decision, with what this process does about it."""
        return {**decision, "course": decision["courses"].get(str(self.slot), "fill")}

    def give_up(self, error: Exception) -> NoReturn:
        """Ends this process, because there is no launcher that could have another one take part."""
        name = f"rank {self.rank}" if self.rank >= 0 else f"worker {self.slot}"
        _log.error("%s ends without a save: %s; expected the job to be started again", name, error)
        raise SystemExit(FAILED)

    def hears_of_newer(self, generation: int, patience: float = _PATIENCE) -> bool:
        """Waits for the launcher to begin a newer generation than that one. False if it does not."""
        with self._news:
            return self._news.wait_for(lambda: self.announced > generation or self.is_closed,
                                       patience)

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
                try:
                    self._hear(message)
                except Exception:  # a rank that hears nothing any more would wait for ever
                    _log.exception("a message of the launcher: it was noted, and what follows has failed")
        self._close()
        if (decided := self._decided) is not None and decided["generation"] == self._newest_loss:
            without_launcher.pass_on(f"{self.incarnation}.{self._newest_loss}", decided)
        if self.home != 0:
            # The launcher of host 0 decides what becomes of this rank, if it hears of this.
            without_launcher.tell_orphaned(self.slot)
            time.sleep(_ORPHANED)
        self._stop_without_launcher()
        self._end_if_stuck()

    def _stop_without_launcher(self) -> None:
        """Has this process save and stop, as soon as it can save, if the launcher is gone."""
        with self._news:
            if not self.is_closed or self.is_unfilled or self._has_stopped:
                return
            self._has_stopped = True
        os.kill(os.getpid(), signal.SIGTERM)

    def _end_if_stuck(self) -> None:
        """Ends this process if its training thread does not notice that a rank is lost: the others, who have
        waited for it, have ended by then, and no launcher would end it."""
        time.sleep(2 * without_launcher.PATIENCE)
        is_decided = self._decided is not None and self._decided["generation"] == self._newest_loss
        if not (self.is_current or is_decided):
            with contextlib.suppress(SystemExit):
                self.give_up(UnavailableError("the launcher was killed, a rank is lost, and the training does not "
                                              "come to the end of its step"))
            os._exit(FAILED)

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
            if kind == "change":
                self._change, self.announced = message, message["generation"]
            elif kind == "change_committed":
                self._committed_change = message["generation"]
            elif kind in ("can_change", "cannot_change"):
                self.answers[message["id"]] = {"kind": kind, **message}
            elif kind == "spares":
                self.spares = message["count"]
            elif kind == "wish":
                self.wishes.append(message["to"])
            elif kind == "lost":
                self.announced = self._newest_loss = message["generation"]
                self.missing = message["ranks"]
            elif kind == "decided":
                self._decided = self._for_this(message)
            elif kind == "leave":
                self.leave = message
            elif kind == "wait":
                self._patient_until = time.monotonic() + _PATIENCE
            self._news.notify_all()
        if kind == "lost":
            self._on_lost(message["ranks"])
        elif kind == "change":
            self.on_change()

    def _close(self) -> None:
        with self._news:
            self._closed_at = self._closed_at or time.monotonic()
            self._news.notify_all()


def _nothing() -> None: ...
