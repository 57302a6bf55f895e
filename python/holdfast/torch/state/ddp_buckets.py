"""The order of DDP's gradient buckets, without which a resumed run differs in bits.

DDP adds up gradients in buckets, and the place of an element in its bucket decides the order in
which ranks are added; on three or more ranks that changes bits. The first backward pass of a DDP
object uses buckets in the order of declaration. Then DDP rebuilds them, once, in the order in
which gradients became ready. A resumed job has a new DDP object, which would use the first kind
of buckets for one more pass. So:

  1. A checkpoint keeps the order: as DDP logs it, or, in the first three steps, before DDP logs
     it, as hooks of our own have seen it in the first pass that reduces.
  2. On resume, every rank of the group makes gradients of zeros ready in that order and has DDP
     rebuild its buckets, which is what the second pass would have done.
  3. If steps may be made again (recover/), DDP rebuilds its buckets at the end of the step with its
     first pass, and not in the next one.

With static_graph=True, DDP makes one more pass before, which only counts hooks.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.torch.state.module_names import by_key, entries_of, find_wrappers
from holdfast.torch.values.dotted_names import join


class BucketOrders:
    """The bucket orders of all DDP modules inside a model; made before the first step."""

    def __init__(self, models: Any) -> None:
        """`models` is a module, a list of stages, or several by name."""
        self._orders = [(join(key, name), _BucketOrder(ddp)) for key, model in by_key(models)
                        for name, ddp in find_wrappers(model).items()]

    def __len__(self) -> int:
        return len(self._orders)

    def state(self) -> list[tuple[str, list[str] | None]]:
        """(DDP module, names of its parameters in bucket order, or None if not known yet).

        Rank 0's order counts: DDP itself has the other ranks follow it.
        """
        return [(name, order.names()) for name, order in self._orders]

    def restore(self, saved: Sequence[tuple[str, list[str] | None]]) -> list[str]:
        """Rebuilds the buckets in the saved orders, before the first step.

        A collective call of each module's group: all its ranks call it, with the same orders.
        Returns, with the reason, the modules whose order could not be set; the resumed run may
        then differ in bits.
        """
        left = list(saved)
        failed = []
        for name, order in self._orders:
            # Pipeline stages may share a name: compare parameters, then go by the order of stages.
            same = [item for item in left if item[0] == name and item[1] is not None]
            fitting = [item for item in same if order.fits(item[1])] or same
            if not fitting:
                continue
            left.remove(fitting[0])
            reason = order.restore(fitting[0][1])
            if reason:
                failed.append(f"{name or 'model'}: {reason}")
        return failed

    def sync_flags(self) -> list[bool]:
        """Whether the next forward pass of each module broadcasts its buffers.

        It does so after a pass that reduced gradients, and not inside no_sync(), where the pass
        before it was.
        """
        return [order.ddp.require_forward_param_sync for _, order in self._orders]

    def set_sync_flags(self, flags: Sequence[bool]) -> None:
        """Sets what sync_flags() returned, here or on a rank with the same modules."""
        for (_, order), flag in zip(self._orders, flags, strict=True):
            order.ddp.require_forward_param_sync = flag

    def settle(self) -> None:
        """Has DDP rebuild buckets now that it would rebuild at the next forward pass.

        For steps that may have to be made again: DDP rebuilds its buckets once, and would not do
        it again. A collective call, made by all ranks behind the same pass.
        """
        for _, order in self._orders:
            order.settle()

    def unsettled(self) -> list[str]:
        """The modules that have made gradients and will rebuild their buckets at a later pass."""
        return [name or "model" for name, order in self._orders if order.is_unsettled]

    def close(self) -> None:
        """Removes the hooks that are still there."""
        for _, order in self._orders:
            order.forget()


class _BucketOrder:
    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.ddp = ddp
        self._parameters = _reduced(ddp)
        self._sparse = _with_sparse_gradients(ddp)
        names = {id(entry.kept): entry.name for entry in entries_of(ddp)}
        self._names = [names[id(parameter)] for parameter in self._parameters]
        self._order: list[int] | None = None
        self._seen: list[int] = []
        self._wanted = len(self._parameters) * (2 if ddp.static_graph else 1)
        rebuilds = ddp.static_graph or not ddp.find_unused_parameters
        self._rebuilds = rebuilds and bool(self._parameters)
        self._hooks: list[Any] = []
        self._is_settled = False  # buckets were rebuilt behind a pass of this process
        if self._rebuilds:
            self._watch()

    def names(self) -> list[str] | None:
        order = self._known()
        return None if order is None else [self._names[index] for index in order]

    def fits(self, names: list[str]) -> bool:
        """True if these are the names of this module's parameters."""
        counted_only = self.ddp.static_graph and not names
        return counted_only or sorted(names) == sorted(self._names)

    def restore(self, names: list[str]) -> str | None:
        """Rebuilds the buckets. Returns why that was not possible, or None."""
        if not self._rebuilds:
            return None
        counted_only = self.ddp.static_graph and not names  # saved after its first pass
        if not self.fits(names):
            return "the saved bucket order is of other parameters"
        if any(hasattr(p, "_in_backward_optimizers") for p in self._parameters):
            return "its optimizer steps inside backward, so buckets are not rebuilt ahead"
        if (known := self._known()) is not None and [self._names[k] for k in known] == names:
            return None  # resume() went back to an earlier step of this process
        if any(p.grad is not None for p in self._parameters):
            return "it has gradients already; expected resume() before the first step"
        self.forget()
        index = {name: k for k, name in enumerate(self._names)}
        order = [index[name] for name in names]
        if self.ddp.static_graph:
            self._count_hooks()
        if counted_only:  # the next pass will decide the order
            self._seen = list(range(len(self._parameters)))
            self._watch()
            return None
        self._replay(order)
        if not self.ddp.reducer._rebuild_buckets():
            return "DDP had its buckets rebuilt already"
        self._order = order
        return None

    @property
    def is_unsettled(self) -> bool:
        """True between the first gradients and the rebuilding of the buckets."""
        return not self._is_settled and self._order is None and bool(self._seen)

    def settle(self) -> None:
        """Rebuilds the buckets, if DDP has seen the order of gradients; once."""
        if self.is_unsettled:
            is_rebuilt = self.ddp.reducer._rebuild_buckets()
            self._is_settled = is_rebuilt or len(self._seen) >= self._wanted

    def forget(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _watch(self) -> None:
        self._hooks = [p.register_post_accumulate_grad_hook(self._hook(index))
                       for index, p in enumerate(self._parameters)]

    def _replay(self, order: Iterable[int]) -> None:
        """Makes a backward pass of zeros in which gradients become ready in that order."""
        reducer = self.ddp.reducer
        reducer.prepare_for_forward()
        reducer.prepare_for_backward([])
        try:
            with torch.enable_grad():
                for index in order:
                    torch.autograd.backward(_zero_loss(self._parameters[index], self._sparse))
            if self.ddp.static_graph and not self.ddp._static_graph_delay_allreduce_enqueued:
                reducer._delay_all_reduce()
                self.ddp._static_graph_delay_allreduce_enqueued = True
        finally:
            for parameter in self._parameters:
                parameter.grad = None

    def _count_hooks(self) -> None:
        self._replay(range(len(self._parameters)))

    def _known(self) -> list[int] | None:
        if self._order is None and self._rebuilds:
            # A static graph is trusted only if it was seen to use each parameter once.
            self._order = self._counted() if self.ddp.static_graph else self._told()
        if self._order is not None:
            self.forget()
            return self._order
        if not self._rebuilds or sorted(self._seen) != list(range(len(self._parameters))):
            return None
        return [] if self.ddp.static_graph else list(self._seen)

    def _counted(self) -> list[int] | None:
        count = len(self._parameters)
        first, second = self._seen[:count], self._seen[count:]
        return second if sorted(first) == sorted(second) == list(range(count)) else None

    def _told(self) -> list[int] | None:
        data: Mapping[str, Any] = self.ddp._get_ddp_logging_data()
        words = data.get("rebuilt_per_bucket_param_indices", "")
        order = [int(word) for word in re.findall(r"\d+", words)]
        return order if sorted(order) == list(range(len(self._parameters))) else None

    def _hook(self, index: int) -> Any:
        def ready(_: torch.Tensor) -> None:
            if not self.ddp.require_backward_grad_sync:  # a pass that only accumulates
                return
            self._seen.append(index)
            if len(self._seen) == self._wanted:
                self.forget()

        return ready


def _reduced(ddp: DistributedDataParallel) -> list[nn.Parameter]:
    """The parameters that DDP reduces, in the order of its indices."""
    found: dict[int, nn.Parameter] = {}
    for prefix, module in ddp.module.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            ignored = f"{prefix}.{name}" in ddp.parameters_to_ignore
            if parameter.requires_grad and not ignored:
                found.setdefault(id(parameter), parameter)
    return list(found.values())


def _with_sparse_gradients(ddp: DistributedDataParallel) -> set[int]:
    """The ids of the parameters whose gradients DDP expects to be sparse, by its own rule."""
    return {id(module.weight) for module in ddp.module.modules()
            if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse}


def _zero_loss(parameter: nn.Parameter, sparse: set[int]) -> torch.Tensor:
    """A loss whose gradient for the parameter is zero, and sparse if DDP expects that."""
    if id(parameter) not in sparse:
        return (parameter * 0).sum()
    first = torch.zeros(1, dtype=torch.long, device=parameter.device)
    return (nn.functional.embedding(first, parameter, sparse=True) * 0).sum()
