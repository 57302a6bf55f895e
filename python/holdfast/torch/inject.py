"""Flips bits of live tensors by a plan: holdfast.inject, and holdfast.flip_plan, which makes plans.

A flip is written past torch's version counter, as a fault of the memory would be.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from holdfast import _native
from holdfast.arrays import describe_one
from holdfast.errors import ConflictError, NotFoundError
from holdfast.torch.checkpointer import Checkpointer
from holdfast.torch.state.piece import Piece
from holdfast.torch.state.tensor_state import Models, Optimizers, TensorState
from holdfast.torch.values.dtypes import torch_dtype

Plan = Mapping[str, Any] | str | PathLike[str]
Target = Models | Checkpointer

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def inject(target: Target, plan: Plan, *, optimizer: Optimizers | None = None,
           at_step: int | None = None) -> "Injection":
    """Flips the bits of a plan in live tensors, on the CPU or a GPU.

        >>> plan = holdfast.flip_plan(model, tensors=["model.*"], flips=1, seed=7)
        >>> done = holdfast.inject(model, plan)
        >>> done.undo()

    `target` is a Checkpointer, or a model with its `optimizer`. The plan is a file that `holdfast
    inject --save-plan` or `--json` has written, or its contents as a dict. Names are those that a
    Checkpointer's steps have: "model.conv1.weight", "optimizer.conv1.weight.exp_avg". A rank that
    holds a part of a tensor changes the elements of its part.

    Without `at_step` the bits flip now. With it they flip once that step is done: at the end of
    Checkpointer.step(at_step), or, for a model, after the update number `at_step` of an optimizer
    with its parameters, counted from 0 from now on.

    Before anything changes: NotFoundError for an unknown tensor, ConflictError if a tensor has
    another dtype or too few elements, or an element has other bits than before the plan.
    """
    flips = _read(plan)
    find = _finder(target, optimizer)
    injection = Injection(flips, find)
    if at_step is None:
        injection.strike()
        return injection
    if isinstance(at_step, bool) or not isinstance(at_step, int) or at_step < 0:
        raise ValueError(f"at_step={at_step!r}; expected a whole number, 0 or more")
    # The slots of an optimizer may not exist before its first step.
    _check_known([flip for flip in flips if not flip.tensor.startswith("optimizer.")], find())
    if isinstance(target, Checkpointer):
        target.step_calls.add(at_step, injection.strike)
    else:
        _after_update(at_step, injection, find)
    return injection


def flip_plan(target: Target, *, optimizer: Optimizers | None = None,
              tensors: Sequence[str] = (), roles: Sequence[str] = (), layers: Sequence[str] = (),
              bits: str = "all", flips: int = 1, rate: float | None = None, seed: int = 0,
              trial: int = 0, finite: str = "any") -> dict[str, Any]:
    """A plan for inject(), chosen by a seed among the bits of live tensors, which it only reads.

    The options are those of `holdfast inject`, and so is the plan: json.dump() makes a file of it
    that `holdfast inject --plan` takes for a checkpoint of the same values.
    """
    if rate is not None and flips != 1:
        raise ValueError("rate and flips: both are given; expected one of them")
    pieces = [_native.Piece(describe_one(piece.name, piece.tensor, piece.aliases),
                            list(piece.shape), piece.box, False, piece.role, piece.of)
              for piece in {id(one): one for one in _finder(target, optimizer)().values()}.values()]
    request = {"tensors": _texts("tensors", tensors), "roles": _texts("roles", roles),
               "layers": _texts("layers", layers), "bits": bits, "flips": flips, "rate": rate,
               "seed": seed, "trial": trial, "finite": finite}
    made: dict[str, Any] = json.loads(_native.make_flip_plan(_native.Pieces(pieces), request))
    return made


class Injection:
    """Flips of live tensors, before or after they were made."""

    def __init__(self, flips: list[_native.PlannedFlip],
                 find: Callable[[], Mapping[str, Piece]]) -> None:
        self.flips = flips
        self.is_done = False
        self._find = find
        self._struck: list[tuple[Piece, _native.PlannedFlip]] = []

    def strike(self) -> None:
        """Makes the flips, all of them or none."""
        pieces = self._find()
        _check_known(self.flips, pieces)
        mine = [(pieces[flip.tensor], flip) for flip in self.flips]
        mine = [(piece, flip) for piece, flip in mine if _place_in(piece, flip) is not None]
        _check_bits([(piece, flip, flip.before) for piece, flip in mine])
        for piece, flip in mine:
            _write(_element(piece, flip), flip.after)
        self._struck, self.is_done = mine, True

    def undo(self) -> None:
        """Makes the elements what they were. ConflictError, and no change, if they differ now."""
        _check_bits([(piece, flip, flip.after) for piece, flip in self._struck])
        for piece, flip in self._struck:
            _write(_element(piece, flip), flip.before)
        self._struck, self.is_done = [], False

    def __str__(self) -> str:
        return "\n".join(map(str, self.flips))


def _read(plan: Plan) -> list[_native.PlannedFlip]:
    if isinstance(plan, Mapping):
        return _native.decode_flip_plan(json.dumps(plan), "plan")
    return _native.decode_flip_plan(Path(plan).read_text(encoding="utf-8"), fspath(plan))


def _finder(target: Target, optimizer: Optimizers | None) -> Callable[[], Mapping[str, Piece]]:
    """A function that returns the pieces as they are when it is called, by names and aliases."""
    if isinstance(target, Checkpointer):
        if optimizer is not None:
            raise ValueError("optimizer= with a Checkpointer, which has its own; expected one")
        find: Callable[[], Any] = target.pieces
    else:
        find = TensorState(target, optimizer).pieces
    return lambda: {name: piece for piece in find() for name in (piece.name, *piece.aliases)}


def _after_update(number: int, injection: Injection,
                  find: Callable[[], Mapping[str, Piece]]) -> None:
    """Strikes after the update of that number of an optimizer that has some of the parameters."""
    parameters = {id(piece.outer) for piece in find().values() if piece.kind == "parameter"}
    left = [number]

    def count(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not any(id(one) in parameters for group in optimizer.param_groups
                   for one in group["params"][:1]):
            return
        left[0] -= 1
        if left[0] < 0:
            hook.remove()
            injection.strike()

    hook = register_optimizer_step_post_hook(count)


def _texts(name: str, values: Sequence[str]) -> list[str]:
    if isinstance(values, str) or not all(isinstance(one, str) for one in values):
        raise TypeError(f"{name}={values!r}; expected a list of texts")
    return list(values)


def _check_known(flips: Sequence[_native.PlannedFlip], pieces: Mapping[str, Piece]) -> None:
    seen: set[tuple[int, int]] = set()
    for flip in flips:
        if flip.tensor not in pieces:
            raise NotFoundError(f'tensor "{flip.tensor}": no such tensor; expected one such as '
                                f'"{next(iter(pieces), "")}"')
        # Names of the same tensor have the same piece.
        place = id(pieces[flip.tensor]), flip.element
        if place in seen:
            raise ValueError(f"{flip.tensor}: element {flip.element} is in the plan twice; "
                             "expected each element once")
        seen.add(place)


def _index(piece: Piece, flip: _native.PlannedFlip) -> list[int]:
    """The index of the element in the whole tensor; ConflictError if there is no such element."""
    left, index = flip.element, []
    for size in reversed(piece.shape):
        index.append(left % size if size else 0)
        left //= max(size, 1)
    if left != 0 or 0 in piece.shape or flip.element < 0:
        raise ConflictError(f"{flip.tensor}: has the shape {list(piece.shape)}; expected an "
                            f"element {flip.element}")
    if piece.tensor.dtype != torch_dtype(flip.dtype):
        raise ConflictError(f"{flip.tensor}: is {piece.tensor.dtype}; expected {flip.dtype.name}, "
                            "as the plan says")
    return index[::-1]


def _place_in(piece: Piece, flip: _native.PlannedFlip) -> tuple[int, ...] | None:
    """The index of the element in this rank's tensor; None if another rank holds it."""
    place = [at - lo for at, (lo, _) in zip(_index(piece, flip), piece.box.extents, strict=True)]
    sizes = piece.tensor.shape
    return tuple(place) if all(0 <= at < n for at, n in zip(place, sizes, strict=True)) else None


def _element(piece: Piece, flip: _native.PlannedFlip) -> torch.Tensor:
    """The element as integers, in the memory of the tensor. Writes to it are not counted."""
    one = piece.tensor.data[_place_in(piece, flip) or ()]
    if one.is_complex():
        one = torch.view_as_real(one)
    return one.view(_INTEGERS[one.element_size()]).view(-1)


def _read_bits(element: torch.Tensor) -> bytes:
    return element.cpu().numpy().tobytes()


def _write(element: torch.Tensor, bits: bytes) -> None:
    element.copy_(torch.frombuffer(bytearray(bits), dtype=element.dtype))


def _check_bits(wanted: Sequence[tuple[Piece, _native.PlannedFlip, bytes]]) -> None:
    for piece, flip, bits in wanted:
        found = _read_bits(_element(piece, flip))
        if found != bits:
            raise ConflictError(f"{flip.tensor} {_index(piece, flip)}: has the bits "
                                f"{found[::-1].hex()}; expected {bits[::-1].hex()}")
