"""Makes the measured section of docs/studies/recovery.md from the figures of bench/recovery_bench.py."""

import math
import statistics
from pathlib import Path

from holdfast.statistics import mean_interval
from measuring.figures_file import machines_text
from measuring.pages import Section, table
from measuring.paired import difference, interval
from recovery_logs import logs_text

DOCS = Path(__file__).resolve().parents[1] / "docs/studies"
COMMAND = "bench/recovery_bench.py --doc"
OURS, PLAIN = "Holdfast", "nothing fails, nothing is saved"
CALM = "Holdfast, nothing fails"
CALM_HOROVOD = "Elastic Horovod, no commits, nothing fails"
SWIFT = 1.16
TORCHFT = "torchft"


def write_pages(seen: dict) -> None:
    """Replaces what stands between the marks of each page."""
    for page, text in sections(seen).items():
        Section.made_by(page, COMMAND).write(text)


def sections(seen: dict) -> dict[Path, str]:
    """The text between the marks, by page."""
    parts = [kills_text(seen), cost_text(seen["cost"]), short_text(seen.get("short", {})),
             totals_text(seen), rates_text(seen["rates"]), setting_text(seen.get("swift")), logs_text(seen.get("logs", {})),
             fill_text(seen["fill"])]  # fmt: skip
    parts.insert(0, machines_text(seen["machines"]))
    return {DOCS / "recovery.md": "\n" + "\n".join(part for part in parts if part) + "\n"}


def how_often(mtbf: float | None, longest: float) -> str:
    """The failure rates at which something holds, if the simulated times end with the longest."""
    if mtbf is None:
        return "at no rate"
    return "at all simulated rates" if mtbf >= longest else f"up to a failure in {duration(mtbf)}"


def swift_sentence(rates: dict) -> str:
    """At which failure rates rivals take as much longer as SWIFT's abstract says."""
    told = []
    for way, mtbf in rates["swift"].items():
        words = f"{way}, {how_often(mtbf, rates['mtbfs'][-1])}"
        ends = rates.get("swift_intervals", {}).get(way)
        if ends and mtbf and mtbf < rates["mtbfs"][-1]:
            low, high = (duration(end) if end else "no failure rate" for end in ends)
            words += f" ({low} to {high})"
        told.append(words)
    return f"training takes at least {SWIFT} times as long as with Holdfast with {'; '.join(told)}."


def setting_sentence(swift: dict) -> str:
    """From which failure rate on SWIFT's own setting gives what its abstract says."""
    told = []
    for name, setting in swift["settings"].items():
        low, high = sorted(how_often(one["crossing"], swift["mtbfs"][-1]) for one in setting["bounds"])
        rate = low if low == high else f"{low} or {high.removeprefix('up to a failure in ')}"
        told.append(f"{name}, with {setting['whose']}'s recovery: {rate}")
    return (f"In SWIFT's own setting, a restart from a checkpoint takes {SWIFT} times as long as a recovery: "
            f"{'; '.join(told)}.")  # fmt: skip


def setting_text(swift: dict | None) -> str:
    """The simulation with SWIFT's own constants; "" if it was not made."""
    if not swift:
        return ""
    head = ["model, and how it recovers", "step, s", "recovery, s",
            *(f"a failure in {duration(mtbf)}" for mtbf in swift["mtbfs"])]  # fmt: skip
    body = []
    for name, setting in swift["settings"].items():
        for one in setting["bounds"]:
            body.append([f"{name}, {setting['whose']}'s", f"{one['step']:.2f}", f"{one['recovery']:.1f}",
                         *(f"{ratio:.3f}" for ratio in one["ratios"])])  # fmt: skip
    return (
        "**SWIFT's own setting, simulated** (`bench/recovery_swift.py` says where each number comes from and what "
        "is not known): the total time if the job restarts from its last checkpoint, divided by that with "
        "recovery. Its public code gives the recovery by logs. It gives none with replicas, so that row has "
        "Holdfast's, as measured above. Holdfast has no recovery by logs to put beside SWIFT's at this size. The time of a "
        "step is not given either; the two rows of a model have the ends of the range in its plots.\n\n"
        + table(head, body) + f"\n\n{setting_sentence(swift)}\n")  # fmt: skip


def kills_text(seen: dict) -> str:
    kills = seen["kills"]
    ours, theirs = (interval(kills[way]["recovery"]) for way in ("holdfast", "torchrun"))
    lost = statistics.fmean(kills["torchrun"]["lost"])
    phases = mean_phases(kills["phases"])
    text = (
        f"**After a kill.** {kills['ranks']} ranks on {seen['machines']['kills']['cores']} cores; compute is paced, each "
        f"step sleeps {1e3 * kills['pace']:.0f} ms and takes {1e3 * kills['holdfast']['step']:.0f} ms. "
        f"From the kill to the end of the next step: {ours} s with 95 % interval, median of "
        f"{len(kills['holdfast']['recovery'])} kills. With `torchrun --max-restarts`, the same script "
        f"resumed from a save of Holdfast, it is {theirs} s, "
        f"{theirs.median / ours.median:.0f} times as long, and {lost:.1f} steps have to be made again.\n"
    )
    if phases:
        text += "\n" + table(["phase", "seconds, mean"],
                             [[name, f"{value:.2f}"] for name, value in phases.items()]) + "\n"  # fmt: skip
    if "ended" in phases:
        text += ("\n*Ended* is the time in which the system ends the killed process and frees its memory; "
                 "the benchmark measures it, and no event has it.\n")  # fmt: skip
    return text


def mean_phases(kills: list[dict]) -> dict[str, float]:
    if not kills:
        return {}
    return {name: statistics.fmean(one["phases"].get(name, 0.0) for one in kills)
            for name in kills[0]["phases"]}  # fmt: skip


def cost_text(cost: dict) -> str:
    found = interval([100 * (a / b - 1) for a, b in zip(cost["recovers"], cost["plain"])])
    step = 1e3 * statistics.median(cost["plain"]) / cost["steps"]
    added = interval([1e3 * (a - b) / cost["steps"] for a, b in zip(cost["recovers"], cost["plain"])])
    extra = (cost["memory_recovers"] - cost["memory_without"]) / 2**20
    return (
        f"**While nobody dies.** 2 ranks, steps of {step:.0f} ms, which fill all cores: `ck.run()` and "
        f"`ck.step()` add {added} ms, that is {found} %, to a step (95 % intervals; {len(cost['plain'])} pairs in turns, "
        f"against DDP without Holdfast). All processes together take {extra:+.0f} MiB, beside a "
        f"state of {cost['memory_state'] / 2**20:.0f} MiB on each rank.\n"
    )


def short_text(short: dict) -> str:
    """What a step costs whatever the model is; "" if that was not measured."""
    if not short:
        return ""
    told = []
    for ranks, one in short.items():
        added = difference(*([1e3 * seconds for seconds in one[way]] for way in ("recovers", "plain")))
        told.append(f"{added} ms to a step of {1e3 * statistics.median(one['plain']):.1f} ms with "
                    f"{ranks} rank{'s' if ranks != '1' else ''}")  # fmt: skip
    return (
        f"**Whatever the model is.** `ck.run()` and `ck.step()` add {', and '.join(told)} (95 % intervals; the "
        f"fastest of {one['steps']} steps with Holdfast beside the fastest without, "
        f"{len(one['plain'])} times; `bench/recovery_bench.py --parts short` prints it). Nobody could "
        "replace a job's only rank, so that nothing is kept for it.\n"
    )


def totals_text(seen: dict) -> str:
    rows = by_way(seen["totals"])
    calm = [way for way in (CALM, CALM_HOROVOD, PLAIN) if way in rows]
    head = ["way", "total, s", "divided by Holdfast's", "step, ms", "recovery, s", "standstill, s", "steps lost",
            "memory, MiB", "final loss", "exact"]  # fmt: skip
    body = [way_row(way, rows[way], rows[OURS])
            for way in (OURS, *(w for w in rows if w not in (OURS, *calm)), *calm)]  # fmt: skip
    kills = statistics.fmean(row["kills"] for row in rows[OURS])
    text = (
        f"**Beside others.** {seen['kills']['ranks']} ranks, paced; kills come at the same times for "
        f"every way of recovery, on average one in {seen['mtbf']:.0f} s. A slower way runs longer and gets more "
        f"kills; no kill comes while a way recovers. Holdfast got {kills:.1f} in a run. The figures are means over "
        f"{len(rows[OURS])} sequences of kills, with 95 % intervals; ratios have geometric means, and the intervals "
        "of their logarithms. CheckFreq and torchrun run with "
        f"Holdfast's saves; Holdfast itself saves by its default rule. The last {len(calm)} rows have no kills. "
        "*Recovery* is the time from a kill until a new process has done a step; *standstill* is the longest "
        "part of that time in which no rank did a new step. A way is *exact* if all losses have the bits of a "
        "run without kills. *Memory* is the sum over all processes of a job, each shared page divided among "
        "those that have it (PSS). The ranks of `holdfast launch` are forked from a launcher that has imported "
        "torch, so they share its pages; torchrun and Horovod start each rank as a program that imports it anew.\n\n"
        + table(head, body) + "\n"
    )
    if any("Horovod" in way for way in rows):
        text += ("\nElastic Horovod ran with its defaults, among them 30 s until Gloo gives up a call, unless a row "
                 "names another timeout; most of its recovery is probably this wait.\n")  # fmt: skip
    if TORCHFT in rows:
        text += "\n" + torchft_text(rows[TORCHFT], seen["torchft"])
    for rival, why in seen["left_out"].items():
        text += f"\nNot measured on {seen['machines']['totals']['machine']}: {rival}; {why}.\n"
    return text


def torchft_text(rows: list[dict], settings: dict) -> str:
    """What a reader must know to compare torchft's row with the others."""
    share = 100 * (1 - statistics.fmean(row["share"] for row in rows))
    return (
        f"With torchft the survivors go on without the killed rank, so its steps average fewer samples: "
        f"{share:.0f} % of the samples are in no update, and the final loss is that of another training. "
        "torchft leaves the restart of a process to torchrun, torchx or Slurm; here, a small program does "
        "it at once (`bench/recovery_torchft.py`), as a new Python process. The lighthouse ran with "
        f"`heartbeat_timeout_ms` {settings['heartbeat_timeout_ms']} (the default is 5000), "
        f"`join_timeout_ms` {settings['join_timeout_ms']} and `quorum_tick_ms` "
        f"{settings['quorum_tick_ms']}, as its README has them; Gloo with a timeout of "
        f"{settings['patience']:g} s (5 s in torchft's example); all else by default. Its hook for DDP is "
        "mended, because that of 0.2.0 ends all survivors with an error.\n"
    )


def way_row(way: str, rows: list[dict], ours: list[dict]) -> list[str]:
    lost = joined(rows, "lost")
    return [way, spread([row["total"] for row in rows], 1), ratio_text(ratios(rows, ours)),
            spread([1e3 * row["step"] for row in rows], 0),
            spread(joined(rows, "recovery"), 2), spread(joined(rows, "standstill"), 2),
            f"{statistics.fmean(lost):.1f}" if lost else "–",
            f"{statistics.fmean(row['memory'] for row in rows) / 2**20:.0f}",
            f"{statistics.fmean(row['loss'] for row in rows):.4f}",
            "yes" if all(row["same_bits"] for row in rows) else "no"]  # fmt: skip


def joined(rows: list[dict], key: str) -> list[float]:
    """The values of all kills. Rows that were measured before the column existed have none."""
    return [value for row in rows for value in row.get(key, [])]


def ratios(rows: list[dict], ours: list[dict]) -> list[float]:
    """The total of each run divided by Holdfast's in the same sequence of kills."""
    own = {row["sequence"]: row["total"] for row in ours}
    return [row["total"] / own[row["sequence"]] for row in rows if row["sequence"] in own]


def geometric(values: list[float]) -> tuple[float, float, float]:
    """The geometric mean of ratios, with the interval of their logarithms. It cannot reach below 0."""
    mean, half = mean_interval([math.log(value) for value in values])
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def ratio_text(values: list[float]) -> str:
    if not values:
        return "–"
    middle, low, high = geometric(values)
    return f"{middle:.3f}" + ("" if math.isinf(high) else f" ({low:.3f} to {high:.3f})")


def rates_text(rates: dict) -> str:
    head = ["a failure in", *(duration(mtbf) for mtbf in rates["mtbfs"])]
    bounds = rates.get("bounds", {})
    body = [[way, *(rate_text(ratio, at, bounds.get(way, [])) for at, ratio in enumerate(ratios))]
            for way, ratios in rates["ratios"].items() if way != OURS]  # fmt: skip
    text = ("**Other failure rates, simulated** by `holdfast simulate` with the times measured above: "
            "the total time divided by Holdfast's.")  # fmt: skip
    if "paired" in rates:
        share, low, high = (100 * part for part in rates["paired"])
        text += (f" Steps of Holdfast take {share:.2f} ({low:.2f} to {high:.2f}) % longer, as the pairs above say; "
                 "brackets have the ratios at both ends of this interval.")  # fmt: skip
    text += "\n\n" + table(head, body) + "\n"
    return (text + f"\nSWIFT's abstract says that training is up to {SWIFT} times shorter than with its "
            f"rivals. Here, {swift_sentence(rates)}\n")  # fmt: skip


def rate_text(ratio: float, at: int, bounds: list) -> str:
    if not bounds:
        return f"{ratio:.3f}"
    low, high = bounds[at]
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"


def fill_text(fill: dict) -> str:
    if not fill:
        return ""
    parts = "; ".join(f"{name.removeprefix('fill / ')}: {value:.2f}" for name, value in fill.items())
    return (
        f"**Filling a replacement** through shared memory, as a share of the speed of a copy: {parts}. "
        "The bar of 0.8 is set against the copy with seals, because a fill checks the seal of every "
        "byte on both sides, which takes longer than to copy it.\n"
    )


def by_way(rows: list[dict]) -> dict[str, list[dict]]:
    out: dict[str, list[dict]] = {}
    for row in sorted(rows, key=lambda row: row["sequence"]):
        out.setdefault(row["way"], []).append(row)
    return out


def spread(values: list[float], digits: int) -> str:
    if not values:
        return "–"
    mean, half = mean_interval(values)
    return f"{mean:.{digits}f}" + ("" if math.isinf(half) else f" ± {half:.{digits}f}")


def duration(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.2g} s"
