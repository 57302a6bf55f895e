"""Whether steps add to gradients of earlier ones is found out again when they begin to."""

import torch
from torch import nn

from holdfast.torch.recover.kept_gradients import KeptGradients


def test_a_training_that_begins_to_keep_gradients_is_noticed():
    net, known = nn.Linear(3, 1), {"are kept": False, "is unsure": False}
    kept = KeptGradients(lambda: dict(net.named_parameters()), [net], known, speaks=False)

    def begin(*, drops):
        kept.keep()
        if drops:
            net.zero_grad()
        net(torch.ones(2, 3)).sum().backward()

    for _ in range(4):
        begin(drops=True)
        assert not kept.lacks_copies()
        kept.look("step")
    assert known == {"are kept": False, "is unsure": False}
    begin(drops=False)
    assert kept.lacks_copies()
    kept.look("step")
    assert known == {"are kept": False, "is unsure": True}
    before = net.weight.grad.clone()
    begin(drops=False)
    assert known["are kept"] and not kept.lacks_copies()
    kept.restore()
    assert torch.equal(net.weight.grad, before)


def test_a_training_that_no_longer_makes_its_gradients_zero_in_place_is_noticed():
    net, known = nn.Linear(3, 1), {"are kept": False, "is unsure": False}
    kept = KeptGradients(lambda: dict(net.named_parameters()), [net], known, speaks=False)
    for _ in range(6):
        kept.keep()
        net.zero_grad(set_to_none=False)
        net(torch.ones(2, 3)).sum().backward()
        kept.look("step")
    assert not known["are kept"]
    kept.keep()
    net(torch.ones(2, 3)).sum().backward()
    assert known["are kept"] and kept.lacks_copies()


def test_a_step_that_is_made_again_tells_whether_it_drops_the_gradients_that_stay():
    for drops in (True, False):
        net, known = nn.Linear(3, 1), {"are kept": False, "is unsure": False}
        kept = KeptGradients(lambda: dict(net.named_parameters()), [net], known, speaks=False)
        for _ in range(3):
            kept.keep()
            net.zero_grad()
            net(torch.ones(2, 3)).sum().backward()
            kept.look("step")
        kept.keep()  # and it ends before its backward pass
        assert not kept.lacks_copies() and kept.may_stay()
        kept.restore()
        kept.keep()
        if drops:
            net.zero_grad()
        net(torch.ones(2, 3)).sum().backward()
        assert known["are kept"] is not drops


def test_gradients_that_are_made_zero_in_place_are_not_kept():
    net, known = nn.Linear(3, 1), {"are kept": False, "is unsure": False}
    kept = KeptGradients(lambda: dict(net.named_parameters()), [net], known, speaks=False)
    for _ in range(4):
        kept.keep()
        net.zero_grad(set_to_none=False)
        net(torch.ones(2, 3)).sum().backward()
        assert not kept.lacks_copies()
        kept.look("step")
    assert known == {"are kept": False, "is unsure": False}
