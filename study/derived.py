"""Figures about the five works that follow from their published code and formulas, or from small measurements.

    python study/derived.py --json bench/results/derived.json     computes and measures them, in a minute
    python study/derived.py --doc                                 writes them into docs/studies/papers.md

Only the speed of deflate depends on the machine. Everything that is drawn comes from a seed.
"""

import json
import math
import sys
import time
import zlib
from pathlib import Path
from typing import Any

STUDY = Path(__file__).resolve().parent
sys.path[:0] = [str(STUDY), str(STUDY.parent / "bench")]
from measuring import results  # noqa: E402: it is in another folder
from measuring.machines import this_run  # noqa: E402
from measuring.options import parser  # noqa: E402
from measuring.pages import Section, table  # noqa: E402

ROOT = STUDY.parent
RESULTS = ROOT / "bench/results/derived.json"
SECTION = Section.made_by(ROOT / "docs/studies/papers.md", "study/derived.py")
SEED = 0
DEFLATED = 8 << 20  # numbers, of 4 bytes each
UNDONE, UPDATES = 200_000, 200  # numbers of each tensor, and updates of which the last is taken back
UNDONE_BY = {"SGD with momentum": "SGD(lr=0.1, momentum=0.9)", "Adam": "Adam()", "AdamW": "AdamW()",
             "AdamW (fused)": "AdamW(fused=True)", "NAdam": "NAdam()", "RAdam": "RAdam()", "Adagrad": "Adagrad()",
             "RMSprop": "RMSprop(lr=1e-3)", "Adadelta": "Adadelta()"}  # fmt: skip
WEIGHTS = 200_000


def resnet50_tensors() -> dict[str, list[int]]:
    """The sizes of the tensors in a state dict of the usual ResNet-50, by kind."""
    convolutions, norms = [3 * 64 * 7 * 7], [64]
    inward = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            convolutions += [inward * width, width * width * 9, width * 4 * width]
            norms += [width, width, 4 * width]
            if block == 0:
                convolutions.append(inward * 4 * width)
                norms.append(4 * width)
            inward = 4 * width
    return {"weights of convolutions": convolutions, "linear layer": [1000 * inward, 1000],
            "weights and biases of BatchNorm": 2 * norms, "statistics of BatchNorm": 2 * norms,
            "step counters of BatchNorm": [1] * len(norms)}  # fmt: skip


def sampling_figures() -> dict[str, float]:
    """How often a tool that draws a tensor first strikes each kind, beside its share of the numbers."""
    kinds = resnet50_tensors()
    tensors = sum(map(len, kinds.values()))
    numbers = sum(map(sum, kinds.values()))
    statistic, counters = kinds["statistics of BatchNorm"], kinds["step counters of BatchNorm"]
    return {"tensors": tensors, "parameters": numbers - sum(statistic) - len(counters),
            "statistics_share": len(statistic) / tensors,
            "statistics_too_often": len(statistic) / tensors / (sum(statistic) / numbers),
            "counters_share": len(counters) / tensors}  # fmt: skip


def promoted_figures() -> dict[str, float]:
    """What a flip of one of 64 bits does to float32 weights that are promoted to doubles for it."""
    import numpy

    dice = numpy.random.default_rng(SEED)
    before = dice.normal(0, 0.05, WEIGHTS).astype("f4")
    bits = before.astype("f8").view("u8") ^ (numpy.uint64(1) << dice.integers(0, 64, WEIGHTS, "u8"))
    with numpy.errstate(over="ignore", invalid="ignore"):
        after = bits.view("f8").astype("f4")
    return {"without_effect": float((after.view("u4") == before.view("u4")).mean())}


def trials_needed(rate: float, difference: float) -> int:
    """Trials on each side so that a difference around a rate is found with a probability of 80 %."""
    low, high = rate - difference / 2, rate + difference / 2
    spread = (1.959964 * math.sqrt(2 * rate * (1 - rate))
              + 0.841621 * math.sqrt(low * (1 - low) + high * (1 - high)))  # fmt: skip
    return math.ceil((spread / difference) ** 2)


def undo_figures() -> dict[str, dict[str, float]]:
    """Takes the newest of some updates back, as Recover(undo=True) does, and counts equal bits, by optimizer."""
    return {name: undo_share(make) for name, make in UNDONE_BY.items()}


def undo_share(options: str) -> dict[str, float]:
    """The shares of elements of the parameters and of each slot that have their bits again."""
    import torch
    from holdfast.torch.recover.undone_updates import KeptUpdate

    torch.manual_seed(SEED)
    weight, scale = torch.nn.Parameter(0.05 * torch.randn(UNDONE)), 10 ** (5 * torch.rand(UNDONE) - 6)
    name, _, rest = options.partition("(")
    optimizer, kept, held = getattr(torch.optim, name)([weight], **eval(f"dict({rest}")), KeptUpdate(), {}
    for _ in range(UPDATES):
        weight.grad = scale * torch.randn(UNDONE)
        slots = {key: one for key, one in optimizer.state.get(weight, {}).items()
                 if one is not None and one.dim()}  # fmt: skip
        held = {key: one.detach().clone() for key, one in {"parameters": weight, **slots}.items()}
        kept.keep(optimizer)
        optimizer.step()
    kept.take_back()
    now = {"parameters": weight.detach(), **optimizer.state[weight]}
    return {key: float((now[key].view(torch.int32) == one.view(torch.int32)).float().mean())
            for key, one in held.items()}  # fmt: skip


def deflate_figures() -> dict[str, float]:
    """zlib at its usual level on float32 weights."""
    import numpy

    data = numpy.random.default_rng(SEED).normal(0, 0.05, DEFLATED).astype("f4").tobytes()
    start = time.process_time()  # of this process alone, whatever else the machine does
    size = len(zlib.compress(data))
    return {"gb_per_s": len(data) / 1e9 / (time.process_time() - start), "saved": 1 - size / len(data)}


def measure() -> dict[str, Any]:
    return {"run": this_run(), "sampling": sampling_figures(), "promoted": promoted_figures(),
            "trials": trials_needed(0.3, 0.05), "undo": undo_figures(), "deflate": deflate_figures()}  # fmt: skip


def make_table(seen: dict[str, Any]) -> str:
    sampling, undo, deflate = seen["sampling"], seen["undo"]["AdamW"], seen["deflate"]
    rows = [
        ["1", "deflate on float32 weights, one core", f"{deflate['gb_per_s']:.3f} GB/s, saves "
         f"{100 * deflate['saved']:.1f} % of the size"],
        ["3", f"bits that come back when a step of AdamW is undone in float32, after {UPDATES} steps",
         f"{100 * undo['parameters']:.1f} % of the parameters, {100 * undo['exp_avg']:.1f} % of the first and "
         f"{100 * undo['exp_avg_sq']:.1f} % of the second moments"],
        ["4", "statistics of BatchNorm in a ResNet-50, if each tensor is equally likely, beside their share of "
         "the numbers", f"{sampling['statistics_too_often']:.0f} times too often"],
        ["4", "flips that strike a step counter then", f"{100 * sampling['counters_share']:.1f} %"],
        ["4", "flips without effect, if float32 weights are flipped as 64-bit values",
         f"{100 * seen['promoted']['without_effect']:.1f} %"],
        ["4", "trials on each side that tell rates near 30 % apart that differ by 5 points (80 % power)",
         f"{seen['trials']:,}"],
    ]  # fmt: skip
    return "\n" + table(["section", "figure", "value"], rows) + "\n\n"


def main() -> int:
    made = parser(__doc__, json=None)
    made.add_argument("--doc", action="store_true", help="write the figures into the page, and compute nothing")
    args = made.parse_args()
    if args.doc:
        SECTION.write(make_table(json.loads(RESULTS.read_text())))
        return 0
    seen = measure()
    results.write(args.json, seen)
    print(make_table(seen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
