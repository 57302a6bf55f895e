"""The bars of bench/resize_bench.py, and the sections of docs/studies that are made from its figures."""

import statistics
from pathlib import Path
from typing import Any

from measuring.figures_file import machines_text
from measuring.machines import name_of
from measuring.pages import Section, table
from measuring.paired import USUAL, Interval, difference, interval
from measuring.results import Bars

DOCS = Path(__file__).resolve().parents[1] / "docs/studies"
COMMAND = "bench/resize_bench.py --doc"
NOTHING = "Not measured on a quiet machine yet.\n"
CHANGES = {"4 to 4": "tp=2,pp=2 → pp=2,dp=2", "4 to 2": "pp=2,dp=2 → dp=2", "2 to 4": "dp=2 → tp=2,pp=2"}
RESTARTS = {"handover": "restart, state in memory", "torchrun": "torchrun, Holdfast's checkpoint",
            "torchrun, DCP": "torchrun, DCP's checkpoint"}
LEAST = {"handover": 3.0, "torchrun": 10.0, "torchrun, DCP": 10.0}
STILL = 0.5  # seconds, a goal
STEP = 50e3  # microseconds, of a step of which Elastic may add IDLE
IDLE = 0.5  # percent
CENTRAL = "Central / exchange, by transport to other ranks"
TWICE, NEAR = 2.0, 0.15
TURNS = {"resize": "`holdfast resize`, any configuration", "resize dp": "`holdfast resize`, dp alone (tp=2)",
         "torchrun": "torchrun, restarted (tp=2)"}


def write_pages(seen: dict[str, Any]) -> None:
    """Replaces what stands between the marks of each page."""
    for page, text in sections(seen).items():
        Section.made_by(page, COMMAND).write(text)


def sections(seen: dict[str, Any]) -> dict[Path, str]:
    """The text between the marks, by page."""
    named = sorted({name_of(machine) for machine in seen["machines"].values()})
    parts = [f"Measured on {'; '.join(named)}.\n{machines_text(seen['machines'])}" if named else NOTHING]
    parts += [text(seen[part]) for part, text in TEXTS.items() if part in seen]
    claims = [text(seen[part]) for part, text in CLAIMS.items() if part in seen]
    told = f"On one machine ([elastic.md](elastic.md#how-long-a-training-stands-still)): {'; '.join(claims)}.\n"
    return {DOCS / "elastic.md": "\n" + "\n".join(parts) + "\n",
            DOCS / "papers.md": "\n" + (told if claims else NOTHING) + "\n"}  # fmt: skip


def judge(seen: dict[str, Any], bars: Bars) -> None:
    """Prints the figures, and whether they meet their bars."""
    for part, of_part in JUDGES.items():
        if part in seen:
            of_part(seen[part], bars)


# How long training stands still


def still_of(rows: list[dict], way: str, change: str) -> Interval:
    return interval([value for row in rows for value in row[way][change]])


def ratio_of(rows: list[dict], way: str, change: str) -> Interval:
    """How many times as long as a change a restart takes, in the same rounds."""
    return interval([statistics.median(row[way][change]) / statistics.median(row["resize"][change])
                     for row in rows])  # fmt: skip


def judge_still(rows: list[dict], bars: Bars) -> None:
    for change in CHANGES:
        bars.show(f"{change}: stands still in a change (goal: {STILL} s)",
                  still_of(rows, "resize", change).median, "s")
        for way, name in RESTARTS.items():
            bars.show(f"{change}: {name}", still_of(rows, way, change).median, "s")
            bars.at_least(f"{change}: {name}, of a change", ratio_of(rows, way, change), LEAST[way])


def still_text(rows: list[dict]) -> str:
    head = ["workers", "change", "`holdfast resize`, s", *(f"{name}, times as long" for name in RESTARTS.values())]
    body = [[change, told, str(still_of(rows, "resize", change)),
             *(f"{ratio_of(rows, way, change)}; {still_of(rows, way, change).median:.1f} s" for way in RESTARTS)]
            for change, told in CHANGES.items()]  # fmt: skip
    phases = {change: [one for row in rows for one in row["resize"]["phases"][change]] for change in CHANGES}
    names = list(phases["4 to 4"][0])
    return (
        "**How long training stands still** (Fig. 12 and 15): from the end of the last step before to the end of the "
        "first step after it on the slowest rank, less a usual step. The same training changes while it lives, or "
        f"is stopped and started again; medians of {len(rows)} rounds with 95 % intervals. {goal_text(rows)}\n\n"
        + table(head, body) + "\n\nThe phases of these changes, as `holdfast resize` prints them; medians, in "
        "seconds:\n\n" + table(["workers", *names],
                               [[change, *(f"{statistics.median([one.get(name, 0.0) for one in own]):.2f}"
                                           for name in names)] for change, own in phases.items()]) + "\n"
    )  # fmt: skip


def goal_text(rows: list[dict]) -> str:
    missed = [change for change in CHANGES if still_of(rows, "resize", change).median > STILL]
    told = f"missed from {', '.join(missed)} workers" if missed else "met"
    return f"The goal of {STILL} s is {told}."


def still_claim(rows: list[dict]) -> str:
    told = ", ".join(f"{still_of(rows, 'resize', change)} s from {change} workers" for change in CHANGES)
    ratios = [ratio_of(rows, way, change).median for way in ("torchrun", "torchrun, DCP") for change in CHANGES]
    return (f"a change stands still for {told} (Fig. 12, 15), and a restart under torchrun takes "
            f"{min(ratios):.0f} to {max(ratios):.0f} times as long")  # fmt: skip


# Deaths


def lost_of(rows: list[dict], way: str, dead: str, what: str) -> list[float]:
    return [row[way][dead][what] for row in rows]


def lost_ratio(rows: list[dict], dead: str) -> Interval:
    return interval([row["torchrun"][dead]["seconds"] / row["holdfast"][dead]["seconds"] for row in rows])


def judge_lost(rows: list[dict], bars: Bars) -> None:
    for dead in ("1", "2", "3"):
        for way in ("holdfast", "torchrun"):
            bars.show(f"{dead} of 4 lost: {way}", interval(lost_of(rows, way, dead, "seconds")).median, "s")
        bars.show(f"{dead} of 4 lost: torchrun, of holdfast launch", lost_ratio(rows, dead).median)


def lost_text(rows: list[dict]) -> str:
    body = [[f"{dead} of 4", *(f"{interval(lost_of(rows, way, dead, 'seconds'))}; "
                               f"{statistics.fmean(lost_of(rows, way, dead, 'made again')):.0f}"
                               for way in ("holdfast", "torchrun")), str(lost_ratio(rows, dead))]
            for dead in ("1", "2", "3")]  # fmt: skip
    return (
        "**Workers are lost** (Fig. 11): seconds from the kill to the end of the first step that nobody had made, and "
        "how many steps were made again. Four replicas; the lost workers are replaced on the same machine. "
        f"Under torchrun all ranks start again from a save of Holdfast, one every 20 steps. If 3 of 4 die at once, "
        "nobody is left who keeps what one of them alone had, such as its generators, and Holdfast's ranks start "
        f"again from a save, too. {len(rows)} rounds.\n\n"
        + table(["lost", "`holdfast launch`; again", "`torchrun --max-restarts`; again", "times as long"], body) + "\n"
    )  # fmt: skip


def lost_claim(rows: list[dict]) -> str:
    told = ", ".join(f"{interval(lost_of(rows, 'holdfast', dead, 'seconds')).median:.1f} s against "
                     f"{interval(lost_of(rows, 'torchrun', dead, 'seconds')).median:.1f} s" for dead in ("1", "2", "3"))
    return f"after the loss of 1, 2 and 3 of 4 replicas a job goes on in {told} under torchrun (Fig. 11)"


# A number of workers that changes


def all_turns(rows: list[dict], way: str, skip: int | None = None) -> int:
    """The steps of all turns; without the turn of that number."""
    return sum(steps for row in rows for turn, steps in enumerate(row[way]) if turn != skip)


def judge_turns(rows: list[dict], bars: Bars) -> None:
    for way, name in TURNS.items():
        bars.show(f"4, 2, 1, 2, 4 workers: steps, {name}", all_turns(rows, way))


def turns_text(rows: list[dict]) -> str:
    ours = [all_turns(rows, "resize", skip) for skip in (None, 2)]
    body = [[name, *(str(sum(row[way][turn] for row in rows)) for turn in range(5)), str(all_turns(rows, way)),
             f"{all_turns(rows, way) / ours[0]:.2f}", f"{all_turns(rows, way, 2) / ours[1]:.2f}"]
            for way, name in TURNS.items()]  # fmt: skip
    return (
        "**4, 2, 1, 2 and 4 workers** for 10 s each (Fig. 9): the steps that were made. With tp=2, a training cannot run "
        "on one worker; the last column leaves that turn out, so that it shows what the changes themselves cost. "
        "The longer the turns, the nearer to 1 is that column.\n\n"
        + table(["way", "4", "2", "1", "2", "4", "in all", "of the first row", "without the turn of 1"], body) + "\n"
    )  # fmt: skip


def turns_claim(rows: list[dict]) -> str:
    ours, theirs = (all_turns(rows, way) for way in ("resize", "torchrun"))
    alike = all_turns(rows, "torchrun", 2) / all_turns(rows, "resize", 2)
    return (f"with 4, 2, 1, 2 and 4 workers by turns of 10 s, restarts under torchrun with tp=2 make {theirs / ours:.2f} of "
            f"the steps, and {alike:.2f} of them without the turn of one worker, on which they cannot run (Fig. 9)")  # fmt: skip


# The rest


def judge_redeploy(rows: list[dict], bars: Bars) -> None:
    bars.at_least("to 4 other ranks: Central, of an exchange", rows[-1][CENTRAL]["median"], TWICE)


def redeploy_text(rows: list[dict]) -> str:
    figures = rows[-1]
    own, central, ratio = (figures[name] for name in ("exchange by transport to other ranks",
                                                      "Central by transport to other ranks", CENTRAL))
    return (f"**To other workers** (Fig. 10): the state of 4 ranks moves to 4 others by messages in "
            f"{own['median']:.2f} s, and through one store for all in {central['median']:.2f} s, "
            f"{ratio['median']:.2f} times as long (quartiles {ratio['lower']:.2f} to {ratio['upper']:.2f}; "
            f"`bench/layout_change_bench --only redeploy`).\n")  # fmt: skip


def added(rows: list[dict]) -> Interval:
    """Microseconds that Elastic adds to ck.step()."""
    return interval([a - b for row in rows for a, b in zip(row["elastic"], row["plain"], strict=True)])


def looks(rows: list[dict]) -> float:
    """Microseconds in which another thread looks for requests, for a step of 50 ms: it looks five times a second."""
    return statistics.median(row["look"] for row in rows) * 5 * STEP / 1e6


def judge_idle(rows: list[dict], bars: Bars) -> None:
    bars.show("ck.step() without Elastic", statistics.median(x for row in rows for x in row["plain"]), "us")
    bars.show("looks for requests, of a step of 50 ms", 100 * looks(rows) / STEP, "%")
    whole = Interval(*(100 * (one + looks(rows)) / STEP for one in added(rows)[:3]), added(rows).covers)
    bars.at_most("Elastic adds to a step of 50 ms", whole, IDLE, " %")


def idle_text(rows: list[dict]) -> str:
    return (f"**While nothing changes** (Fig. 13): `holdfast.Elastic` adds {added(rows)} µs to a `ck.step()` of "
            f"{statistics.median(x for row in rows for x in row['plain']):.0f} µs, and another thread looks for "
            f"requests for {looks(rows):.0f} µs of a step of 50 ms: together "
            f"{100 * (added(rows).median + looks(rows)) / STEP:.2f} % of it. Blocks of 100 steps with and without it "
            "took turns in one training of 2 ranks.\n")  # fmt: skip


def judge_allocate(rows: list[dict], bars: Bars) -> None:
    far = [abs(row["measured"] / row["simulated"] - 1) for row in rows]
    bars.at_most("worker-seconds beside the simulated ones", max(far), NEAR)


def allocate_text(rows: list[dict]) -> str:
    row = rows[-1]
    told = ", ".join(f"{workers} from {at:.0f} s" for at, workers in row["phases"])
    return (f"**As the simulator allocates**: `holdfast simulate --allocate 5` gives a job {told}, to {row['length']:.0f} s: "
            f"{row['simulated']:.0f} worker-seconds. A job that was told so by `holdfast resize` took "
            f"{row['measured']:.0f}, {row['measured'] / row['simulated']:.3f} times as many.\n")  # fmt: skip


# COCI's second scenario


def cost_of(rows: list[dict], every: str, what: str) -> float:
    return statistics.fmean(row["ways"][every][what] for row in rows)


def judge_policies(rows: list[dict], bars: Bars) -> None:
    for every in rows[0]["ways"]:
        measured, simulated = cost_of(rows, every, "overhead"), cost_of(rows, every, "simulated")
        bars.show(f"{every}: overhead", measured, "worker-seconds")
        bars.show(f"{every}: overhead, beside the simulated one", measured / simulated, "times")


def beside_simulated(rows: list[dict]) -> str:
    """How near the overhead is to the simulated one."""
    times = {every: cost_of(rows, every, "overhead") / cost_of(rows, every, "simulated") for every in rows[0]["ways"]}
    far = [every for every, one in times.items() if abs(one - 1) > NEAR]
    near = f"within {100 * NEAR:.0f} %"
    told = f"not {near} of it under {', '.join(far)}" if far else near
    return (f"The overhead is {min(times.values()):.2f} to {max(times.values()):.2f} times the simulated one, "
            f"{told}. ")  # fmt: skip


def beyond_doubt(rows: list[dict], first: str) -> str:
    """Names the policies whose overhead differs from that of the policy `first`: the interval of the difference leaves out 0."""
    told = []
    for every in rows[0]["ways"]:
        costs = [[row["ways"][way]["overhead"] for row in rows] for way in (every, first)]
        found = difference(*costs)
        if every != first and found.covers >= USUAL and (found.low > 0 or found.high < 0):
            told.append(f"{every} {'above' if found.low > 0 else 'below'} {first}")
    return (f"Beyond doubt, by pairs with 95 % intervals: {', '.join(told)}." if told
            else f"No difference to {first} is beyond doubt.")  # fmt: skip


def policies_text(rows: list[dict]) -> str:
    first = next(iter(rows[0]["ways"]))
    told = ", ".join(f"{workers} worker{'' if workers == 1 else 's'} from {at:.0f} s on" for at, workers in rows[0]["phases"])
    kinds = ("kills", "saves", "stalled", "redone", "restarts", "overhead", "simulated", "changes")
    lines = [[every, *(f"{cost_of(rows, every, kind):.1f}" for kind in kinds),
              f"{100 * (cost_of(rows, every, 'overhead') / cost_of(rows, first, 'overhead') - 1):+.0f} %"]
             for every in rows[0]["ways"]]  # fmt: skip
    return (f"**COCI's second scenario, for real**: a DDP job with {told}, as `holdfast simulate --allocate 5` says. "
            "All its processes are killed at the same moments under each policy, and it goes on from its newest "
            "checkpoint. All columns but kills and saves are worker-seconds; *simulated* is the simulator's replay of each "
            f"run, and *changes*, what changes of the configuration take, is not part of the overhead. {beside_simulated(rows)}"
            f"Means of {len(rows)} "
            f"round{'' if len(rows) == 1 else 's'}. {beyond_doubt(rows, first)}\n\n"
            + table(["policy", "kills", "saves", "stalls", "redone", "restarts", "overhead", "simulated", "changes",
                     f"against {first}"], lines) + "\n")  # fmt: skip


JUDGES = {"still": judge_still, "lost": judge_lost, "turns": judge_turns, "redeploy": judge_redeploy,
          "idle": judge_idle, "allocate": judge_allocate, "policies": judge_policies}
TEXTS = {"still": still_text, "lost": lost_text, "turns": turns_text, "redeploy": redeploy_text,
         "idle": idle_text, "allocate": allocate_text, "policies": policies_text}
CLAIMS = {"still": still_claim, "lost": lost_claim, "turns": turns_claim,
          "redeploy": lambda rows: f"a state moves to other ranks {rows[-1][CENTRAL]['median']:.1f} times as fast as "
                                   "through a central store (Fig. 10)",
          "idle": lambda rows: f"`holdfast.Elastic` adds {100 * (added(rows).median + looks(rows)) / STEP:.2f} % to a "
                               "step of 50 ms while nothing changes (Fig. 13)"}
