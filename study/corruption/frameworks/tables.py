"""Where the tensors of a PyTorch checkpoint lie in the files of other frameworks.

A table is a JSON file beside this one. It has a line for each tensor of the PyTorch file:

    "model.fc.weight": {"name": "layers/dense/vars/0", "shape": [10, 16, 4, 4], "axes": [2, 3, 1, 0],
                        "stored": [256, 10]}

`shape` is how the elements of the PyTorch tensor are counted, `axes` is the order in which the other
framework counts them, and `stored` is the shape that the file gives them, unless it follows from
both. Without `axes` the order is the same. NumPy alone is needed, so every framework can use it.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in the other file, and in which order."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    stored: tuple[int, ...]

    def convert(self, tensor: np.ndarray) -> np.ndarray:
        """The tensor of PyTorch as the other framework stores it. Every bit of an element stays."""
        ordered = tensor.reshape(self.shape).transpose(self.axes)
        return np.ascontiguousarray(ordered).reshape(self.stored)

    def move(self, element: int) -> int:
        """The number that an element of PyTorch's tensor has in the other file."""
        index = np.unravel_index(element, self.shape)
        shape = tuple(self.shape[axis] for axis in self.axes)
        return int(np.ravel_multi_index(tuple(index[axis] for axis in self.axes), shape))


Table = dict[str, Place]


def read_table(name: str) -> Table:
    """A table by the name of its file, such as "digits.keras"."""
    given = json.loads((FOLDER / f"{name}.json").read_text())
    return {tensor: read_place(tensor, place) for tensor, place in given.items()}


def read_place(tensor: str, given: dict[str, Any]) -> Place:
    shape = tuple(given["shape"])
    axes = tuple(given.get("axes", range(len(shape))))
    if sorted(axes) != list(range(len(shape))):
        raise ValueError(f"{tensor}: axes are {list(axes)}; expected an order of {len(shape)} axes")
    stored = tuple(given.get("stored", [shape[axis] for axis in axes]))
    if math.prod(stored) != math.prod(shape):
        raise ValueError(f"{tensor}: stored is {list(stored)}; expected {math.prod(shape)} elements")
    return Place(given["name"], shape, axes, stored)


def translate(plan: dict[str, Any], table: Table) -> dict[str, Any]:
    """A flip plan of the PyTorch file as a plan of the other file: the same bits of the same
    numbers. ValueError if the other file does not have a tensor of the plan."""
    if plan.get("bytes"):
        raise ValueError("plan: has flips of bytes of the file; expected flips of tensors only")
    return plan | {"flips": [translate_flip(flip, table) for flip in plan["flips"]]}


def translate_flip(flip: dict[str, Any], table: Table) -> dict[str, Any]:
    place = table.get(flip["tensor"])
    if place is None:
        raise ValueError(f"plan: flips a bit of {flip['tensor']}; expected one of "
                         f"{', '.join(table)}")  # fmt: skip
    element = place.move(flip["element"])
    index = [int(each) for each in np.unravel_index(element, place.stored)]
    return flip | {"tensor": place.name, "element": element, "index": index}
