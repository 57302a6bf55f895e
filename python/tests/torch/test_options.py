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


@pytest.mark.parametrize(("group", "message"), [
    (holdfast.Writing(compress="three"), "^compress='three'; expected a whole number$"),
    (holdfast.Writing(ring=1.5), "^ring=1.5; expected a whole number$"),
    (holdfast.Writing(in_flight=True), "^in_flight=True; expected a whole number$"),
    (holdfast.Writing(direct="yes"), "^direct='yes'; expected True or False$"),
    (holdfast.Failures(grace="1m"), "^grace='1m'; expected a number$"),
    (holdfast.Schedule(milestones=[1.5]), r"^milestones=\[1.5\]; expected a list of whole numb"),
    (holdfast.Schedule(mtbf="long"), "^mtbf='long'; expected a number$"),
    (holdfast.Schedule(objective=3), "^objective=3; expected text$"),
])
def test_a_value_of_the_wrong_type_is_named(tmp_path, group, message):
    with pytest.raises(TypeError, match=message):
        checkpointer(tmp_path / "run", **{type(group).__name__.lower(): group})
    assert not (tmp_path / "run").exists()


def test_a_tier_that_is_no_place_is_named(tmp_path):
    message = r'^tiers: 3; expected a folder, "s3://bucket/prefix" or a Tier$'
    with pytest.raises(TypeError, match=message):
        checkpointer(tmp_path / "run", tiers=[3])


def test_never_saves_only_when_told_to(tmp_path):
    with checkpointer(tmp_path / "run", every="never") as ck:
        ck.resume()
        for step in range(5):
            ck.step(step)
        ck.save(5).durable()
    assert [path.name for path in (tmp_path / "run").glob("step-*")] == ["step-00000005"]


@pytest.mark.parametrize(("name", "message"), [
    ("a.b", "expected a word"), ("_gradients", "expected a word"), ("", "expected a word"),
    (7, "expected a word"), ("ema", "belongs to the Checkpointer"),
    ("model", "belongs to the Checkpointer"), ("values", "belongs to the Checkpointer"),
])
def test_names_of_objects_are_plain_words(tmp_path, name, message):
    with pytest.raises(ValueError, match=message):
        checkpointer(tmp_path / "run", objects={name: nn.Linear(1, 1)})


def test_a_saver_has_no_guard(tmp_path):
    with pytest.raises(ValueError, match="Saver: writing has guard='full', which only a Checkp"):
        holdfast.Saver(tmp_path / "run", writing=holdfast.Writing(guard="full"))


def test_own_generators_are_objects_too(tmp_path):
    """A generator in `objects` is saved with the others, and continues where it was."""
    _mine = {"dice": random.Random(1), "noise": torch.Generator().manual_seed(2)}
    with checkpointer(tmp_path / "run", objects=_mine) as ck:
        ck.resume()
        _mine["dice"].random(), torch.rand(3, generator=_mine["noise"])
        ck.save(0).durable()
        expected = _mine["dice"].random(), torch.rand(3, generator=_mine["noise"])
    again = {"dice": random.Random(7), "noise": torch.Generator().manual_seed(8)}
    with checkpointer(tmp_path / "run", objects=again) as ck:
        assert ck.resume() == 1 and ck.report.inexact == []
    assert again["dice"].random() == expected[0]
    assert torch.equal(torch.rand(3, generator=again["noise"]), expected[1])


@pytest.mark.parametrize(("options", "message"), [
    ({"helpers": -1}, r"^helpers=-1; expected 0 to 64 processes$"),
    ({"helpers": True}, r"^helpers=True; expected 0 to 64 processes$"),
    ({"helpers": 2, "log": "updates"}, r"^helpers=2, log='updates': helpers share steps .* expected log=\"messages\""),
    ({"helpers": 2, "undo": True}, r"^helpers=2, undo=True: helpers share steps"),
])
def test_wrong_numbers_of_helpers_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        holdfast.Recover(**options)
