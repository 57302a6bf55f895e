"""The shapes that operations on DTensors make, remembered over changes of the configuration.

For each new operation on DTensors, torch makes it once with tensors that have no memory, to learn the shape, the
strides and the dtype of its result, and then chooses how to cut that over the mesh. The first takes longer, about
a millisecond, and the steps behind a change have hundreds of new operations: all that torch has found out for the
old mesh is forgotten (kept_groups.py). But the whole tensors of an operation are the same on any mesh, and so is
what it makes of them. Only how it is cut has to be found anew. A worker that joins hears of them from the others.
"""

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_MOST = 2000  # operations; a program whose shapes change all the time has no use for them
_PLAIN = (int, bool, str, type(None))
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch._ops.OpOverload)

_known: dict[Any, Any] = {}  # the results by operation and arguments, which are plain values
_is_installed = False


def install() -> None:
    """Called once in a worker of an elastic job."""
    global _is_installed
    propagator = DTensor._op_dispatcher.sharding_propagator
    find = getattr(propagator, "_propagate_tensor_meta_non_cached", None)
    if find is None or _is_installed:  # in another version of torch, the steps behind a change take longer
        return

    def find_once(schema: Any) -> Any:
        try:
            key = None if _is_traced() else _key_of(schema)
        except (AttributeError, TypeError):
            key = None
        if key is None:
            return find(schema)
        if key not in _known:
            _note(key, find(schema))
        return _known[key]

    propagator._propagate_tensor_meta_non_cached = find_once
    _is_installed = True


def tell() -> list[Any]:
    """All operations with one result, as plain values."""
    return [(key, *_plain_meta(result)) for key, result in list(_known.items()) if isinstance(result, TensorMeta)]


def learn(told: list[Any]) -> None:
    """Notes what another worker has told."""
    for key, shape, stride, dtype in told:
        _note(key, TensorMeta(torch.Size(shape), stride, getattr(torch, dtype)))


def _note(key: Any, result: Any) -> None:
    if len(_known) >= _MOST:
        _known.clear()
    _known[key] = result


def _is_traced() -> bool:
    """True if the shapes may be symbols that are valid only for now."""
    return torch.compiler.is_compiling() or bool(_get_current_dispatch_mode_stack())


def _key_of(schema: Any) -> Any:
    """What the result of an operation depends on. TypeError if that is not known."""
    return (str(schema.op), tuple(_plain(one, is_part=False) for one in schema.args_schema),
            tuple((name, _plain(one, is_part=False)) for name, one in sorted(schema.kwargs_schema.items())),
            _plain(schema._comparison_key, is_part=True))


def _plain(one: Any, *, is_part: bool) -> Any:
    """A value that does not name a mesh. A number like a learning rate, which differs in each step, counts
    only if torch compares it, too."""
    if isinstance(one, DTensorSpec):
        return one.mesh.device_type, *_plain_meta(one.tensor_meta)
    if isinstance(one, (tuple, list)):
        return tuple(_plain(inside, is_part=True) for inside in one)
    if type(one) is float:
        return ("float", one) if is_part else "float"
    if type(one) in _PLAIN:
        return type(one).__name__, one
    if isinstance(one, _NAMED):
        return type(one).__name__, str(one)
    raise TypeError(f"{type(one).__name__}: not a plain value")


def _plain_meta(one: TensorMeta) -> tuple[Any, ...]:
    return tuple(one.shape), tuple(one.stride), str(one.dtype).removeprefix("torch.")
