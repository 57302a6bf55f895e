"""A training job for tests that kill it: job.py (train | hold | restore) RUN

Its state is a known function of the step, so that a test can tell whether a restored state belongs
to one step, and to which. It prints a line for everything that it has done. If it finds something
wrong, it exits with a message. It does not use numpy, because importing numpy would take longer
than the job lives.
"""

import ctypes
import os
import sys
from pathlib import Path

import holdfast

SHAPES = {"embedding": (300, 128), "layer.weight": (64, 64), "layer.bias": (64,), "odd": (7,),
          "count": ()}


class Array:
    """An array of 8-byte words that has numpy's __array_interface__."""

    def __init__(self, shape):
        elements = 1
        for extent in shape:
            elements *= extent
        self.memory = (ctypes.c_char * (8 * elements))()
        self.__array_interface__ = {"typestr": "<u8", "shape": shape, "version": 3,
                                    "data": (ctypes.addressof(self.memory), False)}

    def set(self, values):
        self.memory.raw = values


def values_at(step, index):
    """The bytes of tensor number `index` after the step: a pattern of 8 words, repeated."""
    words = [(step * 1_000_003 + index * 7919 + k * 0x9E3779B9) % 2**64 for k in range(8)]
    pattern = b"".join(word.to_bytes(8, "little") for word in words)
    size = ctypes.sizeof(Array(list(SHAPES.values())[index]).memory)
    return (pattern * (size // len(pattern) + 1))[:size]


def set_state(state, step):
    for index, array in enumerate(state.values()):
        array.set(values_at(step, index))


def check_state(state, restored):
    for index, (name, array) in enumerate(state.items()):
        if array.memory.raw != values_at(restored.step, index):
            sys.exit(f"{name}: not what it was at step {restored.step}")
    if restored.objects != {"step": restored.step}:
        sys.exit(f"objects {restored.objects} at step {restored.step}")


def say(*words):
    print(*words, flush=True)


def resume(run, state):
    """Restores the newest step and prints its number. Returns it, or 0 in a new run."""
    try:
        restored = holdfast.restore(run, state)
    except holdfast.NotFoundError:
        say("restored", 0)
        return 0
    check_state(state, restored)
    if restored.skipped:
        sys.exit(f"damaged steps: {restored.skipped}")
    say("restored", restored.step)
    return restored.step


def train(run):
    state = {name: Array(shape) for name, shape in SHAPES.items()}
    step = resume(run, state)
    with holdfast.Saver(run, keep=2,
                        writing=holdfast.Writing(space_reserve=0, ring=1 << 20)) as saver:
        say("ready")
        handles = []
        while True:
            step += 1
            set_state(state, step)
            handles.append((step, saver.save(step, state, {"step": step})))
            handles[-1][1].captured()
            while handles and (len(handles) > 1 or handles[0][1].is_done):
                done, handle = handles.pop(0)
                handle.durable()
                say("durable", done)


def hold(run):
    with holdfast.Saver(run, writing=holdfast.Writing(space_reserve=0)):
        say("ready", os.getpid())
        sys.stdin.read()


def restore(run):
    state = {name: Array(shape) for name, shape in SHAPES.items()}
    say("ready")
    while True:
        check_state(state, holdfast.restore(run, state))
        say("restored")


if __name__ == "__main__":
    {"train": train, "hold": hold, "restore": restore}[sys.argv[1]](Path(sys.argv[2]))
