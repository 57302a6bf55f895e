"""A tensor of this process as a piece of a whole one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from holdfast import Box
from holdfast.torch.values.boxes import Copies, Part, Rule, check_plain, local_of, part_of, rule_for


@dataclass(frozen=True)
class Piece:
    """A named tensor of this process: which box it is of the whole, and its memory."""

    name: str
    tensor: torch.Tensor = field(repr=False)  # what is held here, detached, the same memory
    shape: tuple[int, ...]  # of the whole
    box: Box
    kind: Literal["parameter", "buffer", "slot", "object"]
    copies: Copies = "equal"  # what ranks with the same box hold; boxes.Part says more
    at_once: bool = False  # to be copied inside save(): it may change before the next step
    aliases: tuple[str, ...] = ()  # other names of the whole tensor
    outer: torch.Tensor | None = field(default=None, repr=False)  # whose _version counts


def piece_of(name: str, tensor: torch.Tensor, rules: Mapping[str, Rule]) -> Piece | None:
    """The piece of a tensor that is no parameter, buffer or slot (an EMA's, say).

    None if this rank holds nothing of it. TypeError or ValueError name what is refused.
    """
    check_plain(tensor, name)
    part = part_of(tensor, name, rule_for(name, rules))
    return None if part is None else make_piece(name, tensor, part, "object")


def make_piece(name: str, tensor: torch.Tensor, part: Part,
               kind: Literal["parameter", "buffer", "slot", "object"],
               aliases: tuple[str, ...] = ()) -> Piece:
    """The piece of a tensor of which this rank holds that part."""
    local = local_of(tensor)
    return Piece(name, local, part.shape, part.box, kind, part.copies,
                 kind == "buffer" or local.numel() <= 1, aliases, tensor)
