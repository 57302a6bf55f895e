"""How a replacement and the processes that help it begin to make steps again together (helping.py)."""

from collections.abc import Callable
from typing import Any, NoReturn

from holdfast import _native
from holdfast.launch.worker_identity import FAILED
from holdfast.torch.recover.group import Groups
from holdfast.torch.recover.helping import Shares, Team, end_helper, read_draws
from holdfast.torch.recover.link import Link
from holdfast.torch.recover.messages import Messages
from holdfast.torch.recover.micro_batches import watch
from holdfast.torch.recover.worker_side import wait_for_end
from holdfast.torch.state.training_state import TrainingState


class Sharing:
    """The part of one process."""

    def __init__(self, link: Link, groups: Groups, messages: Messages, state: TrainingState,
                 restart: Callable[[Exception], NoReturn]) -> None:
        self._link, self._groups, self._messages, self._state = link, groups, messages, state
        self._restart = restart

    def lead(self, told: dict[str, Any]) -> tuple[Shares | None, str]:
        """Gives the helpers of this replacement what they need, or returns why it has none.

        `told` has the "runs" that are made again, "after" an update.
        """
        link, after, runs = self._link, told["after"], told["runs"]
        through = runs[-1][0] if runs else after
        alone = self._messages.shared.why_alone(link.rank, after, through) or link.alone
        if alone or link.helpers < 2 or not runs:
            if link.helpers:
                link.say("helps")
            return None, alone
        team = Team(link)
        team.tell({**told, "messages": self._messages.share()})
        for other in team.others():
            self._groups.log.native.send_to(team.transport, self.wanted(after, through), receiver=other)
        return self._begin(team, after, through), ""

    def follow(self) -> tuple[dict[str, Any], Shares]:
        """Gets what this process needs to help a replacement, as that has told it."""
        team = Team(self._link)
        told = team.tell({})[0]
        told["runs"] = [tuple(one) for one in told["runs"]]
        after, through = told["after"], told["runs"][-1][0]
        self._groups.log.native.receive_from(team.transport, 0, self.wanted(after, through))
        self._messages.help(told["messages"])
        return told, self._begin(team, after, through)

    def wanted(self, after: int, through: int) -> _native.WantedCalls:
        """What others have kept for this rank."""
        return _native.WantedCalls(self._link.rank, [name for name, _ in self._groups.describe()], after, through)

    def _begin(self, team: Team, after: int, through: int) -> Shares:
        passes = read_draws(self._groups.log.native, self._link.rank, range(after + 1, through + 1))
        shares = Shares(team, self._state, passes, self.fail)
        watch(shares)
        return shares

    def fail(self, error: Exception) -> NoReturn:
        """This process and others cannot make steps again together."""
        if self._link.is_helper:
            self._link.say("failed", why=f"{type(error).__name__}: {error}")
            end_helper(FAILED)
        if self._link.hears_of_newer(self._link.born):  # a helper has died, and another process takes this one's place
            wait_for_end()
        self._restart(error)
