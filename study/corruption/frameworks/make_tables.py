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


class KerasNames:
    """The names that Keras gives layers in a file: by kind, numbered in the order of the model."""

    KINDS = {"conv": "conv2d", "norm": "batch_normalization", "linear": "dense"}

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def next(self, kind: str) -> str:
        number = self._counts.get(kind, 0)
        self._counts[kind] = number + 1
        return f"layers/{self.KINDS[kind]}" + (f"_{number}" if number else "")


def resnet50() -> list[Layer]:
    """torchvision's resnet50, keras.applications.ResNet50, Chainer's ResNet50Layers. Keras and Chainer also have biases of
    convolutions that torchvision does not have; they are in no table."""
    names, layers = KerasNames(), []

    def add(torch: tuple[str, str], chainer: tuple[str, str], *shape: int) -> None:
        for kind, name, other in zip(("conv", "norm"), torch, chainer):
            layers.append(Layer(kind, name, names.next(kind), other,
                                shape if kind == "conv" else shape[:1], bias=kind == "norm"))

    add(("conv1", "bn1"), ("conv1", "bn1"), 64, 3, 7, 7)
    before = 64
    for stage, blocks in enumerate((3, 4, 6, 3), 1):
        inner = 32 * 2**stage
        for block in range(blocks):
            torch = f"layer{stage}.{block}"
            chainer = f"res{stage + 1}/{f'b{block}' if block else 'a'}"
            shapes = {1: (inner, before, 1, 1), 2: (inner, inner, 3, 3), 3: (4 * inner, inner, 1, 1)}
            for number, shape in shapes.items():
                if number == 3 and block == 0:  # Keras has the shortcut before the third one
                    add((f"{torch}.downsample.0", f"{torch}.downsample.1"),
                        (f"{chainer}/conv4", f"{chainer}/bn4"), 4 * inner, before, 1, 1)
                add((f"{torch}.conv{number}", f"{torch}.bn{number}"),
                    (f"{chainer}/conv{number}", f"{chainer}/bn{number}"), *shape)
            before = 4 * inner
    return [*layers, Layer("linear", "fc", names.next("linear"), "fc6", (1000, 2048))]


def vgg16() -> list[Layer]:
    """torchvision's vgg16, keras.applications.VGG16, Chainer's VGG16Layers."""
    names, layers = KerasNames(), []
    channels, place = 3, 0  # torchvision counts ReLU and pooling, too
    for block, (count, wide) in enumerate(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)), 1):
        for number in range(1, count + 1):
            layers.append(Layer("conv", f"features.{place}", names.next("conv"),
                                f"conv{block}_{number}", (wide, channels, 3, 3)))  # fmt: skip
            channels, place = wide, place + 2
        place += 1
    rows = ((0, 6, (4096, 25088), (512, 7, 7)), (3, 7, (4096, 4096), ()), (6, 8, (1000, 4096), ()))
    return layers + [Layer("linear", f"classifier.{place}", names.next("linear"), f"fc{number}",
                           shape, picture=picture)
                     for place, number, shape, picture in rows]  # fmt: skip


MODELS = {"digits": digits, "resnet50": resnet50, "vgg16": vgg16}
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
