"""What is known of operations on DTensors after a change of the configuration, and tensors like others."""

import torch
from ranks import run_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator

from holdfast import _native
from holdfast.torch.elastic import known_shapes
from holdfast.torch.elastic.kept_groups import forget_meshes
from holdfast.torch.state.empty_like import empty_like


def some_operations(mesh, placements):
    """Results of operations whose shapes, strides and dtypes are told by different arguments."""
    forget_meshes()
    one = distribute_tensor(torch.arange(24.0).reshape(4, 6), mesh, placements)
    numbers = distribute_tensor(torch.arange(8), mesh, placements[:1] * len(placements))
    made = [one.t() @ one, one.transpose(0, 1), one.view(2, 12), one.view(8, 3), one.sum(0), one.sum(1),
            numbers + 1, numbers + 1.5, numbers > True, one.addcmul(one, one, value=0.25), one.to(torch.float64)]
    return [(tuple(each.shape), each.stride(), each.dtype, each.full_tensor().tolist()) for each in made]


def shapes_are_known(rank, world):
    asked = []
    find = ShardingPropagator._propagate_tensor_meta_non_cached

    def count(self, schema):
        asked.append(str(schema.op))
        return find(self, schema)

    two, flat = init_device_mesh("cpu", (1, 2)), init_device_mesh("cpu", (2,))
    expected = some_operations(two, [Replicate(), Shard(0)]), some_operations(flat, [Shard(0)])
    ShardingPropagator._propagate_tensor_meta_non_cached = count
    known_shapes.install()
    known_shapes.install()  # has no effect
    first = some_operations(two, [Replicate(), Shard(0)])
    seen = len(asked)
    asked.clear()
    assert seen > 8 and first == expected[0]
    assert some_operations(two, [Replicate(), Shard(0)]) == expected[0] and not asked, asked
    assert some_operations(flat, [Shard(0)]) == expected[1]
    again = list(asked)

    told = _native.decode_objects(_native.encode_objects(known_shapes.tell()))  # as a worker that joins hears it
    known_shapes._known.clear()
    known_shapes.learn(told)
    asked.clear()
    assert some_operations(flat, [Shard(0)]) == expected[1] and not asked, asked
    for value in (0.5, 0.75):  # as a learning rate, which does not change the shape
        one = distribute_tensor(torch.ones(4, 6), flat, [Shard(0)])
        known, _ = len(known_shapes._known), one.mul_(value)
    return seen, again, len(known_shapes._known) - known


def test_shapes_are_found_once_for_all_meshes():
    for seen, again, more in run_ranks(2, shapes_are_known):
        assert len(again) < seen / 2, again  # most operations were known from the other mesh
        assert more == 0


def like_others(rank, world):
    mesh = init_device_mesh("cpu", (1, world))
    for shape in ((8, 6), (7, 5), (1,)):
        whole = distribute_tensor(torch.ones(shape), mesh, [Replicate(), Shard(0)])
        partial = whole.redistribute(mesh, [Replicate(), Replicate()])
        for one in (whole, partial, whole.sum(0), whole.t() if len(shape) > 1 else whole, torch.ones(shape)):
            for dtype in (None, torch.float32, torch.int64):
                made, expected = empty_like(one.detach(), dtype=dtype), torch.empty_like(one.detach(), dtype=dtype)
                assert type(made) is type(expected) and made.dtype == expected.dtype
                assert made.shape == expected.shape and made.stride() == expected.stride()
                if one is whole or one is partial:
                    assert made._spec == expected._spec
                    assert made.to_local().shape == expected.to_local().shape
    meta = empty_like(distribute_tensor(torch.ones(8, 6), mesh, [Replicate(), Shard(0)]), device=torch.device("meta"))
    back = empty_like(meta, device=torch.device("cpu"))
    return meta.device.type, back.device.type, back.to_local().device.type, list(back.to_local().shape)


def test_an_empty_tensor_lies_as_the_other_does():
    assert run_ranks(2, like_others) == [("meta", "cpu", "cpu", [4, 6])] * 2
