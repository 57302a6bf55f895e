"""Boxes and dtypes in Python. Their arithmetic is tested in C++."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import Box, Dtype

extents = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted).map(tuple)


@st.composite
def pairs_of_boxes(draw):
    rank = draw(st.integers(0, 8))
    return [draw(st.lists(extents, min_size=rank, max_size=rank)) for _ in range(2)]


@given(pairs_of_boxes())
def test_intersect_is_what_python_computes(pair):
    a, b = pair
    common = [(max(x[0], y[0]), min(x[1], y[1])) for x, y in zip(a, b, strict=True)]
    met = all(lo < hi for lo, hi in common)
    assert holdfast.intersect(Box(a), Box(b)) == (Box(common) if met else None)


def test_a_box_tells_what_it_is():
    box = Box([(2, 4), (0, 2**40)])
    assert (box.rank, box.shape, box.elements) == (2, [2, 2**40], 2**41)
    assert box.extents == [(2, 4), (0, 2**40)]
    assert not box.empty
    assert Box([(3, 3)]).empty


def test_a_box_prints_as_the_call_that_makes_it():
    box = Box([(2, 4), (0, 6)])
    assert repr(box) == "Box([(2, 4), (0, 6)])"
    assert eval(repr(box)) == box


def test_equal_boxes_are_one_key():
    assert {Box([(0, 1)]): "a"}[Box([(0, 1)])] == "a"
    assert Box([(0, 1)]) != Box([(0, 2)])
    assert Box([]) != "a box"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([(-1, 2)], "extent -1:2 in dimension 0; expected 0 <= lo <= hi"),
        ([(0, 1), (3, 2)], "extent 3:2 in dimension 1"),
        ([(0, 1)] * 9, "9 dimensions; expected at most 8"),
        ([(0, 2**62), (0, 2**62)], "too large"),
    ],
)
def test_a_bad_box_is_a_value_error(bad, message):
    with pytest.raises(ValueError, match=message):
        Box(bad)


@pytest.mark.parametrize("call", [holdfast.intersect, Box.contains])
def test_boxes_of_different_rank_do_not_abort_the_process(call):
    with pytest.raises(ValueError, match="1 and 2 dimensions"):
        call(Box([(0, 1)]), Box([(0, 1), (0, 1)]))


def test_contains():
    assert Box([(0, 4)]).contains(Box([(1, 4)]))
    assert not Box([(0, 4)]).contains(Box([(1, 5)]))


def test_dtypes_go_by_their_safetensors_and_torch_names():
    assert holdfast.parse_dtype("bf16") == holdfast.parse_dtype("bfloat16") == Dtype.BF16
    assert holdfast.bytes_of(Dtype.C128) == 16
    with pytest.raises(NotImplementedError, match="complex512"):
        holdfast.parse_dtype("complex512")
