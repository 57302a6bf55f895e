"""A record of a rank as bytes (records.py).

Most of a record are states of random generators: 5 kB each, of which few change in a step. Encoding
them as text would take longer than all else that a step does for recovery. So they are blocks of bytes
beside the text, and a state that was packed for one of the last records is not packed again.
"""

import struct
from typing import Any

from holdfast import _native

_HEAD = struct.Struct("<Q")  # the length of the text, which blocks of bytes follow
_STATES = ("generators", "at top", "data draws")  # the values that hold states of generators
_KNOWN = 4  # states that are kept: of the newest record, and of the top of the loop
_LONG = 64  # bytes that are worth a block of their own


class States:
    """States of generators as bytes."""

    def __init__(self) -> None:
        self._known: list[tuple[Any, bytes]] = []

    def pack(self, tree: Any) -> bytes:
        """The state as bytes; the same object as before if it has not changed."""
        for known, packed in self._known:
            if are_alike(tree, known):
                return packed
        blocks: list[bytes] = []
        packed = _join(_take_out(tree, blocks), blocks)
        self._known = [*self._known[1 - _KNOWN:], (tree, packed)]
        return packed


def pack_record(values: dict[str, Any], data: bytes, states: States | None = None) -> bytes:
    """The values of a record and the bytes of its tensors, as bytes."""
    blocks, states = [data], states or States()
    top = values["top"] and _with_places(values["top"], blocks, states)
    return _join({**_with_places(values, blocks, states), "top": top}, blocks)


def unpack_record(packed: bytes) -> tuple[dict[str, Any], bytes]:
    """The values of a record, and the bytes of its tensors."""
    values, blocks = _split(packed)
    for holder in (values, values["top"] or {}):
        for key in _STATES:
            if holder.get(key) is not None:
                holder[key] = _put_in(*_split(blocks[holder[key]]))
    return values, blocks[0]


def are_alike(one: Any, other: Any) -> bool:
    """True if two trees have the same types and bits; == would take 1, 1.0 and True for the same."""
    kind = type(one)
    if one is other:
        return True
    if kind is not type(other):
        return False
    if kind is dict:
        return (list(one) == list(other)
                and all(are_alike(item, other[key]) for key, item in one.items()))
    if kind in (list, tuple):
        return len(one) == len(other) and all(map(are_alike, one, other))
    return repr(one) == repr(other) if kind is float else one == other


def pack_states(tree: Any) -> bytes:
    """States of generators as bytes; those that are equal are there once."""
    blocks: list[bytes] = []
    tree = _take_out(tree, blocks)
    once = {one: place for place, one in enumerate(dict.fromkeys(blocks))}
    return _join({"of": tree, "places": [once[one] for one in blocks]}, list(once))


def unpack_states(packed: bytes) -> Any:
    """What pack_states() was given."""
    told, once = _split(packed)
    return _put_in(told["of"], [once[place] for place in told["places"]])


def _with_places(values: dict[str, Any], blocks: list[bytes], states: States) -> dict[str, Any]:
    """The values with the places of their states in the blocks, to which these are added."""
    packed = {key: states.pack(values[key]) for key in _STATES if values.get(key) is not None}
    blocks += [one for one in packed.values() if one not in blocks[1:]]
    return {**values, **{key: blocks.index(one, 1) for key, one in packed.items()}}


def _join(tree: Any, blocks: list[bytes]) -> bytes:
    text = _native.encode_objects({"tree": tree, "blocks": [len(one) for one in blocks]})
    return b"".join((_HEAD.pack(len(text)), text, *blocks))


def _split(packed: bytes) -> tuple[Any, list[bytes]]:
    """The tree and the blocks that were joined."""
    (length,) = _HEAD.unpack_from(packed)
    at = _HEAD.size + length
    told = _native.decode_objects(packed[_HEAD.size:at])
    blocks = []
    for size in told["blocks"]:
        blocks.append(packed[at:at + size])
        at += size
    return told["tree"], blocks


def _take_out(tree: Any, blocks: list[bytes]) -> Any:
    """The tree with ("block", its place) for long bytes and ("tuple", ...) for a tuple."""
    kind = type(tree)
    if kind is bytes and len(tree) >= _LONG:
        blocks.append(tree)
        return ("block", len(blocks) - 1)
    if kind is tuple:
        return ("tuple", *(_take_out(one, blocks) for one in tree))
    if kind is dict:
        return {key: _take_out(one, blocks) for key, one in tree.items()}
    return [_take_out(one, blocks) for one in tree] if kind is list else tree


def _put_in(tree: Any, blocks: list[bytes]) -> Any:
    """What _take_out() was given."""
    kind = type(tree)
    if kind is tuple:
        name, *inside = tree
        return (blocks[inside[0]] if name == "block"
                else tuple(_put_in(one, blocks) for one in inside))
    if kind is dict:
        return {key: _put_in(one, blocks) for key, one in tree.items()}
    return [_put_in(one, blocks) for one in tree] if kind is list else tree
