"""What a step without a save costs: so few calls that it stays cheap when a long step has emptied the caches."""

import sys

import numpy as np
import pytest
import torch
from ranks import run_ranks
from torch import nn

import holdfast
from holdfast._native import ElementReader

# Behind a long step each call of a Python function takes a microsecond or two, and a step of 100 ms may lose 100 us.
MOST_IN_STEP = 12
MOST_IN_HOOKS = 10


class Calls:
    """Counts the calls of Python functions of Holdfast."""

    def __init__(self):
        self.names = []

    def _note(self, frame, event, _):
        if event == "call" and "/holdfast/torch/" in frame.f_code.co_filename:
            self.names.append(frame.f_code.co_qualname)

    def __enter__(self):
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)


def count_calls(_rank, _world, run, layers):
    """The usual calls of an update, and of ck.step(). In a process in which there was no other Checkpointer."""
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers)))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    in_hooks, in_step = [], []
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1000000 steps") as ck:
        ck.resume()
        for step in range(200):  # the first ones, less than half, look at what is around the training
            with Calls() as calls:
                optimizer.step()
            in_hooks.append(calls.names)
            with Calls() as calls:
                ck.step(step, loss=0.5)
            in_step.append(calls.names)
    return [sorted(found, key=len)[100] for found in (in_hooks, in_step)]


@pytest.mark.parametrize("layers", [1, 150])
def test_a_step_without_a_save_makes_few_calls_however_many_tensors_there_are(tmp_path, layers):
    ((in_hooks, in_step),) = run_ranks(1, count_calls, str(tmp_path), layers, backend="")
    assert 5 < len(in_step) <= MOST_IN_STEP, in_step
    assert 2 < len(in_hooks) <= MOST_IN_HOOKS, in_hooks


def test_elements_are_read_where_the_tensors_are():
    one, other = np.arange(4, dtype=np.int16), np.arange(8, dtype=np.uint8)
    addresses = [one.ctypes.data, 0, other.ctypes.data]
    reader = ElementReader(addresses, [(addresses[0] + 2, 2), (addresses[2] + 5, 1)])
    assert reader.read(addresses) == b"\1\0\5"
    other[5] = 9
    assert reader.read(iter(addresses)) == b"\1\0\x09"


@pytest.mark.parametrize("now", [[], [8], [8, 16, 24], [8, 24]])
def test_no_element_is_read_once_a_tensor_is_elsewhere(now):
    reader = ElementReader([8, 16], [(8, 1)])  # to read there would end the process
    assert reader.read(now) is None
