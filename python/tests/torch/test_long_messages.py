"""Long messages are kept by a thread while they are sent (recover/call_log.py), and the first step of a pipeline
schedule counts as start-up, also in older versions of torch (recover/pipelines.py)."""

import os
from types import SimpleNamespace

import pytest
import torch

from holdfast.torch.recover import pipelines
from holdfast.torch.recover.call_log import CallLog

LONG = 512 << 10  # bytes


@pytest.fixture
def log():
    made = CallLog(os.memfd_create("log"))
    made.keeps_steps = True
    made.begin(1)
    return made


def test_a_long_message_is_in_the_log_before_its_sender_may_write_to_it(log):
    sent = torch.arange(LONG // 4, dtype=torch.float32)
    key = log.key_of("0", "send", (0, 1))
    on_done = log.keep_beside(key, [sent])
    on_done()
    sent.zero_()
    got = torch.empty(LONG // 4)
    log.answer(key, [got])
    assert torch.equal(got, torch.arange(LONG // 4, dtype=torch.float32))
    assert log.size == LONG and log.borders == {"0>1": LONG}


def test_all_long_messages_are_in_the_log_when_it_has_settled(log):
    sent = [torch.full((LONG // 4,), float(k)) for k in range(5)]
    keys = [log.key_of("0", "send", (0, 1)) for _ in sent]
    for key, one in zip(keys, sent, strict=True):
        log.keep_beside(key, [one])
    log.settle()
    for key, one in zip(keys, sent, strict=True):
        got = torch.empty_like(one)
        log.answer(key, [got])
        assert torch.equal(got, one)


def test_a_long_message_without_room_asks_for_it_in_the_thread_of_training(log):
    log.native.configure(LONG // 2, "")
    asked = []
    log.make_room = lambda: bool(asked.append(1))
    log.keep_beside(log.key_of("0", "send", (0, 1)), [torch.zeros(LONG // 4)])
    assert asked == []
    log.settle()
    assert asked == [1] and log.native.hole == 1


def test_in_older_versions_of_torch_a_schedule_is_initialized_as_start_up_once(monkeypatch):
    made = []

    class Schedule:
        _has_backward = True
        _stage = SimpleNamespace(submod=torch.nn.BatchNorm1d(2))
        _stage_forward_initialized = _stage_backward_initialized = False

        def _initialize_stage(self, args, kwargs):
            made.append("in start-up" if inside else "in a step")
            self._stage_forward_initialized = self._stage_backward_initialized = True

    inside = []

    def as_startup(stages, make):
        assert stages == [Schedule._stage]
        inside.append(1)
        make()
        inside.pop()

    monkeypatch.setattr(pipelines.schedules, "PipelineScheduleSingle", Schedule)
    monkeypatch.setattr(pipelines.schedules, "PipelineScheduleMulti", object)
    pipelines._install_in_older_torch(as_startup)
    one = Schedule()
    one._initialize_stage((), {})
    one._initialize_stage((), {})
    assert made == ["in start-up", "in a step"]  # the second time it finds that nothing is left to do
