"""What a recovery is made of, and how it is told: in a line, and as an event of the run."""

import sys
import time
from typing import Any

# In this order, and each lasts from the end of the one before:
#   seen     from the death until the survivors have heard of it
#   agreed   until all survivors have said where they are
#   started  until the last replacement has come to Checkpointer()
#   joined   until all ranks are connected to each other
#   filled   until all ranks have their state and their process groups
#   loaded   instead: until the replacement has its part of the newest checkpoint
#   replayed until it has made the steps behind it again alone, and all are connected
#   redone   until an update is committed
PHASES = ("seen", "agreed", "started", "joined", "filled", "loaded", "replayed", "redone")


_REPLAYED = ("updates", "messages")  # where a replacement has made steps again, or their updates
_MOST_NAMED = 4  # things that are not exact, in a line


def say(text: str) -> None:
    """A line for the user."""
    print(f"holdfast: {text}", file=sys.stderr, flush=True)


def words_of(code: int, why: str = "") -> str:
    """How a process has ended."""
    if why:
        return why if code < 0 else f"exit code {code} ({why})"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


class Recovery:
    """A recovery that is under way. With a reason, it is a restart of all ranks."""

    def __init__(self, generation: int, began: float, step: int, reason: str = "") -> None:
        self.generation, self.began, self.reason = generation, began, reason
        self.is_restart = bool(reason)
        self._moved_at = began  # when the newest phase was reached
        self.step = step  # the one in which ranks were lost, later the one that goes on
        self.is_filled = False  # all ranks go on
        self.outcome = "restart" if reason else "go on"
        self.steps_lost = 0
        self._rung = "disk" if reason else "replica"  # where the state came from
        self._bytes = self._replayed = self._log_bytes = self._helpers = 0
        self._sums = 0.0  # seconds that helpers took to add up what each had made
        self._inexact: list[str] = []
        self._reached: dict[str, float] = {}

    def reach(self, phase: str) -> None:
        """Notes the end of a phase; of several ranks the last one counts."""
        self._reached[phase] = self._moved_at = time.monotonic()

    def fill(self) -> None:
        """All ranks have their state, and go on."""
        self.is_filled = True
        self.reach("replayed" if self._rung in _REPLAYED else "filled")

    def note_filled(self, told: dict[str, Any]) -> None:
        """Notes what a replacement said of itself."""
        self._bytes += told.get("bytes", 0)
        self._replayed = max(self._replayed, told.get("replayed", 0))  # several replacements replay at once
        self._log_bytes += told.get("log_bytes", 0)
        self._helpers += told.get("helpers", 0)
        self._sums += told.get("sums", 0.0)
        self._rung, self.reason = told.get("rung", self._rung), told.get("reason", self.reason)
        self.step = told.get("step", self.step)
        self.note_inexact(told.get("inexact") or [])

    def go_on_as(self, configuration: str) -> None:
        """The ranks that are left go on without the lost ones, in another configuration."""
        self.is_filled, self.outcome = True, "fewer ranks"
        self.note_inexact([f"sums are rounded in another order, because the configuration is {configuration} now"])
        self.reach("filled")

    def note_inexact(self, lines: list[str]) -> None:
        """Notes why the bits may be others than those of an undisturbed run."""
        self._inexact += [one for one in lines if one not in self._inexact]

    def resumed_at(self, step: int, *, in_memory: bool) -> None:
        """Notes where a restarted rank goes on, and whether its state was left in memory."""
        self.steps_lost, self.step = max(0, self.step - step), step
        self._rung = "memory" if in_memory else "disk"

    def seconds(self) -> dict[str, float]:
        """How long each phase took. The sum is the time from the death to the last phase."""
        made, before = {}, self.began
        for phase in PHASES:
            if phase in self._reached:
                at = max(before, self._reached[phase])
                made[phase], before = at - before, at
        return made

    def idle(self) -> float:
        """Seconds since anything was heard of it."""
        return time.monotonic() - self._moved_at

    def text(self) -> str:
        """The line for the user."""
        seconds = self.seconds()
        phases = " ".join(f"{name} {took:.2f}" for name, took in seconds.items())
        how = "checkpoint" if self._rung == "disk" else self._rung
        exact = f"not exact: {_list(self._inexact)}" if self._inexact else "exact"
        lost = f"{self.steps_lost} step{'' if self.steps_lost == 1 else 's'} lost"
        lost += f", {self._replayed} replayed" if self._rung in _REPLAYED else ""
        lost += f" by {self._helpers} helpers" if self._helpers else ""
        return (f"step {self.step} goes on after {sum(seconds.values()):.1f} s: {how}, {exact}, "
                f"{lost} ({phases})")

    def event(self) -> dict[str, Any]:
        """The fields of the event `recovered`."""
        seconds = self.seconds()
        return {"generation": self.generation, "step": self.step, "outcome": self.outcome,
                "rung": self._rung, "reason": self.reason,
                "exact": not self._inexact, "steps_lost": self.steps_lost, "bytes": self._bytes,
                "steps_replayed": self._replayed, "log_bytes": self._log_bytes, "helpers": self._helpers, "sums": self._sums,
                **{phase: seconds.get(phase, 0.0) for phase in PHASES}}


def _list(lines: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = f", and {len(lines) - _MOST_NAMED} more" if len(lines) > _MOST_NAMED else ""
    return "; ".join(lines[:_MOST_NAMED]) + more
