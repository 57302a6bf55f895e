"""Section 5 of the page: a ResNet-50 on a GPU, and in which layers of the small model the crucial bit harms.

The figures of the ResNet-50 are files of bench/results, which bench/device/campaign_gpu.py writes. A
part that has not run yet is named with its command. Why the crucial bit harms in some layers and not in others
is read from the records of its trials, which are beside them.
"""

import json
import lzma
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cells import CRUCIAL, CRUCIAL_LAYERS
from holdfast.statistics import HARM, binomial_tail, wilson_interval
from measuring.pages import table
from results import ACCURACY

FIGURES = Path(__file__).resolve().parents[2] / "bench/results"
ALL_BITS = FIGURES / "campaign_gpu_h200.json"
ONE_BIT = FIGURES / "campaign_gpu_bit30_h200.json"
RECORDS = FIGURES / "campaign_gpu_bit30_h200.trials.jsonl.xz"
SIZES = (0.01, 0.02)  # of struck weights, between which the table of causes divides
KINDS = {"conv": "a convolution", "downsample.0": "a convolution", "bn": "BatchNorm",
         "downsample.1": "BatchNorm", "fc": "the linear layer"}  # fmt: skip


def rate_text(hits: int, trials: int) -> str:
    if not trials:
        return "not run"
    low, high = wilson_interval(hits, trials)
    return f"{hits} of {trials}: {100 * hits / trials:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def harmed(figures: dict[str, Any]) -> int:
    return sum(figures["campaign"]["outcomes"][name]["count"] for name in HARM)


def kind_of(layer: str) -> str:
    """The kind of a layer such as "model.layer2.0.conv1"."""
    own = layer.rpartition(".")[2]
    last_two = ".".join(layer.split(".")[-2:])
    known = [words for name, words in KINDS.items() if last_two == name or own.startswith(name)]
    return known[0] if known else layer


def all_bits_sentences(cell: dict[str, Any], path: Path = ALL_BITS) -> str:
    """How many single flips harm the ResNet-50, and how many would if the crucial bit harmed it as
    it harms the small model, whose cell of this bit is given."""
    if not path.exists() or not cell["trials"]:
        return ""
    figures = json.loads(path.read_text())
    trials, seen = figures["trials"], harmed(figures)
    small = sum(cell["outcomes"].get(name, 0) for name in HARM)
    rate = small / cell["trials"] / 32
    p = binomial_tail(trials, seen, rate)
    fewer = f", so **for this ResNet-50 the finding of section 1 does not hold**" if p < 0.05 else ""
    return (f"One flip anywhere in the model, then {figures['steps']} steps: {rate_text(seen, trials)} "
            f"harmed, by our wider rule. One flip in 32 strikes bit {CRUCIAL}. If such a flip harmed "
            f"this model as it harms the small one ({small} of {cell['trials']}), about "
            f"{trials * rate:.0f} would be harmed. So few or fewer would have a "
            f"probability of {p:.4f}{fewer}.")  # fmt: skip


def kind_rows(figures: dict[str, Any]) -> list[list[str]]:
    """The trials with the crucial bit, by the kind of layer that they struck."""
    rows: dict[str, list[int]] = {}
    for name, seen in figures["by_layer"].items():
        row = rows.setdefault(f"ResNet-50: {kind_of(name)}", [0] * (2 + len(ACCURACY)))
        for i, number in enumerate((seen["trials"], *(seen[rule] for rule in ACCURACY),
                                    seen["outcome"])):  # fmt: skip
            row[i] += number
    return [[name, str(row[0]), *(rate_text(hits, row[0]) for hits in row[1:])]
            for name, row in sorted(rows.items())]  # fmt: skip


def layer_table(cells: dict[str, dict[str, Any]], path: Path = ONE_BIT) -> str:
    """Flips of the crucial bit alone, by the layer that was struck."""
    rows = []
    for name, words in CRUCIAL_LAYERS.items():
        cell = cells[name]
        trials = cell["trials"]
        lower = [rate_text(cell["lower"][rule]["harm"], trials) if trials else "not run"
                 for rule in ACCURACY]  # fmt: skip
        wide = rate_text(sum(cell["outcomes"].get(each, 0) for each in HARM), trials)
        rows.append([words, str(trials), *lower, wide])
    if path.exists():
        rows += kind_rows(json.loads(path.read_text()))
    else:
        rows.append(["ResNet-50 on a GPU", "0", *["not run"] * (1 + len(ACCURACY))])
    return table([f"bit {CRUCIAL} alone, in", "trials", "accuracy 5 points lower", "1 point lower",
                  "wider rule"], rows)  # fmt: skip


def one_bit_harm(path: Path = ONE_BIT) -> tuple[int, int]:
    """In how many of the trials with the crucial bit alone the ResNet-50 was harmed; (0, 0) if they have not run."""
    if not path.exists():
        return 0, 0
    figures = json.loads(path.read_text())
    return figures["harm"][ACCURACY[0]]["count"], figures["trials"]


def trials(path: Path = RECORDS) -> Iterable[dict[str, Any]]:
    """The records of the trials with the crucial bit."""
    if path.exists():
        with lzma.open(path, "rt") as file:
            yield from (json.loads(line) for line in file if line.strip())


def cause_rows(seen: Iterable[dict[str, Any]]) -> list[list[str]]:
    """How many trials are harmed, by the stage of the network and by the size of the weight that was struck."""
    counts: dict[str, list[list[int]]] = {}
    for trial in seen:
        (flip,) = trial["flips"]
        size = abs(struct.unpack(">f", bytes.fromhex(flip["before"]))[0])
        at = sum(size >= bound for bound in SIZES)
        for stage in (flip["layer"].split(".")[1], "all"):
            cell = counts.setdefault(stage, [[0, 0] for _ in range(len(SIZES) + 1)])[at]
            cell[0] += trial["outcome"] in HARM
            cell[1] += 1
    return [[stage, *(f"{hits} of {of}" if of else "–" for hits, of in cells), f"{sum(hits for hits, _ in cells)} of {sum(of for _, of in cells)}"]
            for stage, cells in sorted(counts.items(), key=lambda row: (row[0] == "all", row[0]))]  # fmt: skip


def cause_table(path: Path = RECORDS) -> str:
    low, high = SIZES
    rows = cause_rows(trials(path))
    if not rows:
        return "Not run."
    return table(["ResNet-50: harmed, by stage", f"weight below {low:g}", f"{low:g} to {high:g}", f"from {high:g} on", "all sizes"],
                 rows)  # fmt: skip


def crucial_for(cells: dict[str, dict[str, Any]]) -> str:
    """For which models a flip of the crucial bit of a weight is nearly always harm: whose interval lies above a half."""
    cell = cells[f"bit-weights-{CRUCIAL}"]
    small = (cell["lower"][ACCURACY[0]]["harm"] if "lower" in cell
             else sum(cell["outcomes"].get(name, 0) for name in HARM))  # fmt: skip
    rates = {"the small model": (small, cell["trials"]), "the ResNet-50": one_bit_harm()}
    told = []
    for name, (hits, trials) in rates.items():
        if trials:
            low, high = wilson_interval(hits, trials)
            word = "it is crucial" if low > 0.5 else "it is not" if high < 0.5 else "that is undecided"
            told.append(f"for {name} {word} ({rate_text(hits, trials)})")
    return f"Is bit {CRUCIAL} crucial, so that most flips of it lower the accuracy by 5 points? {'; '.join(told)[:1].upper()}{'; '.join(told)[1:]}."
