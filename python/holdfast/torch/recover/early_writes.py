"""Writes to parameters before the update of a step, which no hook of an optimizer tells of.

An update by hand (p -= lr * p.grad), a momentum encoder and a codebook write to parameters in the
step itself. A step that is made again would write twice. torch counts writes to a tensor, so that
versions at the beginning of a step and at its gate tell which ones were written to. It counts none
through `.data`, so an element of each tensor is kept at the beginning and compared at the gate. To read
elements of a GPU, a step would have to wait for it: after the first steps they are compared only if the
step is to be made again. A tensor that was seen to be written to is copied at the beginning of each
later step.
"""

import logging
from collections.abc import Callable, Collection, Mapping

import torch

from holdfast.torch.loop.kept_elements import KeptElements
from holdfast.torch.recover.buffers_before_step import local_of
from holdfast.torch.state.change_detection import TensorVersions
from holdfast.torch.values.dotted_names import name_a_few

_log = logging.getLogger("holdfast")

_MOST = 1 << 30  # bytes of all copies
_LOOKED_AT = 4  # steps that wait for a GPU, to compare an element of each tensor


class EarlyWrites:
    """The parameters, and large tensors of objects, at the beginning of the newest step."""

    def __init__(self, parameters: Callable[[], Mapping[str, torch.Tensor]], written: list[str], *,
                 speaks: bool) -> None:
        """`written` gets the names of tensors that were seen to be written to; a replacement has those
        of the other ranks. `speaks` is true on the one rank that tells what was found."""
        self._find_parameters, self._speaks = parameters, speaks
        self._named: dict[str, torch.Tensor] = {}
        self._others: dict[str, torch.Tensor] = {}
        self._steps = 0
        self._versions, self._since = TensorVersions({}), list[int]()
        self._elements, self._addresses = KeptElements({}), list[int]()  # and those of self._others
        self._written = written
        self._copies: dict[str, torch.Tensor] = {}

    def forget(self) -> None:
        """Parameters may have been replaced."""
        self._named = {}

    def keep(self, others: Mapping[str, torch.Tensor]) -> None:
        """Keeps what tells of writes from now on; `others` are tensors that are no parameters."""
        if not self._named:
            self._named = dict(self._find_parameters())
            self._steps = 0
        self._others = dict(others)
        if others or not self._steps:
            self._versions = TensorVersions({**self._named, **others})
        self._since = self._versions.now()
        self._keep_elements()
        self._copy()

    def _keep_elements(self) -> None:
        addresses = [local_of(one).data_ptr() for one in self._others.values()]
        if not self._steps or addresses != self._addresses:
            watched = {**self._named, **self._others}
            self._elements = KeptElements(watched, at_once=len(watched) or 1)
        self._addresses = addresses
        self._elements.keep()

    def _copy(self) -> None:
        if not self._written:
            return
        found = {name: self._live(name) for name in self._written}
        live = {name: local_of(one) for name, one in found.items() if one is not None}
        with torch.no_grad():
            self._copies = {name: one.clone() for name, one in live.items()} if _fits(live) else {}

    def changed(self, *, may_wait: bool = True) -> list[str]:
        """The tensors that were written to since keep(). `may_wait` if a look at a GPU may wait for it."""
        found = self._versions.changed(self._since)
        if (may_wait or self._elements.are_on_host) and not self._elements.is_unchanged():
            found += [name for name in self._elements.changed() if name not in found]
        return found

    def look(self, function: str) -> bool:
        """At the gate of a step: copies from now on what the step has written to. True if it has."""
        self._steps += 1
        changed = self.changed(may_wait=self._steps <= _LOOKED_AT)
        found = [name for name in changed if name not in self._written]
        if not found:
            return bool(changed)
        self._written += found
        if self._speaks:
            live = {name: one for name in self._written if (one := self._live(name)) is not None}
            size = sum(one.nbytes for one in live.values())
            then = ("a copy is kept from now on" if _fits(live) else
                    f"their {size >> 20} MiB are too many for a copy, so all ranks start again from "
                    "a checkpoint if a rank dies in such a step")
            _log.warning("ck.run(%s) writes to %s before an update of an optimizer, which a step "
                         "that is made again would do twice: %s", function, name_a_few(found), then)
        return True

    def restore(self, but: Collection[str] = ()) -> str:
        """Puts back what has a copy. Returns the reason if something else was written to, or "".

        The parameters `but` are as they were already.
        """
        missing = [name for name in self.changed() if name not in self._copies and name not in but]
        if missing:
            return f"the step had written to {name_a_few(missing)}, of which there was no copy"
        with torch.no_grad():
            for name, copy in self._copies.items():
                if (live := self._live(name)) is not None:
                    local_of(live).copy_(copy)
        return ""

    def _live(self, name: str) -> torch.Tensor | None:
        return self._named.get(name, self._others.get(name))


def _fits(tensors: Mapping[str, torch.Tensor]) -> bool:
    return sum(one.nbytes for one in tensors.values()) <= _MOST
