"""Requests for another configuration, on rank 0: a thread looks for them while training goes on."""

import contextlib
import secrets
import threading
from collections.abc import Callable
from typing import Any

from holdfast.errors import NotFoundError
from holdfast.resize.control import Control
from holdfast.resize.parallel import Parallel
from holdfast.torch.elastic.change import Change
from holdfast.torch.recover.link import Link

_LOOK = 0.2  # seconds between two looks


class Requests:
    """Asks the launcher for the workers of a request, and says when they are there."""

    def __init__(self, control: Control, link: Link, now: Parallel,
                 why_not: Callable[[Parallel], str]) -> None:
        self._control, self._link, self._now, self._why_not = control, link, now, why_not
        self._ready = ""  # the request whose workers are all there
        self._taken = ""  # the newest one for which ranks stop
        self._asked: set[str] = set()  # ids of requests that the launcher has not answered yet
        self._own: list[dict[str, Any]] = []  # requests of the program itself
        self._lock = threading.Lock()  # of `_ready`
        self._noted: tuple[list[int], int | None, int] | None = None  # workers, since which step, spares
        self._noting = threading.Lock()
        self._end = threading.Event()
        threading.Thread(target=self._look_often, name="holdfast-resize", daemon=True).start()

    def ask(self, to: str) -> None:
        """The program itself asks."""
        self._own.append({"id": secrets.token_hex(8), "to": to, "is_own": True})

    def take_ready(self) -> str:
        """The request for which all ranks may stop now; once. "" if there is none."""
        if not self._ready:
            return ""
        with self._lock:
            ready, self._ready = self._ready, ""
            self._taken = ready or self._taken
        return ready

    def note(self, workers: list[int], step: int | None) -> None:
        """Notes the configuration that the job has, for whoever asks; None if another process may have."""
        with self._noting:
            self._note(workers, step)

    def _note(self, workers: list[int], step: int | None) -> None:
        self._noted = workers, step, self._link.spares
        with contextlib.suppress(OSError, NotFoundError):
            self._control.note(str(self._now), *self._noted)

    def _note_spares(self) -> None:
        """Notes how many spares there are, if that has changed."""
        with self._noting:
            if self._noted is not None and self._noted[2] != self._link.spares and not self._end.is_set():
                self._note(*self._noted[:2])

    def close(self) -> None:
        """The job has another configuration, or ends."""
        with self._noting:
            self._end.set()

    def _look_often(self) -> None:
        while not self._end.wait(_LOOK) and not self._link.is_closed:
            self._note_spares()
            while self._link.wishes:
                self.ask(self._link.wishes.pop())
            own, self._own = self._own, []
            for one in [*own, *self._control.requests()]:
                self._take(one)
            for id in [*self._asked, self._ready, self._taken]:  # also those may still be given up
                self._hear(id)
            for id in self._control.withdrawn():
                self._withdraw(id)

    def _take(self, wanted: dict[str, Any]) -> None:
        """Asks the launcher, unless the request cannot be carried out."""
        id = wanted["id"]
        try:
            if not wanted.get("is_own") and wanted.get("epoch") != self._control.epoch():
                raise ValueError("the request is for a job that has ended")
            to = Parallel.parse(wanted.get("to") or str(self._now))
            avoided = {name: _numbers(name, wanted.get(name, [])) for name in ("avoid", "avoid_hosts")}
            if why := self._why_not(to):
                raise ValueError(why)
        except Exception as error:
            self._control.answer(id, "refused", why=str(error))
            return
        self._asked.add(id)
        self._control.answer(id, "asked", to=str(to))
        self._link.say("change", what="wanted", id=id, to=str(to), workers=to.workers, **avoided,
                       is_only_planned=bool(wanted.get("plan_only")))

    def _withdraw(self, id: str) -> None:
        """A request is taken back, unless all ranks stop for it already."""
        with self._lock:
            can = id == self._ready or id in self._asked
            self._ready = "" if id == self._ready else self._ready
        if can:
            self._asked.discard(id)
            self._link.say("change", what="withdrawn", id=id)
            self._control.answer(id, "refused", why="it was taken back")

    def _hear(self, id: str) -> None:
        answer = self._link.answers.pop(id, None)
        if answer is None:
            return
        self._asked.discard(id)
        if answer["kind"] == "can_change":
            self._ready = id
            self._control.answer(id, "waits", workers=answer["members"])
        else:
            with self._lock:
                self._ready = "" if id == self._ready else self._ready
            self._control.answer(id, "refused", why=answer["why"])


def _numbers(name: str, given: Any) -> list[int]:
    if not isinstance(given, list) or not all(type(one) is int for one in given):
        raise ValueError(f"{name}: {given}; expected a list of numbers")
    return given


def figures_of(change: Change, made: dict[str, Any], old: Parallel | None, took: float) -> dict[str, Any]:
    """How a change has ended: `state` is "made", "planned" or "refused"."""
    moved = change.moved
    figures = {"state": "refused" if change.why else "made", "why": change.why, "old": str(old or ""),
               "to": made["to"], "workers": made["members"], "step": change.step,
               "stood_still": took, "seconds": change.seconds,
               "moved": 0 if moved is None else moved.moved,
               "bound": 0 if moved is None else moved.bound,
               "seals": 0 if moved is None else moved.seals}
    if change.planned is not None:
        figures |= {"state": "planned", "to": change.wanted, **change.planned}
    return figures


def event_of(figures: dict[str, Any]) -> dict[str, Any]:
    """The fields of the event `resized`."""
    names = ("step", "old", "to", "stood_still", "moved", "bound", "seals")
    return {"workers": " ".join(map(str, figures["workers"])), **{name: figures[name] for name in names}}
