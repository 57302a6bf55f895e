"""The changes of layout in docs/studies/elastic.md that are planned and not run, and their tables.

Each is planned at its full size by `holdfast plan --speeds`, which gives the bytes on each link and
the time by a model of the links (holdfast/plan/cost.h). Published times stand beside them where
there are any.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from program import Program, table


@dataclass(frozen=True)
class Machines:
    """Hosts as their makers describe them. Speeds are 10^9 bytes a second in one direction."""

    title: str
    devices: int  # of a host
    device: float  # from a device to others of its host
    adapter: float  # from a device to other hosts
    host: float  # from a host to others
    copy: float  # inside a device: half of its memory's bandwidth, as a copy reads and writes
    source: str

    @property
    def speeds(self) -> str:
        return (f"device={self.device:g},adapter={self.adapter:g},host={self.host:g},"
                f"copy={self.copy:g},latency={LATENCY:g},move={MOVE:g}")


# Microseconds until a move begins, and that each move takes at a device: assumed, not published.
LATENCY, MOVE = 10, 5

ON_PREMISE = Machines("4 x RTX A6000", 4, 31.5, 31.5, 12.5, 384,
                      "Tenplex's own cluster: PCIe 4.0 x16, 100 Gb/s InfiniBand (not checked against "
                      "the paper), 768 GB/s of memory")  # fmt: skip
CLOUD = Machines("4 x V100", 4, 15.75, 15.75, 3, 450,
                 "Azure NC24s_v3, on which Fig. 15 was measured: PCIe 3.0 x16, 24 Gb/s, 900 GB/s of "
                 "memory")  # fmt: skip
DGX = Machines("8 x H100", 8, 450, 50, 400, 1675,
               "DGX H100: NVLink 900 GB/s in both directions together, 8 adapters of 400 Gb/s, "
               "3.35 TB/s of memory")  # fmt: skip
MACHINES = (ON_PREMISE, CLOUD, DGX)


@dataclass(frozen=True)
class Change:
    kind: str  # which degree grows
    model: str
    source: str
    target: str
    hosts: int
    machines: Machines
    published: tuple[str, ...] = ()

    def plan(self, program: Program, place: bool) -> dict[str, Any]:
        options = {"place": []} if place else {}
        return program.plan(model=self.model, **{"from": self.source}, to=self.target,
                            hosts=f"{self.hosts}x{self.machines.devices}",
                            speeds=self.machines.speeds, **options)  # fmt: skip


def degrees(tp: int, pp: int, dp: int, more: str = "") -> str:
    return f"tp={tp},pp={pp},dp={dp}{more}"


# Fig. 14 of Tenplex: 8 to 16 GPUs, from tp=4,pp=2,dp=1. Seconds of Tenplex and of Tenplex-Central,
# from the constants of its plotting script.
FIG_14_TIMES = {
    "DP": ((4, 2, 2), (8.5, 11.5, 24.2), (27.2, 39, 96.1)),
    "TP": ((8, 2, 1), (7.4, 10.5, 20.2), (20.4, 28.5, 74)),
    "PP": ((4, 4, 1), (4.6, 5.9, 10.8), (4.6, 18.2, 38)),
}
FIG_14_MODELS = ("tenplex-1.3b", "tenplex-2.7b", "tenplex-6.7b")
FIG_14 = tuple(
    Change(kind, model, degrees(4, 2, 1), degrees(*target), 4, ON_PREMISE, (f"{own:g}", f"{central:g}"))
    for kind, (target, owns, centrals) in FIG_14_TIMES.items()
    for model, own, central in zip(FIG_14_MODELS, owns, centrals, strict=True)
)

# Fig. 15: GPT large from 4 to 8, from 8 to 16 and from 16 to 32 GPUs, by its configuration files.
# Its times are only in logs that were not published.
FIG_15 = tuple(
    Change(kind, "tenplex-large", degrees(*source), degrees(*target), hosts, CLOUD)
    for kind, source, target, hosts in (
        ("DP", (4, 1, 1), (4, 1, 2), 2), ("DP", (4, 1, 2), (4, 1, 4), 4),
        ("DP", (4, 1, 4), (4, 1, 8), 8),
        ("PP", (4, 1, 1), (4, 2, 1), 2), ("PP", (4, 2, 1), (4, 4, 1), 4),
        ("PP", (4, 4, 1), (4, 8, 1), 8),
        ("TP", (4, 1, 1), (8, 1, 1), 2), ("TP", (2, 4, 1), (4, 4, 1), 4),
        ("TP", (2, 4, 2), (4, 4, 2), 8),
    )
)  # fmt: skip

# The distributed optimizer, as jobs of this size use it.
ZERO = ",zero=1"


def stages(pp: int) -> str:
    """The layers of the 405B model: its first and last stage have one layer less than the others."""
    each = 128 // pp
    return ",layers=" + "/".join([str(each - 1), *[str(each)] * (pp - 2), str(each - 1)])


LLAMA_70B = tuple(
    Change(kind, "llama-3-70b", degrees(*source, ZERO), degrees(*target, ZERO), hosts, DGX)
    for kind, source, target, hosts in (
        ("DP", (8, 4, 2), (8, 4, 4), 16), ("DP", (8, 4, 8), (8, 4, 16), 64),
        ("DP", (8, 4, 32), (8, 4, 64), 256),
        ("TP", (4, 4, 64), (8, 4, 64), 256), ("PP", (8, 4, 32), (8, 8, 32), 256),
        ("less DP", (8, 4, 64), (8, 4, 32), 256),
    )
)  # fmt: skip
LLAMA_405B = tuple(
    Change(kind, "llama-3-405b", degrees(*source, ZERO + stages(source[1])),
           degrees(*target, ZERO + stages(target[1])), hosts, DGX)
    for kind, source, target, hosts in (
        ("DP", (8, 16, 4), (8, 16, 8), 128), ("DP", (8, 16, 8), (8, 16, 16), 256),
        ("TP", (4, 16, 16), (8, 16, 16), 256), ("PP", (8, 16, 8), (8, 32, 8), 256),
        ("less DP", (8, 16, 16), (8, 16, 8), 256),
    )
)  # fmt: skip


def ranks(configuration: str) -> int:
    """The devices of a configuration."""
    values = dict(pair.split("=") for pair in configuration.split(","))
    return int(values["tp"]) * int(values["pp"]) * int(values["dp"])


def short(configuration: str) -> str:
    """Without what all configurations of a table have."""
    return ",".join(configuration.split(",")[:3])


def gigabytes(count: int) -> str:
    value = count / 1e9
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def seconds(value: float) -> str:
    return f"{value:.2f}" if value >= 0.095 else f"{value:.3f}"


def met_bounds(*plans: dict[str, Any]) -> bool:
    return all(plan["figures"][name] == plan["figures"][name + "_bound"]
               for plan in plans for name in ("moved", "crossing"))  # fmt: skip


def row(program: Program, change: Change) -> list[str]:
    """Fails if a plan moves more than it must."""
    ordered, placed = (change.plan(program, place) for place in (False, True))
    if not met_bounds(ordered, placed):
        raise SystemExit(f"elastic: {change.model} {change.source} -> {change.target}: a plan moves "
                         "more than its lower bound")  # fmt: skip
    cells = [change.kind, change.model, f"{short(change.source)} → {short(change.target)}",
             f"{ranks(change.source)} → {ranks(change.target)}",
             gigabytes(ordered["figures"]["needed"])]  # fmt: skip
    for plan in (ordered, placed):
        cells += [gigabytes(plan["figures"]["moved"]), gigabytes(plan["figures"]["crossing"]),
                  seconds(plan["cost"]["seconds"])]  # fmt: skip
    cells += [placed["cost"]["busiest"], *change.published]
    if change.published:
        cells.append(f"{float(change.published[0]) / placed['cost']['seconds']:.1f}")
    return cells


HEAD = ["", "model", "tp,pp,dp", "devices", "needed, GB", "moved, GB", "between hosts", "s",
        "placed: moved, GB", "between hosts", "s", "busiest link"]  # fmt: skip
PUBLISHED = ["Tenplex, s", "Central, s", "Tenplex / placed"]


def changes_table(program: Program, changes: Iterable[Change], published: bool = False) -> str:
    rows = map(partial(row, program), changes)
    return table(HEAD + (PUBLISHED if published else []), rows) + "\n"


def machines_table() -> str:
    rows = [[each.title, *(f"{value:g}" for value in (each.device, each.adapter, each.host, each.copy)),
             each.source] for each in MACHINES]  # fmt: skip
    return table(["a host", "device", "adapter", "host", "copy", "which"], rows) + "\n"
