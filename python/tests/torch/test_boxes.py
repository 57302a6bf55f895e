"""The boxes of DTensors must match what real ranks hold, and must tile each tensor exactly."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

from holdfast import Box
from holdfast.torch.values.boxes import Sharded, box_at, check_plain, local_of, part_of


def fsdp_over_tp(rank, world, dp, tp, rows):
    """Shards a weight with torch.
    True if the box selects exactly the bytes that this rank holds."""
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, rows))
    reference = model[0].weight.detach().clone()
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    weight = model[0].weight
    part = part_of(weight, "weight")
    (lo, hi), _ = part.box.extents
    local = local_of(weight)
    assert local.data_ptr() == weight._local_tensor.data_ptr()
    return part.shape == (rows, 4) and torch.equal(local, reference[lo:hi])


def plain_shards(rank, world):
    """On a mesh of two dimensions,
    both cut the rows from left to right, or one cuts the columns."""
    mesh = init_device_mesh("cpu", (2, 3))
    whole = torch.arange(7 * 5).reshape(7, 5)
    for placements in ((Shard(0), Shard(0)), (Shard(1), Shard(0)), (Replicate(), Shard(-1))):
        held = distribute_tensor(whole, mesh, placements)
        (a, b), (c, d) = part_of(held).box.extents
        assert torch.equal(local_of(held), whole[a:b, c:d]), (placements, rank)


@pytest.mark.parametrize(("dp", "tp", "rows"), [(3, 2, 7), (3, 4, 27), (3, 2, 12)])
def test_uneven_fsdp_over_tp_has_the_box_that_each_rank_holds(dp, tp, rows):
    assert all(run_ranks(dp * tp, fsdp_over_tp, dp, tp, rows))


def test_shards_of_one_dimension_cut_from_left_to_right():
    run_ranks(6, plain_shards)


@st.composite
def layouts(draw):
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    mesh = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    kinds = st.one_of(st.just(Replicate()), st.builds(Shard, st.integers(0, len(shape) - 1)))
    placements = [draw(kinds) for _ in mesh]
    # The placement that FSDP over TP makes.
    if draw(st.booleans()) and type(placements[-1]) is Shard:
        dim = placements[-1].dim
        later = 1
        for axis in reversed(range(len(mesh))):
            if type(placements[axis]) is Shard and placements[axis].dim == dim:
                if axis == 0 and axis < len(mesh) - 1:
                    placements[axis] = _StridedShard(dim, split_factor=later)
                later *= mesh[axis]
    return shape, placements, mesh


@settings(max_examples=300, deadline=None)
@given(layouts())
def test_boxes_of_all_coordinates_tile_the_shape(layout):
    shape, placements, mesh = layout
    times = torch.zeros(shape, dtype=torch.int)
    copies = 1
    for size, placement in zip(mesh, placements, strict=True):
        copies *= size if isinstance(placement, Replicate) else 1
    for coordinate in itertools.product(*map(range, mesh)):
        extents = box_at(shape, placements, mesh, coordinate).extents
        times[tuple(slice(lo, hi) for lo, hi in extents)] += 1
    assert torch.equal(times, torch.full(shape, copies, dtype=torch.int))


def test_what_leaves_no_block_is_refused_by_name():
    with pytest.raises(ValueError, match="Partial"):
        box_at([4], [Partial()], [2], [0])
    with pytest.raises(ValueError, match="into 2 pieces; expected 3, its split factor"):
        box_at([12], [_StridedShard(0, split_factor=3), Shard(0)], [2, 2], [0, 0])


def test_a_declared_shard_has_its_box():
    part = part_of(torch.zeros(2, 3), "w", Sharded(1, 2, 3))
    assert (part.shape, part.box) == ((2, 9), Box([(0, 2), (6, 9)]))
    part = part_of(torch.zeros(1, 3), "w", Sharded(0, 2, 3, size=7))
    assert (part.shape, part.box) == ((7, 3), Box([(6, 7), (0, 3)]))
    with pytest.raises(ValueError, match=r"w: this rank holds a tensor of shape \(2, 3\); expected \(1, 3\)"):
        part_of(torch.zeros(2, 3), "w", Sharded(0, 2, 3, size=7))
    with pytest.raises(ValueError, match="w: rule 'mine'"):
        part_of(torch.zeros(2), "w", "mine")


def test_tensors_without_plain_memory_are_refused_by_name():
    with pytest.raises(ValueError, match="w: on the meta device"):
        check_plain(torch.zeros(2, device="meta"), "w")
    with pytest.raises(TypeError, match="w: has the layout torch.sparse_coo"):
        check_plain(torch.eye(2).to_sparse(), "w")
    with pytest.raises(ValueError, match="w: a lazy parameter without a shape"):
        check_plain(nn.LazyLinear(2).weight, "w")
    with pytest.raises(TypeError, match="w: has a conjugate or negative bit"):
        check_plain(torch.zeros(2, dtype=torch.cfloat).conj(), "w")
