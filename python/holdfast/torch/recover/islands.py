"""Islands: ranks that make steps again together, because they exchange what nobody keeps.

A replacement that makes steps again is answered with what others have kept (call_log.py). Not kept are
results of collective calls above 1 MiB, and those of which each rank gets another part, as in FSDP2. The ranks
that exchange these are an island:

  1. At the gate of the second update, all ranks tell which groups make such calls. Groups with a common
     rank are one island. What ranks of an island exchange is not kept any more. The launcher hears of it.
  2. If a rank is lost, the launcher ends the others of its island, and starts all of them again.
  3. They make their steps again together: calls in which only they take part are live, others are answered.

Stages in a row are joined to islands, too, if memory= has no room for the messages of all borders until
the next save: at the gate that ends the trial of costs (log_cost.py), schedule/log_plan.h says which.

The second buddy of each rank is in another island (buddies.py). An island has at most half of the ranks: where more
would start again, all do.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast import _native
from holdfast.errors import NotFoundError

_BANDWIDTH = 1.25e9  # bytes a second between two ranks, for want of a measurement: 10 Gbit/s

Island = list[int]  # ranks


def join_groups(groups: Iterable[Sequence[int]]) -> list[Island]:
    """The islands of these groups: groups that have a rank in common are one."""
    islands: list[set[int]] = []
    for group in groups:
        near = [one for one in islands if one & set(group)]
        islands = [one for one in islands if one not in near] + [set(group).union(*near)]
    return sorted(sorted(one) for one in islands if len(one) > 1)


def find_too_large(islands: Sequence[Island], world: int) -> str:
    """Why there are no such islands; "" if there are."""
    most = max((len(one) for one in islands), default=0)
    return f"{most} of {world} ranks would make steps again together; expected at most half" if 2 * most > world else ""


def island_of(islands: Sequence[Island], rank: int) -> Island:
    """The island of a rank."""
    return next((one for one in islands if rank in one), [rank])


def ranks_outside(islands: Sequence[Island], world: int) -> list[int]:
    """For each rank, one of another island, so that each rank is named once."""
    order = sorted(range(world), key=lambda rank: (island_of(islands, rank)[0], rank))
    far = max((len(one) for one in islands), default=1)
    after = {rank: order[(place + far) % world] for place, rank in enumerate(order)}
    return [after[rank] for rank in range(world)]


def plan_islands(told: Sequence[dict[str, Any]], steps: int) -> list[Island]:
    """The islands of stages in a row whose messages have no room for that many steps; [] if all have, or none would.

    By rank, `told` has the bytes that it keeps in a step ("bytes") and has room for ("room"), those of the borders
    ("borders"), the messages over one border ("messages"), and the seconds of a step ("own_seconds").
    """
    world = len(told)
    ends = [tuple(map(int, border.split(">"))) for one in told for border in one["borders"]]
    if all(one["bytes"] * steps <= one["room"] for one in told) or any(abs(a - b) != 1 for a, b in ends):
        return []
    right = [told[k]["borders"].get(f"{k}>{k + 1}", 0) for k in range(world - 1)]
    left = [told[k + 1]["borders"].get(f"{k + 1}>{k}", 0) for k in range(world - 1)]
    host = min(one["room"] - steps * (one["bytes"] - sum(one["borders"].values())) for one in told)
    try:
        logged = _native.plan_log([one["own_seconds"] for one in told], right, left, bandwidth=_BANDWIDTH, steps=steps,
                                  micro_batches=max(one["messages"] for one in told), host=host, group=world // 2)
    except NotFoundError:
        return []
    return join_groups([[k, k + 1] for k in range(world - 1) if not logged[k]])
