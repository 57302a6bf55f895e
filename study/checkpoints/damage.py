"""What crashes can leave of a recorded save: one folder for each.

kill   the folder before each call
torn   the same, but half of the bytes of the write that follows have arrived
power  the same after a power cut: bytes that no sync has covered are zeros, or missing. Names survive, because
       journalling file systems keep them in order; XFS and ext4 without auto_da_alloc keep names without bytes
"""

from collections.abc import Iterator
from itertools import pairwise

from recorder import Call, Recording
from trees import Tree


def kills(recording: Recording) -> list[Tree]:
    return recording.states()


def torn(recording: Recording) -> list[Tree]:
    """Each write with half of what it changed."""
    steps = [*recording.calls, Call("end", 0, (), recording.last)]
    return _different(_half_way(call.before, after.before)
                      for call, after in pairwise(steps) if call.writes)  # fmt: skip


def _half_way(before: Tree, after: Tree) -> Tree:
    tree = dict(after)
    for name, entry in after.items():
        new, old = entry.data, before[name].data if name in before else b""
        if new is None or old is None or new == old:
            continue
        first = next((place for place, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
                     min(len(old), len(new)))
        half = first + max(1, (len(new) - first) // 2)
        tree[name] = entry.with_data(new[:half] + old[half:])
    return tree


def power_cuts(recording: Recording) -> list[Tree]:
    return _different(_power_cuts(recording))


def _power_cuts(recording: Recording) -> Iterator[Tree]:
    if not recording.calls:
        return
    # What was there before the save was written long ago.
    synced = {name: entry.data for name, entry in recording.calls[0].before.items()}
    for call in (*recording.calls, Call("end", 0, (), recording.last)):
        now = call.before
        unsafe = [name for name, entry in now.items()
                  if entry.data is not None and synced.get(name) != entry.data]  # fmt: skip
        if unsafe:
            for fill in (b"\0", b""):
                yield now | {name: now[name].with_data(_left(now[name].data or b"", synced.get(name), fill))
                             for name in unsafe}  # fmt: skip
        _follow(call, synced)


def _left(data: bytes, synced: bytes | None, fill: bytes) -> bytes:
    """What a power cut leaves of a file: what was synced, if the file begins with it, and then zeros or nothing."""
    kept = synced if synced is not None and data.startswith(synced) else b""
    return kept + fill * (len(data) - len(kept))


def _follow(call: Call, synced: dict[str, bytes | None]) -> None:
    """Which bytes are safe after a call."""
    now = call.before
    if call.syncs:
        everywhere = call.name in ("sync", "syncfs")
        for name in now if everywhere else call.paths:
            if name in now:
                synced[name] = now[name].data
    if call.name.startswith(("rename", "link")) and len(call.paths) == 2:
        old, new = call.paths
        for name in list(synced):
            if name == old or name.startswith(old + "/"):  # bytes go with their name
                safe = synced[name] if call.name.startswith("link") else synced.pop(name)
                if name in now and now[name].data == safe:
                    synced[new + name[len(old):]] = safe


def _different(trees: Iterator[Tree]) -> list[Tree]:
    found: list[Tree] = []
    for tree in trees:
        if tree not in found:
            found.append(tree)
    return found
