"""Makes the table at the top of docs/studies/papers.md: what the abstracts of the five works claim, and what
was found here.

    python study/claims.py

Every verdict and figure is computed from committed results, and nothing is measured. A claim that these
results cannot decide says what it would take. A test makes the table again and compares.
"""

import csv
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

STUDY = Path(__file__).resolve().parent
ROOT = STUDY.parent
sys.path[:0] = [str(STUDY / "corruption"), str(STUDY), str(ROOT / "bench")]
import larger  # noqa: E402: these are in folders of their own
import page as corruption  # noqa: E402
import recovery_page as recovery  # noqa: E402
from measuring.machines import name_of  # noqa: E402
from measuring.pages import Section, table  # noqa: E402
from measuring.paired import interval  # noqa: E402
from results import ACCURACY, OUTCOME  # noqa: E402
from results import read as read_corruption  # noqa: E402
from schedule_jobs import PARALLEL_FIGURE, SERIAL_FIGURE  # noqa: E402
from verdicts import CONFIRMED, NOT_KEPT, UNDECIDED, is_judged  # noqa: E402

PAPERS = ROOT / "docs/studies/papers.md"
SECTION = Section.made_by(PAPERS, "study/claims.py")
FIGURES = ROOT / "bench/results"
OPEN = "not decided here"
CRUCIAL_BIT = "one crucial bit"
NOT_REPRODUCED = "not reproduced"
RELEVANT = 1.0  # percent of a step: less is no relevant difference
HEAD = ["the abstract says", "verdict here", "found", "made by"]


class Claim(NamedTuple):
    sentence: str
    verdict: str
    found: str
    command: str


def read(name: str) -> Any:
    return json.loads((FIGURES / name).read_text())


# The checkpoint-restart study


def checkpoint_claims() -> list[Claim]:
    cells = json.loads((STUDY / "checkpoints/results.json").read_text())["cells"]
    others = {name.removeprefix("crash-"): cell for name, cell in cells.items()
              if "kill" in cell and "holdfast" not in name}  # fmt: skip
    whole = [name for name, cell in others.items() if set(cell["kill"]) <= {"newest", "previous"}]
    lost = [name for name, cell in others.items() if cell["kill"].get("lost")]
    return [
        Claim("Chainer, PyTorch and TensorFlow differ critically in how they checkpoint",
              CONFIRMED if whole and lost else UNDECIDED,
              f"for crashes: of {len(others)} ways to save, {len(whole)} resume after a kill at any call, and "
              f"{len(lost)} can lose everything ([checkpoints.md](checkpoints.md))", "`make study`"),
        axes_claim(dict(asked_of_the_study())),
    ]  # fmt: skip


def asked_of_the_study() -> list[list[str]]:
    """Each claim of section 1 of papers.md, and what was found. Modules of the two studies have the same names, so that
    this one works in a process of its own."""
    done = subprocess.run([sys.executable, STUDY / "checkpoints/page.py", "--claims"], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def axes_claim(answers: dict[str, str]) -> Claim:
    """The axes of the study: confirmed if all are."""
    words = {answer.partition("**")[2].partition("**")[0] or OPEN for answer in answers.values()}
    verdict = {frozenset({"yes"}): CONFIRMED, frozenset({"no"}): NOT_REPRODUCED}.get(frozenset(words), UNDECIDED)
    open_ = [claim for claim, answer in answers.items() if not answer.startswith("**yes**")]
    told = f"{len(answers) - len(open_)} of {len(answers)} claims of section 1 hold" + (f"; not: {'; '.join(open_)}" if open_ else "")
    return Claim("cost, formats and sizes, scale, determinism have bottlenecks", verdict, told, "`make study`")


# COCI


def coci_claims() -> list[Claim]:
    with open(ROOT / "docs/studies/schedule_progress.csv") as file:
        rows = list(csv.DictReader(file))
    expected = [float(row["expected"]) for row in rows]
    calm = [float(row["no_failure"]) for row in rows]
    reached = {name: sum(value <= 100 * SERIAL_FIGURE for value in values)
               for name, values in (("expected", expected), ("calm", calm))}  # fmt: skip
    parallel = parallel_rows()
    mean, without = ([float(row[name]) for row in parallel]
                     for name in ("COCI, mean rate", "COCI, mean rate, no failure"))  # fmt: skip
    least = 100 * PARALLEL_FIGURE
    return [
        Claim(f"{-100 * SERIAL_FIGURE:.2f} % less overhead at best, one worker",
              CONFIRMED if reached["expected"] else NOT_REPRODUCED,
              f"in the mean under failures, {reached['expected']} of {len(rows)} settings reach it (best "
              f"{min(expected):+.1f} %, median {median_of_the_schedule()} %); in runs without a failure "
              f"{reached['calm']} ([schedule.md](schedule.md))", "`study/schedule.py`"),
        Claim(f"{-least:.2f} % less at best, data-parallel",
              CONFIRMED if min(mean) <= least else NOT_REPRODUCED,
              f"{sum(value <= least for value in mean)} of {len(mean)} jobs in the mean under failures (best "
              f"{min(mean):+.1f} %), {sum(value <= least for value in without)} without a failure; simulated, "
              f"because the setting is not public; {on_a_real_job()}", "`study/schedule.py`"),
    ]  # fmt: skip


def on_a_real_job() -> str:
    """COCI's rule for several workers against Young's, on a DDP job that shrinks, in seconds of workers."""
    rows = read("resize.json")["policies"]
    coci, young = (statistics.fmean(row["ways"][name]["overhead"] for row in rows) for name in ("coci-parallel", "young"))
    return (f"a real DDP job: {100 * (coci / young - 1):+.0f} %, {len(rows)} round{'' if len(rows) == 1 else 's'} "
            "([elastic.md](elastic.md))")  # fmt: skip


def median_of_the_schedule() -> str:
    """The median over the settings as schedule.md has it: the rows of the CSV file are rounded."""
    row = next(row for row in rows_of_the_schedule("| failures | cells below |") if row["failures"] == "expected, first order")
    return row["median"]


def parallel_rows() -> list[dict[str, str]]:
    """The jobs of the data-parallel table of schedule.md."""
    return rows_of_the_schedule("| workers | Ts, s |")


def rows_of_the_schedule(begin: str) -> list[dict[str, str]]:
    """The first table of schedule.md that begins so. study/schedule.py has made it."""
    lines = (ROOT / "docs/studies/schedule.md").read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(begin))
    head, rows = cells_of(lines[start]), []
    for line in lines[start + 2 :]:
        if not line.startswith("|") or line.startswith("| rows at"):
            break
        rows.append(dict(zip(head, cells_of(line))))
    return rows


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| ").split("|")]


# SWIFT


def swift_claims() -> list[Claim]:
    seen = read("recovery.json")
    kills, rates = seen["kills"], seen["rates"]
    ours, theirs = (interval(kills[way]["recovery"]) for way in ("holdfast", "torchrun"))
    share = interval([100 * (with_it / without - 1)
                      for with_it, without in zip(seen["cost"]["recovers"], seen["cost"]["plain"])])
    rows = [row for row in seen["totals"] if row["way"] == recovery.OURS]
    exact = sum(row["same_bits"] for row in rows)
    deaths = sum(row["kills"] for row in rows)
    often = {way: recovery.how_often(mtbf, rates["mtbfs"][-1]) for way, mtbf in rates["swift"].items()}
    where = name_of(seen["machines"]["kills"])
    ways = recovery.by_way(seen["totals"])
    measured = {way: recovery.geometric(recovery.ratios(ways[way], ways[recovery.OURS])) for way in rates["swift"] if way in ways}
    return [
        Claim("a failure costs much less recovery time", CONFIRMED if ours.high < theirs.low else UNDECIDED,
              f"from replicas: {ours} s against {theirs} s for torchrun, on {where}; {swift_logs(seen.get('logs'))} "
              "([recovery.md](recovery.md))", "`bench/recovery_bench.py`"),
        Claim("throughput is similar or better while nothing fails",
              CONFIRMED if share.high < RELEVANT else UNDECIDED,
              f"a step takes {share} % longer than without recovery, in pairs", "`bench/recovery_bench.py`"),
        Claim("the final accuracy does not suffer", CONFIRMED if exact == len(rows) else UNDECIDED,
              f"all losses have the bits of a run without kills in {exact} of {len(rows)} runs with "
              f"{deaths} kills in all", "`bench/recovery_bench.py`"),
        Claim("training is up to 1.16x shorter", shorter_verdict(measured, rates["swift"]),
              "their time by ours, measured, and how often a failure must come for 1.16x, simulated from measured times: "
              + "; ".join(shorter_words(way, measured.get(way), words) for way, words in often.items())
              + swift_setting(seen.get("swift")),
              "`bench/recovery_bench.py`"),
    ]  # fmt: skip


def shorter_words(way: str, measured: tuple[float, float, float] | None, simulated: str) -> str:
    told = "{:.2f} ({:.2f} to {:.2f}), ".format(*measured) if measured else ""
    return f"{way} {told}{simulated}"


def shorter_verdict(measured: dict[str, tuple[float, float, float]], simulated: dict[str, float | None]) -> str:
    """What whole trainings with kills show, and what only a simulation does. An interval that has 1 in it shows nothing."""
    shown = [way for way, (_, low, _) in measured.items() if low > 1]
    if measured and len(shown) == len(measured):
        return CONFIRMED
    in_simulation = f", {CONFIRMED} in simulation" if any(simulated.values()) else ""
    if shown:
        return f"{CONFIRMED} against {' and '.join(shown)}; against the others {UNDECIDED} by measurement{in_simulation}"
    return f"{UNDECIDED} by measurement{in_simulation}" if in_simulation else NOT_REPRODUCED


def swift_logs(logs: dict[str, Any] | None) -> str:
    """For how long a training stands still that has no replicas."""
    if not logs:
        return "recovery by logs is not timed yet"
    stood = {way: interval([one["stood"] for one in rows]) for way, rows in logs["ways"].items()}
    return (f"by logs, {logs['replayed steps'] + 1} steps behind a checkpoint: {stood['stages, messages']} s for a stage against "
            f"{stood['stages, none']} s for a start of all, {stood['shards, updates']} s for a shard against "
            f"{stood['shards, none']} s")


def swift_setting(swift: dict[str, Any] | None) -> str:
    """In SWIFT's own setting, with its recovery times."""
    if swift is None:
        return ""
    ends = [one["crossing"] for each in swift["settings"].values() if each["whose"] == "SWIFT"
            for one in each["bounds"] if one["crossing"]]  # fmt: skip
    return (f"; in SWIFT's own setting up to a failure in {recovery.duration(min(ends))} to "
            f"{recovery.duration(max(ends))}")  # fmt: skip


# Silent data corruption


def corruption_claims() -> list[Claim]:
    results = corruption.Results(read_corruption())
    by_accuracy = corruption.findings(results, ACCURACY[0])
    wider = corruption.findings(results, OUTCOME)
    out = [dozens_claim(results)]
    for (name, _, papers), (_, _, ours) in zip(by_accuracy, wider):
        words = (ours.word if papers.word in (ours.word, NOT_KEPT)
                 else f"{papers.word} by accuracy, {ours.word} by our wider rule")  # fmt: skip
        if papers.word == NOT_KEPT:
            words += " (wider rule)"
        found = short(ours.why if papers.word == NOT_KEPT else papers.why)
        if name == CRUCIAL_BIT:
            words, found = words + larger_word(results), f"{found}; in a ResNet-50 on an H200 {larger_words()}"
        out.append(Claim(name, words, found, "`make campaign`"))
    return out


def larger_words() -> str:
    hits, trials = larger.one_bit_harm()
    return f"bit 30 alone harms {larger.rate_text(hits, trials)}"


def larger_word(results: corruption.Results) -> str:
    """What the verdict on the small model lacks if the larger one is harmed less often, beyond doubt."""
    cell = results.cells["bit-weights-30"]
    hits, trials = larger.one_bit_harm()
    if not (trials and cell["trials"]):
        return ""
    high = corruption.wilson_interval(hits, trials)[1]
    rule = ACCURACY[0] if is_judged([cell], ACCURACY[0]) else OUTCOME
    low = corruption.wilson_interval(corruption.harm(cell, rule), cell["trials"])[0]
    return " for the small model, much weaker in a ResNet-50" if high < low else ""


def short(why: str) -> str:
    """The figures of a verdict, without what corruption.md has beside them."""
    first, *rest = why.split("; ")
    keep = [part.partition(", corrected")[0] for part in rest if "points" in part or "interval" in part][:2]
    first = first.partition(", corrected")[0]
    return "; ".join([first, *keep]) + " ([corruption.md](corruption.md))"


def dozens_claim(results: corruption.Results) -> Claim:
    """The rate of harm of ten and of a hundred flips, the crucial bit left out and not."""
    told = []
    cells = {name: results.cells[f"count-{name}"] for name in ("10-all", "10-others", "100-others")}
    rule = ACCURACY[0] if is_judged(cells.values(), ACCURACY[0]) else OUTCOME
    for name, cell in cells.items():
        flips, bits = name.split("-")
        told.append(f"{flips} flips{' without bit 30' if bits == 'others' else ''} harm "
                    f"{corruption.share(corruption.harm(cell, rule), cell['trials'])}")  # fmt: skip
    ran = all(cell["trials"] for cell in cells.values())
    calm = ran and corruption.wilson_interval(
        corruption.harm(cells["10-others"], rule), cells["10-others"]["trials"])[1] < 0.05  # fmt: skip
    word = (CONFIRMED + " without bit 30" if calm else UNDECIDED) if ran else OPEN
    by = "by accuracy" if rule != OUTCOME else "by our wider rule"
    return Claim("*(CLUSTER 2021)* models absorb dozens of flips", word, f"{by}: {'; '.join(told)}",
                 "`make campaign`")  # fmt: skip


# Scalai / Tenplex


def tenplex_claims() -> list[Claim]:
    changes = [one for each in read("resize_gpu_h200.json").values() if isinstance(each, list) for one in each]
    moved = max(one["moved"] / max(1, one["bound"]) for one in changes)
    still = [one["stood_still"] for one in changes]
    state = max(one["state"] for one in changes) / 1e9
    figures = read("layout_change_rivals.json")["DCP save + load / exchange with seals"]["median"]
    return [
        Claim("a change of parallelism moves the minimum of data", CONFIRMED if moved <= 1 else NOT_REPRODUCED,
              f"bytes moved are at most {moved:.3f} of the lower bound in {len(changes)} live changes of "
              f"{state:.1f} GB on an H200", "`bench/device/gpu_resize.py`"),
        Claim("jobs change their parallelism at runtime with low overhead",
              CONFIRMED if max(still) < 1 else UNDECIDED,
              f"these changes stand still {min(still):.2f} to {max(still):.2f} s; through files of DCP a change "
              f"takes {figures:.0f} times as long as between processes; on several machines it takes machines",
              "`bench/resize_bench.py`"),
        Claim("for redeployment and failures, too", OPEN,
              "tried on one machine ([elastic.md](elastic.md)); seconds at the paper's sizes take 16 GPUs",
              "`bench/resize_bench.py`"),
    ]  # fmt: skip


WORKS = {
    "[Checkpoint-restart study](#1-the-checkpoint-restart-study-chainer-pytorch-tensorflow)": checkpoint_claims,
    "[COCI](#2-coci-convergence-aware-checkpoint-intervals)": coci_claims,
    "[SWIFT](#3-swift-recovery-by-undo-replicas-and-logging)": swift_claims,
    "[Silent data corruption](#4-silent-data-corruption-by-checkpoint-alteration-ddp-and-horovod)":
        corruption_claims,
    "[Scalai / Tenplex](#5-scalai--tenplex-parallelizable-tensor-collections-ptc)": tenplex_claims,
}  # fmt: skip


def rows() -> Iterable[list[str]]:
    for work, claims in WORKS.items():
        for at, claim in enumerate(claims()):
            yield [work if at == 0 else "", claim.sentence, f"**{claim.verdict}**", claim.found, claim.command]


def make_table() -> str:
    return "\n" + table(["work", *HEAD], rows()) + "\n\n"


if __name__ == "__main__":
    SECTION.write(make_table())
