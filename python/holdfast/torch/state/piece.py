"""One tensor of this process as a named piece of a whole tensor."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from holdfast import Box
from holdfast.torch.values.boxes import Copies, Part, Rule, check_plain, local_of, part_of, rule_for


@dataclass(frozen=True)
class Piece:
    """A named tensor of this process: which box of the whole tensor it is, and its memory."""

    name: str
    tensor: torch.Tensor = field(repr=False)  # what this process holds; detached, same memory
    shape: tuple[int, ...]  # the shape of the whole tensor
    box: Box
    kind: Literal["parameter", "buffer", "slot", "object"]
    copies: Copies = "equal"  # what ranks with the same box hold; boxes.Part says more
    at_once: bool = False  # save() copies it before it returns: it may change before the update
    aliases: tuple[str, ...] = ()  # other names of the whole tensor
    outer: torch.Tensor | None = field(default=None, repr=False)  # its _version counts writes
    of: str = ""  # the parameter that a slot belongs to

    @property
    def role(self) -> str:
        """What the tensor is for, in the words of `holdfast show --tensors`.

        A tensor of an object counts as a parameter: its name tells more.
        """
        is_count = self.shape == () and (self.kind == "slot" or
                                         not self.tensor.dtype.is_floating_point)
        if self.kind in ("buffer", "slot") and is_count:
            return "counter"
        return "parameter" if self.kind == "object" else self.kind


def piece_of(name: str, tensor: torch.Tensor, rules: Mapping[str, Rule]) -> Piece | None:
    """The piece of a tensor that is no parameter, buffer or slot (one of an EMA, say).

    None if this rank holds nothing of the tensor. TypeError or ValueError name a tensor that
    cannot be saved.
    """
    check_plain(tensor, name)
    part = part_of(tensor, name, rule_for(name, rules))
    return None if part is None else make_piece(name, tensor, part, "object")


def make_piece(name: str, tensor: torch.Tensor, part: Part,
               kind: Literal["parameter", "buffer", "slot", "object"],
               aliases: tuple[str, ...] = (), of: str = "") -> Piece:
    """The piece of a tensor of which this rank holds that part."""
    local = local_of(tensor)
    return Piece(name, local, part.shape, part.box, kind, part.copies,
                 kind == "buffer" or local.numel() <= 1, aliases, tensor, of)
