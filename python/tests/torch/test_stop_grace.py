"""The time for the last save fits what has started the process."""

import pytest

from holdfast import Failures
from holdfast.torch.loop.stop_grace import with_grace


@pytest.fixture
def torchrun(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.delenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", raising=False)
    monkeypatch.delenv("HOLDFAST_LAUNCH_ID", raising=False)


def test_without_torchrun_it_is_a_minute(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert with_grace(Failures()).grace == 60
    assert with_grace(Failures(grace=200)).grace == 200


def test_under_torchrun_it_ends_before_torchrun_kills(torchrun, monkeypatch, caplog):
    assert with_grace(Failures()).grace == 25
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "120")
    assert with_grace(Failures()).grace == 115
    assert with_grace(Failures(grace=100)).grace == 100 and not caplog.records


def test_under_holdfast_launch_it_is_a_minute_although_variables_of_torchrun_are_set(
        torchrun, monkeypatch, caplog):
    monkeypatch.setenv("HOLDFAST_LAUNCH_ID", "0123456789abcdef")
    assert with_grace(Failures()).grace == 60
    assert with_grace(Failures(grace=120)).grace == 120 and not caplog.records


def test_a_time_that_torchrun_does_not_give_is_warned_of(torchrun, caplog):
    assert with_grace(Failures(grace=60)).grace == 60
    assert "grace=60 s, and torchrun kills its workers 30 s after a signal" in caplog.text
