"""Writes the tables of names and axes beside this script.

    python study/corruption/frameworks/make_tables.py

The rules of each framework stand here once: PyTorch and Chainer keep the kernel of a convolution as
(out, in, height, width) and that of a linear layer as (out, in), Keras as (height, width, in, out)
and (in, out). Keras flattens (height, width, channel) and the others (channel, height, width), which
moves the inputs of a linear layer behind a convolution.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
NORM = ("weight", "bias", "running_mean", "running_var")
KERAS_NORM = (0, 1, 2, 3)  # gamma, beta, moving_mean, moving_variance
CHAINER_NORM = ("gamma", "beta", "avg_mean", "avg_var")

Line = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Layer:
    """A layer by its name in each framework. `shape` is that of PyTorch's weight."""

    kind: str  # conv, norm or linear
    torch: str
    keras: str
    chainer: str
    shape: tuple[int, ...]
    picture: tuple[int, ...] = ()  # of a linear layer: what is flattened before it
    bias: bool = True


def keras_lines(layer: Layer) -> Iterator[Line]:
    variable = (layer.keras + "/vars/{}").format
    if layer.kind == "norm":
        yield from ((f"{layer.torch}.{name}", {"name": variable(number), "shape": layer.shape})
                    for name, number in zip(NORM, KERAS_NORM))  # fmt: skip
        return
    weight: dict[str, Any] = {"name": variable(0), "shape": layer.shape}
    if layer.kind == "conv":
        weight["axes"] = (2, 3, 1, 0)
    elif layer.picture:
        weight |= {"shape": (layer.shape[0], *layer.picture), "axes": (2, 3, 1, 0),
                   "stored": layer.shape[::-1]}  # fmt: skip
    else:
        weight["axes"] = (1, 0)
    yield f"{layer.torch}.weight", weight
    if layer.bias:
        yield f"{layer.torch}.bias", {"name": variable(1), "shape": layer.shape[:1]}


def chainer_lines(layer: Layer) -> Iterator[Line]:
    names = dict(zip(NORM, CHAINER_NORM)) if layer.kind == "norm" else {"weight": "W", "bias": "b"}
    for name, other in names.items():
        if name == "bias" and not layer.bias:
            continue
        shape = layer.shape if name == "weight" else layer.shape[:1]
        yield f"{layer.torch}.{name}", {"name": f"{layer.chainer}/{other}", "shape": shape}


def digits() -> list[Layer]:
    """The model of examples/train_digits.py."""

    def layer(kind: str, name: str, keras: str, *shape: int, **more: Any) -> Layer:
        return Layer(kind, f"model.{name}", f"layers/{keras}", f"model/{name}", shape, **more)

    return [layer("conv", "conv1", "conv2d", 8, 1, 3, 3),
            layer("norm", "bn1", "batch_normalization", 8),
            layer("conv", "conv2", "conv2d_1", 16, 8, 3, 3),
            layer("norm", "bn2", "batch_normalization_1", 16),
            layer("linear", "fc", "dense", 10, 256, picture=(16, 4, 4))]  # fmt: skip


MODELS = {"digits": digits}
FRAMEWORKS = {"keras": keras_lines, "chainer": chainer_lines}


def table_text(model: str, framework: str) -> str:
    lines = [f" {json.dumps(name)}: {json.dumps(place)}"
             for layer in MODELS[model]() for name, place in FRAMEWORKS[framework](layer)]  # fmt: skip
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    for model in MODELS:
        for framework in FRAMEWORKS:
            (FOLDER / f"{model}.{framework}.json").write_text(table_text(model, framework))


if __name__ == "__main__":
    main()
