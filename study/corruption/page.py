"""Makes docs/studies/corruption.md from the compact results.

    python study/corruption/page.py

The text of the page stands in template.md beside this script. Nothing is measured here: a test
makes the page again and compares.
"""

import sys
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
import cells as study
import larger
from cells import BITS, COUNTS, CRUCIAL, LAYERS, ROLES, WIDTHS, Cell, all_cells
from holdfast.statistics import OUTCOMES, mcnemar_p, wilson_interval
from measuring.pages import table
from results import ACCURACY, OUTCOME, Machine, machine_words, read
from verdicts import (
    Verdict,
    crucial_bit,
    harm,
    harm_difference,
    is_judged,
    more_resilient,
    more_sensitive,
    more_sensitive_than_each,
    pair_harm,
    p_text,
    signed,
    spreads_alike,
    when_all_have_run,
)

DOCS = Path(__file__).resolve().parents[2] / "docs/studies"
TEMPLATE = Path(__file__).with_name("template.md")
PAGE = DOCS / "corruption.md"

NONE = {"trials": 0, "outcomes": {}, "struck": {}, "signed": {}, "low_first": 0, "seconds": 0.0}
NO_PAIR = {"pairs": 0, "only_first": 0, "only_second": 0, "both": 0, "same_outcome": 0,
           "same_bits": 0, "same_golden": False, "overflow": 0, "lost": 0, "spread": {}}
PAPERS_RULE = ACCURACY[0]
# What harm is: first by the papers' metric, then by our wider rule.
RULES = {"accuracy:5": "accuracy 5 points lower", "accuracy:1": "1 point lower",
         OUTCOME: "wider rule"}  # fmt: skip
MAIN = "ddp-4 horovod-4"


class Results:
    """The compact results. A cell or pair that has not run yet has no trials."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.machines = given["machines"]
        self.cells = {cell.name: given["cells"].get(cell.name, NONE) for cell in all_cells()}
        self._pairs = given["pairs"]
        self._planned = {cell.name: cell.trials for cell in all_cells()}

    def pair(self, names: str) -> dict[str, Any]:
        return self._pairs.get(names, NO_PAIR)

    def counts(self, chosen: Iterable[Cell]) -> tuple[int, int]:
        """How many trials have run, and how many are planned."""
        names = [cell.name for cell in chosen]
        done = sum(min(self.cells[name]["trials"], self._planned[name]) for name in names)
        return done, sum(self._planned[name] for name in names)

    def ran(self, chosen: Iterable[Cell]) -> str:
        """How many of the planned trials have run."""
        return "{:,} of {:,}".format(*self.counts(chosen))

    def ran_where(self, chosen: list[Cell]) -> str:
        """How many of the planned trials have run, and on which machines if there are several."""
        cells = [self.cells[cell.name] for cell in chosen]
        names = sorted({cell["machine"] for cell in cells if cell["trials"]})
        where = f" on machine{'s' if len(names) > 1 else ''} {' and '.join(names)}"
        return f"{self.ran(chosen)} trials{where if names and len(self.machines) > 1 else ''}"

    def missing(self) -> int:
        return sum(self._planned[name] - cell["trials"] for name, cell in self.cells.items())


def findings(results: Results, rule: str = OUTCOME) -> list[tuple[str, str, Verdict]]:
    """The words of each finding, how many of its trials have run, and its verdict under a rule."""
    pairs = [cell for cell in study.pair_cells() if cell.name in MAIN.split()]
    bits = [cell for cell in study.bit_cells() if "weights" in cell.name]
    found = [
        ("one crucial bit", bits, crucial_bit(results.cells, rule)),
        ("Horovod is slightly more resilient than DDP", pairs,
         more_resilient(results.pair(MAIN), rule)),
        ("faults spread alike in both", pairs, spreads_alike(results.pair(MAIN))),
        ("the model is more sensitive than the optimizer", study.role_cells(),
         more_sensitive(results.cells, rule)),
        ("*(ours, stricter)* than each part of the optimizer", study.role_cells(),
         more_sensitive_than_each(results.cells, rule)),
    ]  # fmt: skip
    return [(name, results.ran(cells), when_all_have_run(verdict, *results.counts(cells)))
            for name, cells, verdict in found]  # fmt: skip


def share(hits: int, trials: int) -> str:
    """A rate in percent with its interval."""
    if trials == 0:
        return "not run"
    low, high = wilson_interval(hits, trials)
    return f"{100 * hits / trials:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def verdict_table(results: Results) -> str:
    """Both verdicts of each finding. How faults spread does not depend on what harm is."""
    rows = []
    for (name, ran, papers), (_, _, ours) in zip(findings(results, PAPERS_RULE), findings(results)):
        rows.append([name, told(papers), told(ours) if ours != papers else "the same", ran])
    return table(["finding", "by accuracy (5 points lower)", "by our wider rule", "trials run"], rows)


def told(verdict: Verdict) -> str:
    return ": ".join(filter(None, (f"**{verdict.word}**", verdict.why)))


def rates(cell: dict[str, Any]) -> list[str]:
    """The rate of harm of a cell under each rule."""
    return [share(harm(cell, rule), cell["trials"]) if is_judged([cell], rule) else "not kept"
            for rule in RULES]  # fmt: skip


def bit_row(results: Results, bit: int) -> list[str]:
    cells = [results.cells[f"bit-{role}-{bit}"] for role in ROLES]
    return [*(rate for cell in cells for rate in rates(cell)),
            *(share(cell["low_first"], cell["trials"]) for cell in cells[1:2])]  # fmt: skip


def bit_table(results: Results) -> str:
    """The highest bit first. Neighbouring bits with equal cells share a row."""
    rows = [([bit, bit], bit_row(results, bit)) for bit in reversed(BITS)]
    merged: list[tuple[list[int], list[str]]] = []
    for bits, row in rows:
        if merged and merged[-1][1] == row:
            merged[-1][0][1] = bits[1]
        else:
            merged.append((bits, row))
    roles = ("weights", "BatchNorm", "momentum")
    heads = [f"{role}: {words}" for role in roles for words in RULES.values()]
    return table(["bit", *heads, "BatchNorm: low accuracy after loading"],
                 [[f"{first}" if first == last else f"{last} to {first}, each", *row]
                  for (first, last), row in merged])  # fmt: skip


def predict(flips: int, bits: int = 32) -> float:
    """The chance that at least one of the flips strikes the highest bit of an exponent."""
    return 1 - (1 - 1 / bits) ** flips


def percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"


def fits(flips: int, bits: int, cell: dict[str, Any]) -> str:
    """Whose interval holds the predicted rate."""
    if not cell["trials"]:
        return "not run"
    hits = {"harm": harm(cell), "N-EV": cell["outcomes"].get("N-EV", 0)}
    inside = [name for name, count in hits.items() if holds(predict(flips, bits), count, cell)]
    return " and ".join(inside) or "neither"


def holds(rate: float, hits: int, cell: dict[str, Any]) -> bool:
    low, high = wilson_interval(hits, cell["trials"])
    return low <= rate <= high


def count_rows(results: Results, flips: int) -> list[list[str]]:
    every, others = (results.cells[f"count-{flips}-{name}"] for name in ("all", "others"))
    return [[f"{flips:,}", percent(predict(flips)), *rates(every), nev(every),
             fits(flips, 32, every), split(every)],
            [f"{flips:,}, none in bit {CRUCIAL}", "0.0 %", *rates(others), nev(others), "",
             split(others)]]  # fmt: skip


def nev(cell: dict[str, Any]) -> str:
    return share(cell["outcomes"].get("N-EV", 0), cell["trials"])


def split(cell: dict[str, Any]) -> str:
    """Harm in the trials that struck the highest bit of an exponent, in those that struck only a
    sign, and in the rest."""
    if not cell["trials"]:
        return "not run"
    parts = [(harm({"outcomes": cell[name]}), sum(cell[name].values()))
             for name in ("struck", "signed")]  # fmt: skip
    parts.append((harm(cell) - sum(hits for hits, _ in parts),
                  cell["trials"] - sum(trials for _, trials in parts)))  # fmt: skip
    return "; ".join(f"{hits} of {trials}" for hits, trials in parts)


SPLIT = "wider rule if the highest exponent bit is struck; only the sign; neither"


def count_table(results: Results) -> str:
    return table(["flips", f"bit {CRUCIAL} is struck, predicted", *RULES.values(), "N-EV",
                  "prediction lies within the interval of", SPLIT],
                 [row for flips in COUNTS for row in count_rows(results, flips)])  # fmt: skip


def outcome_row(name: str, cell: dict[str, Any]) -> list[str]:
    seen = [str(cell["outcomes"].get(outcome, 0)) for outcome in OUTCOMES]
    return [name, str(cell["trials"]), *rates(cell), *seen]


def outcome_table(results: Results, names: dict[str, str]) -> str:
    """The outcomes of cells, by their words."""
    return table(["cell", "trials", *RULES.values(), *OUTCOMES, SPLIT],
                 [[*outcome_row(words, results.cells[name]), split(results.cells[name])]
                  for name, words in names.items()])  # fmt: skip


def precision_table(results: Results) -> str:
    rows = []
    for base, width in WIDTHS.items():
        cell = results.cells[f"precision-{base}"]
        rows.append([base.partition("-")[2] or "float32", percent(predict(10, width)),
                     *rates(cell), nev(cell), fits(10, width, cell), split(cell)])  # fmt: skip
    return table(["stored as", "highest exponent bit is struck, predicted", *RULES.values(), "N-EV",
                  "prediction lies within the interval of", SPLIT], rows)  # fmt: skip


def resilience_sentences(results: Results) -> str:
    """What the trials without the crucial bit say, under the papers' rule and under ours."""
    told = [resilience_sentence(results, PAPERS_RULE, "By accuracy"),
            resilience_sentence(results, OUTCOME, "By our wider rule")]  # fmt: skip
    return " ".join(filter(None, told))


def resilience_sentence(results: Results, rule: str, by: str) -> str:
    """Up to how many flips outside the crucial bit do harm in less than 5 % of trials."""
    cells = {flips: results.cells[f"count-{flips}-others"] for flips in COUNTS}
    if not all(cell["trials"] for cell in cells.values()):
        return ""
    if not is_judged(cells.values(), rule):
        return f"{by} this is not judged: the records of these trials were not kept."
    intervals = {flips: wilson_interval(harm(cell, rule), cell["trials"])
                 for flips, cell in cells.items()}
    calm = list(takewhile(lambda flips: intervals[flips][1] < 0.05, COUNTS))
    hurt = [flips for flips in COUNTS if intervals[flips][0] > 0.05]
    if not hurt:
        return f"{by}, no number of flips without bit {CRUCIAL} is shown to harm more than 5 % of the trials."
    first = hurt[0]
    open_ = [f"{flips:,}" for flips in COUNTS if flips not in (*calm, *hurt)]
    undecided = f"; for {' and '.join(open_)} it is undecided" if open_ else ""
    kept = (f"holds here for up to {max(calm):,} flip{'s' * (max(calm) > 1)} at once" if calm
            else "holds here for no number of flips")  # fmt: skip
    return (f"{by}, that a model is resilient as long as bit {CRUCIAL} is not struck {kept} (less "
            f"than 5 % harm), and not for {' or '.join(f'{flips:,}' for flips in hurt)}: with "
            f"{first:,} it is {share(harm(cells[first], rule), cells[first]['trials'])}{undecided}.")


CAUSES = {
    "ddp-2 horovod-2": "DDP, Horovod; 2 ranks",
    "ddp-4 horovod-4": "DDP, Horovod; 4 ranks",
    "ddp-4 horovod-4-divided": "DDP, Horovod that divides before the sum",
    "horovod-4 horovod-4-divided": "Horovod, Horovod that divides before the sum",
    "ddp-4 ddp-4-silent": "DDP, DDP that broadcasts no BatchNorm buffers",
}


ARMS = {"alone": "PyTorch, one process", "pipeline-2": "PyTorch, pipeline, 4 micro-batches",
        "pipeline-2-whole": "PyTorch, pipeline, 1 micro-batch", "keras": "Keras on TensorFlow",
        "chainer": "Chainer"}  # fmt: skip
ARM_PAIRS = {f"alone {name}": f"one process, {words.removeprefix('PyTorch, ')}"
             for name, words in ARMS.items() if name != "alone"}  # fmt: skip


def cause_row(pair: dict[str, Any], words: str) -> list[str]:
    if not pair["pairs"]:
        return [words, "0", *["not run"] * (5 + len(RULES))]
    return [words, str(pair["pairs"]), "yes" if pair["same_golden"] else "no",
            f"{pair['same_bits']} of {pair['pairs'] - pair['lost']}", str(pair["same_outcome"]), str(pair["overflow"]),
            *(change_text(pair, rule) for rule in RULES),
            p_text(mcnemar_p(pair["only_first"], pair["only_second"]))]  # fmt: skip


def change_text(pair: dict[str, Any], rule: str) -> str:
    """The first rate of harm less the second, in points."""
    if not is_judged([pair], rule):
        return "not kept"
    seen = pair_harm(pair, rule)
    low, high = harm_difference(pair, rule)
    change = 100 * (seen["only_first"] - seen["only_second"]) / pair["pairs"]
    return f"{change:+.2f} ({100 * low:+.2f} to {100 * high:+.2f})"


def cause_table(results: Results, pairs: dict[str, str]) -> str:
    return table(["first and second", "pairs", "golden runs equal", "equal bits, where both ended",
                  "same outcome",
                  "N-EV in one only",
                  *(f"{words}: first less second, points" for words in RULES.values()),
                  "p, wider rule"],
                 [cause_row(results.pair(names), words) for names, words in pairs.items()])


def spread_table(results: Results) -> str:
    if not results.pair(MAIN)["spread"]:
        return "Not run."
    rows = [[*name.split("."), str(row["pairs"]), signed(row["median"]),
             f"{signed(row['low'])} to {signed(row['high'])}", str(row["above"]),
             str(row["below"])] for name, row in results.pair(MAIN)["spread"].items()]  # fmt: skip
    return table(["after", "layer", "pairs", "median", "interval", "at least +0.3",
                  "at most -0.3"], rows)  # fmt: skip


def role_names() -> dict[str, str]:
    return {"role-sgd-weights": "SGD: weights", "role-sgd-momentum": "SGD: momentum",
            "role-adam-weights": "Adam: weights", "role-adam-m": "Adam: m (`exp_avg`)",
            "role-adam-v": "Adam: v (`exp_avg_sq`)"}  # fmt: skip


def further_names() -> dict[str, str]:
    names = {f"layer-{layer}": f"only {layer}" for layer in LAYERS}
    names |= {"moment-sgd-early": "an early checkpoint", "moment-sgd-late": "a late checkpoint"}
    return names | {"sampling-bits": "whole model, every bit equally likely",
                    "sampling-legacy": "whole model, every tensor equally likely"}  # fmt: skip


def ran_sentence(results: Results) -> str:
    done, planned = results.counts(all_cells())
    if not done:
        return f"None of {planned:,} planned trials has run yet."
    hours = sum(cell["seconds"] for cell in results.cells.values()) / 3600
    rest = "" if not results.missing() else (
        " The rest has not run yet: `make campaign` continues.")  # fmt: skip
    return f"{done:,} of {planned:,} planned trials have run; they took {hours:.1f} hours of training.{rest}"


def machine_sentence(machines: dict[str, Machine]) -> str:
    """A sentence for each machine, with a space before it; nothing if none is known."""
    words = {name: machine_words(machine) for name, machine in machines.items()}
    if len(words) < 2:
        return "".join(f" The machine: {each}." for each in words.values())
    return "".join(f" Machine {name}: {each}." for name, each in words.items())


def golden_sentence(results: Results) -> str:
    known = [cell["golden"] for name, cell in results.cells.items()
             if name.startswith(("role-sgd", "bit-")) and "golden" in cell]  # fmt: skip
    if not known:
        return ""
    one = known[0]
    return (f": {100 * one['first']:.1f} % of the test set after loading, {100 * one['final']:.1f} % "
            f"at the end, with a loss of {one['loss']:.4f}")


def make_page(given: dict[str, Any]) -> str:
    results = Results(given)
    return TEMPLATE.read_text().format(
        verdicts=verdict_table(results),
        ran=ran_sentence(results),
        machines=machine_sentence(results.machines),
        golden=golden_sentence(results),
        bits=bit_table(results),
        bits_ran=results.ran_where(study.bit_cells()),
        counts=count_table(results),
        counts_ran=results.ran_where(study.count_cells()),
        pair_outcomes=outcome_table(results, {"ddp-4": "DDP", "horovod-4": "Horovod"}),
        causes=cause_table(results, CAUSES),
        arms=outcome_table(results, ARMS),
        arm_pairs=cause_table(results, ARM_PAIRS),
        arms_ran=results.ran_where(study.pipeline_cells() + study.framework_cells()),
        pairs_ran=results.ran_where(study.pair_cells()),
        spread=spread_table(results),
        roles=outcome_table(results, role_names()),
        roles_ran=results.ran_where(study.role_cells()),
        further=outcome_table(results, further_names()),
        resilience=resilience_sentences(results),
        precisions=precision_table(results),
        larger=larger.all_bits_sentences(results.cells[f"bit-weights-{CRUCIAL}"]),
        bit=CRUCIAL,
        larger_layers=larger.layer_table(results.cells),
        larger_causes=larger.cause_table(),
        crucial_for=larger.crucial_for(results.cells),
        larger_ran=results.ran_where(study.crucial_cells()),
        further_ran=results.ran_where(study.further_cells()),
    )


if __name__ == "__main__":
    PAGE.write_text(make_page(read()))
