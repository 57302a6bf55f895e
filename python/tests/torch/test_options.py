"""The keywords of a Checkpointer: everyday ones,
groups for the rest, clear errors for wrong ones."""

import random

import pytest
import torch
from torch import nn

import holdfast


def checkpointer(run, **options):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return holdfast.Checkpointer(run, model=model, optimizer=optimizer, **options)


@pytest.mark.parametrize(("name", "expected"), [
    ("optimiser", "optimizer="),
    ("optimizers", "optimizer="),
    ("schedulers", "scheduler="),
    ("space_reserve", r"writing=holdfast.Writing\(space_reserve=...\)"),
    ("compression", r"writing=holdfast.Writing\(compress=...\)"),
    ("strict", r"resuming=holdfast.Resuming\(strict=...\)"),
    ("signal", r"failures=holdfast.Failures\(signals=...\)"),
    ("tracker", r'objects=\{"tracker": ...\} for an object to save'),
])
def test_an_unknown_keyword_names_the_nearest(tmp_path, name, expected):
    message = rf"^Checkpointer: unknown keyword {name}=; expected {expected}$"
    with pytest.raises(TypeError, match=message):
        checkpointer(tmp_path / "run", **{name: 1})
    assert not (tmp_path / "run").exists()


def test_an_unknown_keyword_of_a_group_names_the_nearest():
    with pytest.raises(TypeError, match="^Writing: unknown keyword gaurd=; expected guard$"):
        holdfast.Writing(gaurd="off")
    with pytest.raises(TypeError, match="expected grace or signals or fail_after or timeout$"):
        holdfast.Failures(x=1)


def test_a_group_must_be_of_its_class(tmp_path):
    with pytest.raises(TypeError, match=r"^writing=\{'ring': 0\}; expected holdfast.Writing\("):
        checkpointer(tmp_path / "run", writing={"ring": 0})
    with pytest.raises(TypeError, match=r"expected holdfast.Writing\("):
        holdfast.Saver(tmp_path / "run", writing=holdfast.Failures())


@pytest.mark.parametrize(("name", "message"), [
    ("a.b", "expected a word"), ("_gradients", "expected a word"), ("", "expected a word"),
    (7, "expected a word"), ("ema", "is a keyword of the Checkpointer"),
    ("model", "is a keyword of the Checkpointer"),
])
def test_names_of_objects_are_plain_words(tmp_path, name, message):
    with pytest.raises(ValueError, match=message):
        checkpointer(tmp_path / "run", objects={name: nn.Linear(1, 1)})


def test_a_saver_has_no_guard(tmp_path):
    with pytest.raises(ValueError, match="Saver: writing has guard='full', which only a Checkp"):
        holdfast.Saver(tmp_path / "run", writing=holdfast.Writing(guard="full"))


def test_own_generators_are_objects_too(tmp_path):
    """A generator in `objects` is saved with the others, and continues where it was."""
    mine = {"dice": random.Random(1), "noise": torch.Generator().manual_seed(2)}
    with checkpointer(tmp_path / "run", objects=mine) as ck:
        ck.resume()
        mine["dice"].random(), torch.rand(3, generator=mine["noise"])
        ck.save(0).durable()
        expected = mine["dice"].random(), torch.rand(3, generator=mine["noise"])
    again = {"dice": random.Random(7), "noise": torch.Generator().manual_seed(8)}
    with checkpointer(tmp_path / "run", objects=again) as ck:
        assert ck.resume() == 1 and ck.report.inexact == []
    assert again["dice"].random() == expected[0]
    assert torch.equal(torch.rand(3, generator=again["noise"]), expected[1])
