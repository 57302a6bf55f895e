"""The states that real trainings save, as arrays by name: four models, alone, with momentum, and with Adam's two means.

The shapes of ResNet50 and VGG16 are those of the study of flipped bits. What PyTorch counts beside them (the batches that
each BatchNorm has seen) belongs to the state.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from states import State, dtype_of

TABLES = Path(__file__).resolve().parents[1] / "corruption/frameworks"
MODELS = ("resnet50", "vgg16", "alexnet", "gpt2", "digits")  # the last one is tiny: that of examples/
TIMED = ("resnet50", "momentum")  # the state whose times are told
OPTIMIZERS = {"model": (), "momentum": ("momentum",), "adam": ("mean", "square")}  # what each keeps of a parameter
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of BatchNorm: no optimizer knows them

Shapes = dict[str, tuple[int, ...]]


def shapes_of(model: str) -> Shapes:
    """The tensors of a model. Names have no dots, because some formats give dots a meaning."""
    if model not in MODELS:
        raise ValueError(f"{model}: no such model; expected {', '.join(MODELS)}")
    found = dict(_gpt2() if model == "gpt2" else _alexnet() if model == "alexnet" else _from_table(model))
    return {name.replace(".", "_"): shape for name, shape in found.items()}


def _from_table(model: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, tensor in json.loads((TABLES / f"{model}.keras.json").read_text()).items():
        picture = tensor["shape"][1:] if "stored" in tensor else ()  # a linear layer behind a picture
        yield name, ((tensor["shape"][0], math.prod(picture)) if picture else tuple(tensor["shape"]))
        if name.endswith("running_var"):
            yield name.replace("running_var", "num_batches_tracked"), ()


def _alexnet() -> Iterator[tuple[str, tuple[int, ...]]]:
    layers = {"features.0": (64, 3, 11, 11), "features.3": (192, 64, 5, 5), "features.6": (384, 192, 3, 3),
              "features.8": (256, 384, 3, 3), "features.10": (256, 256, 3, 3), "classifier.1": (4096, 9216),
              "classifier.4": (4096, 4096), "classifier.6": (1000, 4096)}  # fmt: skip
    for name, shape in layers.items():
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[:1]


def _gpt2() -> Iterator[tuple[str, tuple[int, ...]]]:
    wide = 768
    yield from {"wte": (50257, wide), "wpe": (1024, wide), "ln_f.weight": (wide,), "ln_f.bias": (wide,)}.items()
    for layer in range(12):
        for name, out, into in (("attn.c_attn", 3 * wide, wide), ("attn.c_proj", wide, wide),
                                ("mlp.c_fc", 4 * wide, wide), ("mlp.c_proj", wide, 4 * wide)):  # fmt: skip
            yield f"h.{layer}.{name}.weight", (into, out)
            yield f"h.{layer}.{name}.bias", (out,)
        for name in ("ln_1", "ln_2"):
            yield f"h.{layer}.{name}.weight", (wide,)
            yield f"h.{layer}.{name}.bias", (wide,)


def shapes_with(model: str, optimizer: str) -> Shapes:
    """The tensors of a model and of an optimizer."""
    shapes = shapes_of(model)
    return shapes | {f"{kept}_{name}": shape for kept in OPTIMIZERS[optimizer]
                     for name, shape in shapes.items() if not name.endswith(STATISTICS)}  # fmt: skip


def make(model: str, optimizer: str) -> State:
    """A state with the values of a training: normal numbers, which compress as weights do."""
    return {name: _values(name, shape, seed) for seed, (name, shape) in enumerate(shapes_with(model, optimizer).items())}


def _values(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    if dtype_of(name) != np.float32:
        return np.full(shape, 1000, dtype_of(name))
    drawn = np.random.Generator(np.random.PCG64(seed)).standard_normal(shape, np.float32)
    return drawn * np.float32(0.02)


def bytes_of(state: State) -> int:
    return sum(array.nbytes for array in state.values())
