"""Random generators of places in a configuration that no rank had before."""

import random

import torch

from holdfast.resize.parallel import Parallel
from holdfast.torch.elastic.carried_state import join_told
from holdfast.torch.values import generators


def told(rank, own):
    """What a rank of dp=2 tells of itself, as far as generators need it."""
    return {"rank": rank, "parallel": "dp=2", "step": 7, "seed": 3, "tensors": [], "objects": {}, "late": [],
            "rank objects": {"generators": generators.capture(own)}}


def test_tensor_parts_of_a_replica_draw_alike_and_replicas_do_not():
    shared = torch.Generator().manual_seed(11)
    ranks = [told(rank, {"shared": shared, "own": torch.Generator().manual_seed(rank), "other": random.Random(rank)})
             for rank in range(2)]
    drawn = {}
    for rank in range(4):
        found, inexact = join_told(ranks, Parallel(dp=2, tp=2), rank, None), []
        extra = {"shared": torch.Generator(), "own": torch.Generator(), "other": random.Random()}
        found.restore_generators(inexact, extra)
        assert len(inexact) == 1 and "seeded anew" in inexact[0]
        drawn[rank] = (torch.rand(()).item(), random.random(), torch.rand((), generator=extra["own"]).item(),
                       extra["other"].random())
        assert torch.equal(extra["shared"].get_state(), shared.get_state())
    assert drawn[0] == drawn[1] and drawn[2] == drawn[3]
    assert all(one != other for one, other in zip(drawn[0], drawn[2], strict=True))
    assert len(set(drawn[0])) == 4
