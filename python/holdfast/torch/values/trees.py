"""Turns anything that a state_dict may hold into a tree of plain values, and back.

pack() takes the state of a scheduler, a scaler, a loader or a user's object. It returns what a
checkpoint stores as objects (None, bool, int, float, str, bytes, list, tuple, dict), with a
TensorName in the place of each tensor, and the tensors by name. unpack() returns the same types and
the same bits. A value of another type becomes {TYPE: "its kind", ...}. Nothing is pickled: a value
of an unknown type raises TypeError with the path of its key. namedtuples and dataclasses are known by
their fields (named_fields.py), random generators by their state.
"""

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

from holdfast import TensorName
from holdfast.torch.values.boxes import check_plain, is_plain
from holdfast.torch.values.dotted_names import join
from holdfast.torch.values.dtypes import bytes_of, descr_of, dtype_from, tensor_from
from holdfast.torch.values.named_fields import (
    fields_of,
    kind_with_fields,
    make_dataclass,
    make_namedtuple,
)
from holdfast.torch.values.tree_leaves import MAKERS, TYPE, pack_generator, pack_leaf, pack_text

_DEEPEST = 90  # the store takes 100 nested containers; the caller adds some of its own
_PRINTABLE_BITS = 10_000  # Python refuses to print integers that are much longer
_BIG_ARRAY = 4096  # bytes from which a numpy array is stored as a tensor
_FACTORIES: dict[str, Callable[[], Any]] = {
    "int": int, "float": float, "str": str, "bool": bool, "list": list, "dict": dict,
    "set": set, "tuple": tuple,
}


class Packed(NamedTuple):
    """A tree of plain values, and its tensors by the names in the tree."""

    tree: Any
    tensors: dict[str, torch.Tensor]


def pack(value: Any, root: str, *, inline: int = 0, plain: bool = False) -> Packed:
    """The value as a tree of plain values; its tensors are named by `root` and their path.

    Tensors are not copied, except those of at most `inline` bytes, which are in the tree itself.
    Two tensors with one memory have one name. With `plain`, for readers other than Holdfast, an
    OrderedDict becomes a dict, and a tensor is kept without its device and gradient flag.
    """
    packer = _Packer(root, inline, plain)
    tree = packer.pack(value, [])
    return Packed(tree, packer.tensors)


def unpack(tree: Any, tensors: Mapping[str, Any], wrap: Callable[[Any], Any] | None = None,
           stand_ins: list[str] | None = None) -> Any:
    """The value that was packed, given its tensors by name.

    `wrap`, if given, turns each of the `tensors` into the value to return. `stand_ins` gets the names
    of classes that this process does not have: a value with the same fields stands for theirs.
    ValueError for a tree that pack() does not make.
    """
    unpacker = _Unpacker(tensors, wrap)
    value = unpacker.unpack(tree)
    if stand_ins is not None:
        stand_ins += unpacker.stand_ins
    return value


def tensor_names_in(tree: Any) -> list[str]:
    """The names of all tensors of a packed tree, each once."""
    found: dict[str, None] = {}

    def visit(node: Any) -> None:
        if isinstance(node, TensorName):
            found[node.name] = None
        elif isinstance(node, (list, tuple)):
            for item in node:
                visit(item)
        elif isinstance(node, dict):
            for item in node.values():
                visit(item)

    visit(tree)
    return list(found)


def rename_tensors(tree: Any, name: Callable[[str], str]) -> Any:
    """A packed tree with other names for its tensors."""
    if isinstance(tree, TensorName):
        return TensorName(name(tree.name))
    if isinstance(tree, (list, tuple)):
        return type(tree)(rename_tensors(item, name) for item in tree)
    if isinstance(tree, dict):
        return {key: rename_tensors(item, name) for key, item in tree.items()}
    return tree


class _Packer:
    def __init__(self, root: str, inline: int, plain: bool) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._root = root
        self._inline = inline
        self._plain = plain
        self._names: dict[tuple[Any, ...], str] = {}  # memory of a tensor -> its name
        self._open: set[int] = set()  # ids of the containers around the current value

    def pack(self, value: Any, path: list[str], depth: int = 0) -> Any:
        kind = type(value)
        if value is None or kind in (bool, float, bytes):
            return value
        if kind is int:
            long = value.bit_length() > _PRINTABLE_BITS
            return {TYPE: "int", "hex": f"{value:x}"} if long else value
        if kind is str:
            return pack_text(value)
        if isinstance(value, torch.Tensor):
            return self._pack_tensor(value, path)
        return self._pack_container(value, path, depth)

    def _pack_container(self, value: Any, path: list[str], depth: int) -> Any:
        if id(value) in self._open:
            raise ValueError(f"{self._where(path)}: it contains itself; expected a tree")
        if depth > _DEEPEST:
            raise ValueError(f"{self._where(path)}: containers more than {_DEEPEST} deep; expected "
                             "fewer")
        self._open.add(id(value))
        try:
            return self._pack_known(value, path, depth)
        finally:
            self._open.discard(id(value))

    def _pack_known(self, value: Any, path: list[str], depth: int) -> Any:
        kind = type(value)
        if kind is list:
            return self._items(value, path, depth)
        if kind is tuple:
            return tuple(self._items(value, path, depth))
        if kind is dict or (kind is OrderedDict and self._plain):
            return self._pack_dict(value, path, depth)
        if kind in (OrderedDict, Counter):
            return {TYPE: kind.__name__, "items": self._pairs(value, path, depth)}
        if kind is defaultdict:
            return {TYPE: "defaultdict", "of": self._factory(value, path),
                    "items": self._pairs(value, path, depth)}
        if kind is deque:
            return {TYPE: "deque", "maxlen": value.maxlen,
                    "items": self._items(value, path, depth)}
        if kind in (set, frozenset):
            items = self._items(value, path, depth)
            return {TYPE: kind.__name__, "items": sorted(items, key=repr)}
        plain = pack_leaf(value)
        if plain is not None:
            return plain
        if (what := kind_with_fields(value)) != "":
            return self._pack_fields(value, what, path, depth)
        return self._pack_numpy(value, path)

    def _pack_fields(self, value: Any, what: str, path: list[str], depth: int) -> Any:
        fields = fields_of(value)
        pairs = self._pairs(dict(fields), path, depth)
        if self._plain:
            return tuple(item for _, item in pairs) if what == "namedtuple" else dict(pairs)
        node = {TYPE: what, "module": type(value).__module__, "class": type(value).__qualname__}
        if what == "dataclass":
            return {**node, "items": pairs}
        return {**node, "fields": [name for name, _ in fields], "items": [one for _, one in pairs]}

    def _items(self, value: Iterable[Any], path: list[str], depth: int) -> list[Any]:
        return [self.pack(item, [*path, str(k)], depth + 2) for k, item in enumerate(value)]

    def _pairs(self, value: Mapping[Any, Any], path: list[str], depth: int) -> list[Any]:
        pairs = []
        for key, item in value.items():
            inside = [*path, key if type(key) is str else repr(key)]
            pairs.append((self.pack(key, inside, depth + 3), self.pack(item, inside, depth + 3)))
        return pairs

    def _pack_dict(self, value: dict[Any, Any], path: list[str], depth: int) -> Any:
        pairs = self._pairs(value, path, depth)
        plain = all(type(key) in (str, int, float, bool, bytes, type(None)) for key, _ in pairs)
        if plain and TYPE not in value:
            return dict(pairs)
        return {TYPE: "dict", "items": pairs}

    def _factory(self, value: defaultdict[Any, Any], path: list[str]) -> str | None:
        if value.default_factory is None:
            return None
        for name, factory in _FACTORIES.items():
            if value.default_factory is factory:
                return name
        raise TypeError(f"{self._where(path)}: a defaultdict of {value.default_factory!r}; "
                        f"expected one of {', '.join(_FACTORIES)}")

    def _pack_tensor(self, value: torch.Tensor, path: list[str]) -> Any:
        if not is_plain(value):
            check_plain(value, self._where(path))
        if self._plain:
            return TensorName(self._name(value, path))
        inline = self._inline and not isinstance(value, DTensor) and value.nbytes <= self._inline
        if not inline and type(value) is torch.Tensor and value.is_cpu and not value.requires_grad:
            return TensorName(self._name(value, path))
        node: dict[str, Any] = {TYPE: "tensor"}
        if inline:
            node["dtype"] = str(value.dtype).removeprefix("torch.")
            node["shape"] = list(value.shape)
            node["data"] = bytes_of(value)
        else:
            node["name"] = TensorName(self._name(value, path))
        if value.device.type != "cpu":
            node["device"] = str(value.device)
        if value.requires_grad:
            node["grad"] = True
        if isinstance(value, torch.nn.Parameter):
            node["parameter"] = True
        return node["name"] if list(node) == [TYPE, "name"] else node

    def _name(self, value: torch.Tensor, path: list[str]) -> str:
        memory = memory_of(value)
        if memory not in self._names:
            base = name = join(self._root, *path) or "tensor"
            count = 1
            while name in self.tensors:  # the key "a.b", and "b" inside "a", have one name
                count += 1
                name = f"{base}~{count}"
            self._names[memory] = name
            self.tensors[name] = value
        return self._names[memory]

    def _pack_numpy(self, value: Any, path: list[str]) -> Any:
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind != "O":
            return {TYPE: "numpy scalar", "dtype": descr_of(value.dtype), "data": value.tobytes()}
        if numpy is not None and isinstance(value, numpy.dtype) and not value.hasobject:
            return {TYPE: "numpy dtype", "dtype": descr_of(value)}
        if numpy is None or type(value) is not numpy.ndarray or value.dtype.hasobject:
            if not self._plain and (state := pack_generator(value)) is not None:
                return state
            raise TypeError(f"{self._where(path)}: a {_kind(value)}; expected numbers, text, "
                            "bytes, containers, tensors or arrays of numbers")
        order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        node = {TYPE: "numpy", "dtype": descr_of(value.dtype), "shape": list(value.shape),
                "order": order}
        if value.nbytes < _BIG_ARRAY:
            return {**node, "data": value.tobytes(order)}
        elements = numpy.frombuffer(value.tobytes(order), numpy.uint8).copy()
        return {**node, "name": TensorName(self._name(torch.from_numpy(elements), path))}

    def _where(self, path: list[str]) -> str:
        return join(self._root, *path)


class _Unpacker:
    def __init__(self, tensors: Mapping[str, Any], wrap: Callable[[Any], Any] | None) -> None:
        self._tensors = tensors
        self._wrap = wrap
        self._made: dict[str, Any] = {}
        self.stand_ins: list[str] = []

    def unpack(self, node: Any) -> Any:
        if isinstance(node, TensorName):
            return self._tensor(node.name)
        if isinstance(node, list):
            return [self.unpack(item) for item in node]
        if isinstance(node, tuple):
            return tuple(self.unpack(item) for item in node)
        if not isinstance(node, dict):
            return node
        if TYPE not in node:
            return {key: self.unpack(item) for key, item in node.items()}
        kind = str(node[TYPE])
        make = getattr(self, f"_make_{kind.replace(' ', '_')}", None) or MAKERS.get(kind)
        if make is None:
            raise ValueError(f'object of kind "{kind}"; expected a kind that this version knows')
        try:
            return make(node)
        except ValueError:
            raise
        except Exception as error:  # the bytes may come from anybody and hold anything
            raise ValueError(f'object of kind "{kind}": {error!r}') from error

    def _tensor(self, name: str) -> Any:
        if name not in self._made:
            if name not in self._tensors:
                raise ValueError(f'tensor "{name}": not in the file; expected it, as the objects '
                                 "name it")
            found = self._tensors[name]
            self._made[name] = found if self._wrap is None else self._wrap(found)
        return self._made[name]

    def _pairs(self, node: dict[str, Any]) -> list[tuple[Any, Any]]:
        return [(self.unpack(key), self.unpack(item)) for key, item in node["items"]]

    def _make_dict(self, node: dict[str, Any]) -> Any:
        return dict(self._pairs(node))

    def _make_OrderedDict(self, node: dict[str, Any]) -> Any:
        return OrderedDict(self._pairs(node))

    def _make_Counter(self, node: dict[str, Any]) -> Any:
        return Counter(dict(self._pairs(node)))

    def _make_defaultdict(self, node: dict[str, Any]) -> Any:
        factory = None if node["of"] is None else _FACTORIES[node["of"]]
        return defaultdict(factory, self._pairs(node))

    def _make_deque(self, node: dict[str, Any]) -> Any:
        return deque(self.unpack(node["items"]), node["maxlen"])

    def _make_set(self, node: dict[str, Any]) -> Any:
        return set(self.unpack(node["items"]))

    def _make_frozenset(self, node: dict[str, Any]) -> Any:
        return frozenset(self.unpack(node["items"]))

    def _make_namedtuple(self, node: dict[str, Any]) -> Any:
        value, is_known = make_namedtuple(node["module"], node["class"], node["fields"],
                                          self.unpack(node["items"]))
        return self._noted(node, value, is_known)

    def _make_dataclass(self, node: dict[str, Any]) -> Any:
        value, is_known = make_dataclass(node["module"], node["class"], dict(self._pairs(node)))
        return self._noted(node, value, is_known)

    def _noted(self, node: dict[str, Any], value: Any, is_known: bool) -> Any:
        name = f"{node['module']}.{node['class']}"
        if not is_known and name not in self.stand_ins:
            self.stand_ins.append(name)
        return value

    def _make_tensor(self, node: dict[str, Any]) -> Any:
        if "data" in node:
            tensor = tensor_from(node["data"], node["dtype"], node["shape"])
        else:
            tensor = self.unpack(node["name"])
        device = node.get("device")
        if device is not None and tensor.device.type == "cpu" and _has_device(device):
            tensor = tensor.to(device)
        if node.get("parameter"):
            return torch.nn.Parameter(tensor, requires_grad=node.get("grad", False))
        return tensor.requires_grad_() if node.get("grad") else tensor

    def _make_numpy(self, node: dict[str, Any]) -> Any:
        import numpy

        data = node.get("data")
        if data is None:
            data = bytes_of(self.unpack(node["name"]))
        flat = numpy.frombuffer(data, dtype_from(node["dtype"]))
        return flat.reshape(node["shape"], order=node["order"]).copy(order=node["order"])

    def _make_numpy_scalar(self, node: dict[str, Any]) -> Any:
        import numpy

        dtype = dtype_from(node["dtype"])
        if dtype.itemsize == 0:  # an empty text: frombuffer() takes no items without bytes
            return dtype.type()
        return numpy.frombuffer(node["data"], dtype)[0]


def memory_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A key that is equal for tied weights: two tensors of a state_dict with one memory."""
    if isinstance(tensor, DTensor):
        return (id(tensor), id(tensor._local_tensor), tensor._local_tensor.data_ptr())
    if tensor.numel() == 0:
        return (id(tensor),)
    return (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())


def _has_device(device: str) -> bool:
    kind = torch.device(device)
    module = getattr(torch, kind.type, None)
    count = module.device_count() if hasattr(module, "device_count") else 0
    return (kind.index or 0) < count


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
