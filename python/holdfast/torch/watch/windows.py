"""The freeze windows of one rank: the bytes that are sealed after a step and before the update."""

import operator
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from holdfast import _native
from holdfast.torch.state.change_detection import with_version
from holdfast.torch.state.piece import Piece
from holdfast.torch.values.boxes import local_of
from holdfast.torch.watch.replica_groups import Grouping, Held, Part, PieceGroup

Describe = Callable[[list[tuple[Piece, str]]], list[_native.Piece]]
Memory = tuple[int, int]  # an address, and a size in bytes
Seen = dict[str, tuple[int, int, str]]  # by group: the first part, the end, the digest


@dataclass
class OpenWindow:
    """The window that is open: a range of parts of each group."""

    step: int
    size: int = 0  # in bytes
    sealing: float = 0.0  # seconds
    all_else: float = 0.0
    since: float = 0.0
    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)  # of parts, by group
    versions: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    shared: dict[Memory, list[int]] = field(default_factory=dict)  # versions of all that share it
    seen: Seen = field(default_factory=dict)
    seals: dict[str, bytes] = field(default_factory=dict)  # of all parts together, by group


class Windows:
    """What this rank holds, cut into windows. All ranks open the same window of a group."""

    def __init__(self, held: Held, grouping: Grouping, describe: Describe) -> None:
        self.groups: dict[int, PieceGroup] = {}
        self.bytes, self.count = held.bytes, 0
        # Pieces by their memory, if it has several: SAM puts a slot into the place of a parameter.
        self._sharing: dict[Memory, list[Piece]] = {}
        members: dict[int, list[tuple[str, str, Piece]]] = {}
        for key, piece, name in zip(held.keys, held.pieces, held.names, strict=True):
            self._sharing.setdefault(_memory_of(piece), []).append(piece)
            members.setdefault(grouping.number_of[key], []).append((name, key, piece))
        self._sharing = {memory: found for memory, found in self._sharing.items() if found[1:]}
        for number, found in sorted(members.items()):
            found.sort(key=operator.itemgetter(0, 1))  # the same order on all ranks of the group
            pieces, names = [piece for _, _, piece in found], [name for name, _, _ in found]
            native = _native.Pieces(describe(list(zip(pieces, names, strict=True))))
            self.groups[number] = PieceGroup(number, grouping.ranks[number], pieces, names,
                                             _native.FreezeWindow(native))

    def cut(self, count: int) -> None:
        """Cuts each group into so many windows."""
        self.count = count
        for group in self.groups.values():
            group.starts = group.window.cut(count)

    def open(self, step: int, number: int) -> OpenWindow:
        """Seals the parts of that window."""
        begin = time.perf_counter()
        opened = OpenWindow(step)
        for group in self.groups.values():
            first, last = group.starts[number], group.starts[number + 1]
            if first == last:
                continue
            group.wait()
            before = time.perf_counter()
            piece, end, digest, seals = group.window.open(first, last)
            opened.sealing += time.perf_counter() - before
            opened.size += group.window.size(first, last)
            opened.ranges[group.number] = first, last
            opened.versions[group.number] = piece, _versions_of(group.pieces[piece:end])
            if len(group.ranks) > 1:
                opened.seen[str(group.number)] = first, last, digest
                opened.seals[str(group.number)] = seals
        opened.shared = {memory: _versions_of(found) for memory, found in self._sharing.items()}
        opened.since = time.perf_counter()
        opened.all_else = opened.since - begin - opened.sealing
        return opened

    def close(self, opened: OpenWindow) -> list[Part]:
        """Seals the parts again. Returns those that have changed without a write that torch counts.

        Parts of tensors that were written to do not count as looked at.
        """
        for number in opened.ranges:
            self.groups[number].wait()
        begin = time.perf_counter()
        changed = [Part(number, part) for number in opened.ranges
                   for part in self.groups[number].window.close()]
        sealed = time.perf_counter()
        opened.sealing += sealed - begin
        alarming = []
        for part in changed:
            group = self.groups[part.group]
            piece = group.window.piece_of(part.number)
            first, versions = opened.versions[part.group]
            if (_is_written(group.pieces[piece], versions[piece - first])
                    or self._is_shared_and_written(group.pieces[piece], opened)):
                opened.size -= group.window.size(part.number, part.number + 1)
            else:
                alarming.append(part)
        return alarming

    def _is_shared_and_written(self, piece: Piece, opened: OpenWindow) -> bool:
        """True if torch has counted a write to another tensor that has the same memory."""
        memory = _memory_of(piece)
        return any(map(_is_written, self._sharing.get(memory, ()), opened.shared.get(memory, ())))

    def ranges(self, opened: OpenWindow) -> Iterator[tuple[PieceGroup, int, int]]:
        """The parts of the open window: a group, the first part, the end."""
        for number, (first, last) in opened.ranges.items():
            yield self.groups[number], first, last

    def parts_of(self, names: Iterable[str]) -> list[Part]:
        """The parts of the tensors of these names that other ranks hold, too."""
        wanted = set(names)
        return [Part(group.number, part) for group in self.groups.values() if len(group.ranks) > 1
                for piece, name in enumerate(group.names) if name in wanted
                for part in range(*group.window.parts_of(piece))]


def _memory_of(piece: Piece) -> Memory:
    return piece.tensor.data_ptr(), piece.tensor.nbytes


def _versions_of(pieces: Iterable[Piece]) -> list[int]:
    return [with_version(one.tensor)._version for one in pieces]


def _is_written(piece: Piece, version: int) -> bool:
    """True if torch has counted a write to the tensor, or it has other memory now."""
    outer = piece.tensor if piece.outer is None else local_of(piece.outer)
    return (_versions_of([piece]) != [version] or with_version(outer)._version != version
            or outer.data_ptr() != piece.tensor.data_ptr())
