"""Collective calls of a process group that can be replaced, on a machine that is busy."""

import os

import torch

from holdfast.torch.recover.call_log import CallLog
from holdfast.torch.recover.group import Groups
from holdfast.torch.recover.group_calls import Call


class LateWork:
    """A call of Gloo that completes right after the first wait for it has timed out."""

    def __init__(self):
        self.is_over = False

    def wait(self, timeout=None):
        if not self.is_over:
            self.is_over = True
            raise RuntimeError("Operation timed out!")
        return True

    def is_completed(self):
        return self.is_over


def test_a_call_that_completes_just_after_its_slice_has_not_failed():
    groups = Groups(CallLog(os.memfd_create("log")), "0.0")
    groups.may_repeat = True
    output = torch.ones(2)
    assert Call(groups, LateWork(), [output]).wait()
    assert output.tolist() == [1, 1]  # a call that has failed gives zeros
    assert groups.mode == "live" and groups.failure is None
