"""The record of a rank as bytes: what was packed is what is unpacked, whatever has changed since."""

import random

import torch

from holdfast.torch.recover.record_bytes import States, are_alike, pack_record, unpack_record
from holdfast.torch.values.generators import capture


def record(**more):
    return {"things": {"data": {"cursor": 3}}, "options": [{"lr": 0.1, "betas": (0.9, 0.99)}],
            "generators": capture({"mine": random.Random(1), "block": torch.Generator()}),
            "data draws": None, "top": None, "calls": [["run", "train", b"x" * 100, ""]], **more}


def test_a_record_comes_back_with_its_types_and_bits():
    values = record(top={"data": None, "generators": capture(), "data draws": {"python": b"p" * 80}})
    values["generators"]["extra"]["odd"] = ("block", 0, -0.0, [b"y" * 64, b""], {"block": 1})
    for data in (b"", b"tensors"):
        found, tensors = unpack_record(pack_record(values, data, States()))
        assert are_alike(found, values) and tensors == data


def test_a_state_that_has_changed_is_packed_again_and_another_one_is_not():
    states = States()
    tree = capture()
    first = states.pack(tree)
    assert states.pack(capture()) is first
    torch.rand(1)
    assert states.pack(capture()) != first
    assert states.pack(tree) is first
    for one, other in ((1, 1.0), (1, True), (0.0, -0.0), ((1,), [1]), (b"1", "1")):
        assert states.pack({"gauss": one}) is not states.pack({"gauss": other})


def test_a_record_takes_up_little_more_than_the_states_of_its_generators():
    """Text of them would be twice as long, and would take most of the time of a step's record."""
    generators = capture()
    values = record(generators=generators, top={"data": None, "generators": generators})
    assert len(pack_record(values, b"")) < 14_000
