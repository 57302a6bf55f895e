"""Builds a model for a mesh by the function of the user: at first as it is, later without memory of its own.

A later build happens on torch's meta device, on which a module costs nothing, and then gets memory that
nobody has filled: every byte comes from the ranks that have it. So a rank needs memory only for its own
part, and the random generators are as they were.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from holdfast.resize.parallel import AXES, Parallel
from holdfast.torch.elastic.late_memory import LateMemory
from holdfast.torch.state.empty_like import empty_like
from holdfast.torch.state.module_names import by_key
from holdfast.torch.values import generators

Build = Callable[[DeviceMesh], Any]

_MOVES = {torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda}


def make_mesh(device: torch.device, parallel: Parallel) -> DeviceMesh:
    """The mesh of all ranks, with the axes pp, dp and tp."""
    return init_device_mesh(device.type, parallel.shape, mesh_dim_names=AXES)


def build(function: Build, mesh: DeviceMesh) -> dict[str, Any]:
    """What the function of the user makes: a model, or a dict with "model" and more."""
    made = function(mesh)
    parts = made if isinstance(made, dict) else {"model": made}
    if "model" not in parts:
        raise ValueError(f"build: returned a dict with {', '.join(map(repr, parts)) or 'nothing'}; "
                         'expected a model, or a dict with "model"')
    return parts


def build_empty(function: Build, mesh: DeviceMesh, device: torch.device, late: LateMemory) -> dict[str, Any]:
    """The same, with memory that nobody has filled, or later. Draws no random numbers.

    ValueError if a tensor that the function made has no memory: it is no parameter or buffer.
    """
    drawn = generators.capture()
    with _ddp_gets_memory(device, late), torch.device("meta"), _ExamplesHaveMemory():
        parts = build(function, mesh)
    generators.restore(drawn)
    for name, part in parts.items():
        for key, module in _modules_of(part):
            give_memory(module, device, late)
            _check_memory(f"{name}{'.' if key else ''}{key}", module)
    return parts


def give_memory(module: nn.Module, device: torch.device, late: LateMemory) -> None:
    """Gives all parameters and buffers on the meta device memory. Tied ones stay tied."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for child in module.modules():
        for name, parameter in child._parameters.items():
            if parameter is not None and parameter.is_meta:
                places.setdefault(id(parameter), []).append((child, name))
    if not places and not any(one.is_meta for one in module.buffers()):
        return
    module._apply(lambda one: late.take_from(empty_like(one, device=device)) if one.is_meta else one)
    for (child, name), *others in places.values():
        for other, same in others:
            other._parameters[same] = child._parameters[name]


def refuse_calls(model: Any) -> None:
    """A model of an earlier configuration raises a sentence when it is called."""
    def refuse(*_: Any) -> None:
        raise RuntimeError("this model is that of an earlier configuration of the job; expected job.model "
                           "in each step")

    for _, module in by_key(model):
        module.register_forward_pre_hook(refuse, prepend=True)  # FSDP's would call other ranks


def _modules_of(part: Any) -> list[tuple[str, nn.Module]]:
    several = isinstance(part, (list, tuple, dict))
    return [(key, one) for key, one in by_key(part if several else [part]) if isinstance(one, nn.Module)]


def _check_memory(name: str, module: nn.Module) -> None:
    for path, child in module.named_modules():
        held = {**child._parameters, **child._buffers, **vars(child)}
        for key, one in held.items():
            if isinstance(one, torch.Tensor) and one.is_meta:
                raise ValueError(f"{'.'.join(filter(None, (name, path, key)))}: a tensor that is no parameter "
                                 "and no buffer, so that nobody can fill it; expected register_buffer()")


class _ExamplesHaveMemory(TorchFunctionMode):
    """Lets a build move tensors to a device, such as the examples that a pipeline stage is made with.

    A parameter stays on the meta device, and gets its memory when it is cut.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        one = args[0] if args else None
        if function not in _MOVES or not isinstance(one, torch.Tensor) or not one.is_meta:
            return function(*args, **kwargs)
        if isinstance(one, nn.Parameter):
            return one
        with torch._C.DisableTorchFunction():
            like = torch.empty((), device="cpu")
            wanted = function(like, *args[1:], **kwargs)
            return torch.empty_strided(one.size(), one.stride(), device=wanted.device,
                                       dtype=one.dtype if wanted.dtype == like.dtype else wanted.dtype,
                                       requires_grad=one.requires_grad)


@contextlib.contextmanager
def _ddp_gets_memory(device: torch.device, late: LateMemory) -> Iterator[None]:
    """Inside it, DDP gives its module memory first, and sends no parameters: they come from elsewhere.

    DDP cannot be made on the meta device, because it makes buckets for its gradients.
    """
    make = DistributedDataParallel.__init__

    def make_empty(self: Any, module: nn.Module, *args: Any, **options: Any) -> None:
        give_memory(module, device, late)
        with torch.device(device):
            make(self, module, *args, **{**options, "init_sync": False})

    DistributedDataParallel.__init__ = make_empty
    try:
        yield
    finally:
        DistributedDataParallel.__init__ = make
