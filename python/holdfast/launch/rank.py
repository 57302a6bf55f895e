"""One rank of a job, as the launcher that decides sees it."""

from dataclasses import dataclass, field
from typing import Any

from holdfast.launch.hosts import Host


@dataclass(eq=False)
class Rank:
    """One rank, and the process that it has now."""

    number: int
    home: int  # the number of the host that it belongs to
    host: Host | None = None  # where its process runs
    serial: int = 0  # of its process
    pid: int = 0
    is_whole: bool = True  # it has its state: it began with the job, or was filled
    is_running: bool = False  # it has committed an update
    is_open: bool = False  # it can write events
    is_closed: bool = False  # its Checkpointer was closed: its training is over
    is_cut_off: bool = False  # it has lost its connection to another rank in this generation
    plain: str = ""  # why no rank can be replaced, if it has said so
    has_joined: bool = True
    status: dict[str, Any] | None = None  # what it has said of its update, in the generation that is being made
    failed: dict[str, Any] = field(default_factory=dict)  # the exception that ends it
    exit_code: int | None = -1  # None as long as its process lives
    left_at: tuple[int, float] | None = None  # the step and the time, if it ended with 0 or STOPPED
    is_waiting: bool = False  # it is no rank of the job, and can become one at once
    helps: int = 0  # how many processes would share the steps that its replacement makes again

    @property
    def has_left_early(self) -> bool:
        """True if its process has ended as if all was well, but not because its training was over."""
        return self.left_at is not None and not self.is_closed

    @property
    def step(self) -> int:
        return self.host.steps.get(self.number, -1) if self.host else -1

    @property
    def waits(self) -> float | None:
        """How long it has waited in a collective call; None if it is in none."""
        serial, waits = self.host.waits.get(self.number, (0, None)) if self.host else (0, None)
        # The newest report of another host may be about the process that this one has replaced.
        return waits if serial == self.serial else None

    def forget_wait(self) -> None:
        """The call that it has waited in was ended, because another rank was lost."""
        if self.host is not None:
            self.host.waits.pop(self.number, None)

    def tell(self, **message: Any) -> None:
        """Sends a message to its process."""
        if self.host is not None:
            self.host.do({"do": "tell", "rank": self.number, "serial": self.serial,
                          "message": message})

    def abandon(self, why: str) -> None:
        """Ends its process, and nothing is heard of that."""
        self.kill(why)
        self.exit_code, self.serial = -1, 0

    def kill(self, why: str) -> None:
        """Ends its process, which is then lost."""
        if self.host is not None:
            self.host.do({"do": "kill", "rank": self.number, "serial": self.serial, "why": why})
