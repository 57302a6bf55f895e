"""Processes that help the replacement of a lost rank to make steps again (torch/recover/helping.py).

They start as the replacement does, on its host, and are no ranks. One that ends with 0 has done its work. If one
dies before that, the replacement is ended, too, and begins anew without helpers.
"""

from typing import Any

from holdfast.launch.hosts import Host
from holdfast.launch.rank import Rank
from holdfast.launch.recoveries import say, words_of
from holdfast.launch.worker_identity import HELPERS

_MOST = 64  # of one rank


class Helpers:
    """The processes that help a replacement to make its steps again, as long as they run."""

    def __init__(self) -> None:
        self.why_alone = ""  # why the next replacement gets none
        self._running: list[tuple[Rank, Rank]] = []  # with the rank that each helps

    def told(self, rank: Rank, message: dict[str, Any]) -> None:
        """A rank says how many processes would share the steps of its replacement, or that it needs none."""
        if "many" in message:
            rank.helps = message["many"]
        else:
            self.end()

    def count_for(self, rank: Rank, *, is_single: bool) -> int:
        """How many processes share the steps of the replacement of a lost rank, this one included; 0 for it alone."""
        if rank.helps < 2 or self.why_alone:
            return 0
        if not is_single:
            self.why_alone = "several ranks were lost"
        return rank.helps if is_single else 0

    def add(self, helped: Rank, place: int, serial: int) -> Rank:
        """A helper of that rank, which has a process now."""
        number = HELPERS + helped.number * _MOST + place
        helper = Rank(number, helped.home, helped.host, serial, exit_code=None, is_whole=False)
        self._running.append((helper, helped))
        return helper

    def hear(self, host: Host, report: dict[str, Any], *, is_filling: bool) -> bool:
        """Hears what happened to a helper. False if the report is about a rank."""
        if report["rank"] < HELPERS:
            return False
        for helper, helped in list(self._running):
            if (helper.number, helper.serial) != (report["rank"], report["serial"]) or helper.host is not host:
                continue
            if report["say"] == "message" and report["message"]["say"] in ("failed", "restart"):
                helper.failed = report["message"]
            elif report["say"] == "ended":
                self._running.remove((helper, helped))
                if report["code"] != 0 and is_filling and not helped.is_whole:
                    self._lose(helper, helped, report)
        return True

    def _lose(self, helper: Rank, helped: Rank, report: dict[str, Any]) -> None:
        how = words_of(report["code"], report["why"] or helper.failed.get("why", ""))
        self.end()
        self.why_alone = "one of them has died"
        say(f"a helper of worker {helped.number} died: {how}; a replacement begins anew, without helpers")
        helped.kill("one of its helpers has died")

    def end(self) -> None:
        """They are not needed any more."""
        for helper, _ in self._running:
            helper.abandon("it is not needed any more")
        self._running = []

    def done(self) -> None:
        """A replacement has its state."""
        self.end()
        self.why_alone = ""
