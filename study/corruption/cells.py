"""What the study of flipped bits runs: checkpoints, and campaigns that start from them.

A cell is a checkpoint, which bits of it are flipped, how training goes on, and how many trials
there are. Cells with the same plans flip the same bits in each trial, so that they can be compared
pair by pair. Most cells are one campaign each. The cells of single bits are four campaigns for each
role, whose trials take eight bits in turn: fewer start a training less often, and more can run side
by side. For the same reason the cells with ranks have several campaigns, called parts.
"""

import zlib
from dataclasses import dataclass, replace

# The checkpoints, by name, and the options of examples/train_digits.py that make them.
BASES = {
    "sgd": ("--steps", "400"),
    "sgd-early": ("--steps", "60"),
    "sgd-late": ("--steps", "2000"),
    "sgd-float16": ("--steps", "400", "--precision", "float16"),
    "sgd-bfloat16": ("--steps", "400", "--precision", "bfloat16"),
    "sgd-float64": ("--steps", "400", "--precision", "float64"),
    "adam": ("--steps", "400", "--optimizer", "adam"),
    "sgd-plain": ("--steps", "400", "--model", "plain"),
}
# The model of a checkpoint that has another one than the rest.
MODELS = {"sgd-plain": "plain"}

WEIGHTS = ("--tensors", "model.conv1", "model.conv2", "model.fc")
NORMS = ("--tensors", "model.bn1", "model.bn2", "--roles", "parameter", "buffer")
MODEL = ("--tensors", "model", "--roles", "parameter", "buffer")
MOMENTUM = ("--tensors", "optimizer", "--roles", "slot")
ROLES = {"weights": WEIGHTS, "norms": NORMS, "momentum": MOMENTUM}

BITS = range(32)
CRUCIAL = 30  # the highest bit of the exponent of a float32
OTHERS = "0-29,31"
COUNTS = (1, 10, 100, 1000)
LAYERS = ("conv1", "conv2", "fc")
WIDTHS = {"sgd-float16": 16, "sgd-bfloat16": 16, "sgd": 32, "sgd-float64": 64}


# One flip of the crucial bit in one layer: for which layers it is crucial.
CRUCIAL_LAYERS = {
    "crucial-conv1": "the small model: the first convolution, with BatchNorm after it",
    "crucial-conv2": "the small model: the second convolution, with BatchNorm after it",
    "crucial-fc": "the small model: the linear layer",
    "crucial-plain-conv1": "the same without BatchNorm: the first convolution",
    "crucial-plain-conv2": "the same without BatchNorm: the second convolution",
    "crucial-plain-fc": "the same without BatchNorm: the linear layer",
}


@dataclass(frozen=True)
class Job:
    """How a trial trains."""

    launcher: str = "none"
    ranks: int = 1
    options: tuple[str, ...] = ()
    framework: str = "torch"  # or one of other_frameworks.py

    @property
    def words(self) -> list[str]:
        if self.launcher == "none":
            return []
        return ["--launcher", self.launcher, "--ranks", str(self.ranks), *self.options]


@dataclass(frozen=True)
class Cell:
    name: str
    trials: int
    selection: tuple[str, ...]
    flips: int = 1
    bits: str = "all"
    base: str = "sgd"
    job: Job = Job()
    turns: range = range(0)  # trial i flips bit number i modulo their count, if there are any
    plans: str = ""  # cells with the same word, base and selection flip the same bits
    keeps_state: bool = False  # whether the parameters of each trial are compared with golden's

    @property
    def seed(self) -> int:
        return zlib.crc32((self.plans or self.name).encode())

    @property
    def optimizer(self) -> str:
        return self.base.partition("-")[0]

    @property
    def stem(self) -> str:
        """The name without the part."""
        return self.name.partition(".")[0]

    @property
    def part(self) -> str:
        return self.name.partition(".")[2]

    @property
    def model(self) -> str:
        return MODELS.get(self.base, "digits")

    def cell_of(self, bit: int) -> str:
        """The name of the cell of one bit, in a campaign whose trials take bits in turn."""
        return f"{self.stem}-{bit}"


def bit_cells() -> list[Cell]:
    """One flip in one bit of one role. The first finding."""
    return [Cell(f"bit-{role}-{bit}", 100, selection, bits=str(bit))
            for role, selection in ROLES.items() for bit in BITS]  # fmt: skip


def bit_campaigns() -> list[Cell]:
    """The campaigns of bit_cells()."""
    parts = [BITS[first : first + 8] for first in BITS[::8]]
    return [Cell(f"bit-{role}.{bits[0]}-{bits[-1]}", 100 * len(bits), selection, turns=bits)
            for role, selection in ROLES.items() for bits in parts]  # fmt: skip


def count_cells() -> list[Cell]:
    """More and more flips in weights, with the crucial bit and without. The first finding."""
    return [Cell(f"count-{count}-{'all' if bits == 'all' else 'others'}", 385, WEIGHTS, count, bits)
            for count in COUNTS for bits in ("all", OTHERS)]  # fmt: skip


PART = 77  # trials of a part, a fifth of the smaller cells with ranks
PAIRED = {"selection": MODEL, "flips": 10, "plans": "pairs", "keeps_state": True}
CONVERTED = PAIRED | {"keeps_state": False}  # layers have other shapes there
DDP, HOROVOD = Job("ddp", 4), Job("horovod", 4)
SILENT, DIVIDED = Job("ddp", 4, ("--no-broadcast",)), Job("horovod", 4, ("--divide-first",))


def pair_cells() -> list[Cell]:
    """The same plans with DDP and with Horovod. The second and the third finding, and what may
    cause a difference."""
    jobs = {"ddp-2": (100, Job("ddp", 2)), "horovod-2": (100, Job("horovod", 2)),
            "ddp-4": (1068, DDP), "horovod-4": (1068, HOROVOD), "ddp-4-silent": (385, SILENT),
            "horovod-4-divided": (385, DIVIDED)}  # fmt: skip
    return [Cell(name, trials, job=job, **PAIRED) for name, (trials, job) in jobs.items()]


def pipeline_cells() -> list[Cell]:
    """The same plans in one process and in a pipeline of two stages, with four micro-batches and
    with one."""
    whole = Job("pipeline", 2, ("--microbatches", "1"))
    return [Cell("alone", 385, **PAIRED),
            Cell("pipeline-2", 385, job=Job("pipeline", 2), **PAIRED),
            Cell("pipeline-2-whole", 100, job=whole, **PAIRED)]  # fmt: skip


def framework_cells() -> list[Cell]:
    """The plans of pipeline_cells(), in the same checkpoint, which was converted for other
    frameworks."""
    return [Cell(name, 385, job=Job(framework=name), **CONVERTED) for name in ("keras", "chainer")]


def pair_campaigns() -> list[Cell]:
    """The campaigns of pair_cells(): equal parts of different cells flip the same bits."""
    return [replace(cell, name=f"{cell.name}.{part}", plans=f"{cell.plans}.{part}",
                    trials=min(PART, cell.trials - first))
            for cell in pair_cells()
            for part, first in enumerate(range(0, cell.trials, PART))]  # fmt: skip


def role_cells() -> list[Cell]:
    """Ten flips in the model or in one part of the optimizer. The fourth finding."""
    moments = {"m": ("--tensors", "optimizer.state.*.exp_avg"),
               "v": ("--tensors", "optimizer.state.*.exp_avg_sq")}  # fmt: skip
    cells = [Cell("role-sgd-weights", 1068, WEIGHTS, 10),
             Cell("role-sgd-momentum", 1068, MOMENTUM, 10),
             Cell("role-adam-weights", 1068, WEIGHTS, 10, base="adam")]  # fmt: skip
    return cells + [Cell(f"role-adam-{name}", 1068, selection, 10, base="adam")
                    for name, selection in moments.items()]  # fmt: skip


def further_cells() -> list[Cell]:
    """What else may change the rate of harm."""
    cells = [Cell(f"layer-{layer}", 385, ("--tensors", f"model.{layer}"), 10) for layer in LAYERS]
    cells += [Cell(f"{kind}-{base}", 385, WEIGHTS, 10, base=base)
              for kind, bases in (("moment", ("sgd-early", "sgd-late")), ("precision", WIDTHS))
              for base in bases]  # fmt: skip
    everything = ("--tensors", "model")  # also BatchNorm's counters, which MODEL leaves out
    cells += [Cell("sampling-bits", 385, everything, 10),
              Cell("sampling-legacy", 385, (*everything, "--sampling", "legacy"), 10)]  # fmt: skip
    return cells


def crucial_cells() -> list[Cell]:
    """One flip of the crucial bit in one layer, with BatchNorm after the convolutions and without."""
    return [Cell(name, 200, ("--tensors", f"model.{name.rpartition('-')[2]}.weight"),
                 bits=str(CRUCIAL), base="sgd-plain" if "plain" in name else "sgd")
            for name in CRUCIAL_LAYERS]  # fmt: skip


def all_cells() -> list[Cell]:
    return [*bit_cells(), *pair_cells(), *whole_cells()]


def all_campaigns() -> list[Cell]:
    return [*bit_campaigns(), *pair_campaigns(), *whole_cells()]


def whole_cells() -> list[Cell]:
    """The cells that are one campaign each."""
    return [*count_cells(), *crucial_cells(), *pipeline_cells(), *framework_cells(),
            *role_cells(), *further_cells()]  # fmt: skip
