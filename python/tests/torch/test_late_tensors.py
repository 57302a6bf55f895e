"""Tensors that a model gets in mid-run, such as buffers that were None and adapters, come back."""

import pytest
import torch
from torch import nn
from training import Toy, clear

import holdfast


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer("mean", None)

    def fill(self, value):
        self.mean = torch.full((3,), value, dtype=torch.float64)


def saved(run, values, **options):
    """Makes one step for each value, with a buffer of that value, or None."""
    toy = Toy(Lazy())
    with toy.checkpointer(run, **options) as ck:
        for step, value in enumerate(values):
            if value is not None:
                toy.model.fill(value)
            toy.step()
            ck.step(step)
    return toy


def test_a_new_process_gets_the_buffer_with_its_dtype_and_bits(tmp_path):
    saved(tmp_path / "run", [None, 0.1])
    toy = Toy(Lazy())
    with toy.checkpointer(tmp_path / "run") as ck:
        assert ck.resume() == 2 and ck.report.exact and not ck.report.inexact
    assert toy.model.mean.dtype == torch.float64
    assert toy.model.mean.tolist() == [0.1] * 3


def test_a_run_that_goes_back_to_a_step_without_the_buffer_has_none(tmp_path):
    saved(tmp_path / "run", [None, 0.1, 0.2], keep=None)
    toy = Toy(Lazy())
    with toy.checkpointer(tmp_path / "run") as ck:
        ck.resume()
        assert toy.model.mean is not None
        ck.resume(step=0)
        assert toy.model.mean is None and ck.report.exact
        ck.resume(step=1)
        assert toy.model.mean.tolist() == [0.1] * 3


def test_a_damaged_step_that_had_the_buffer_leaves_none_behind(tmp_path):
    saved(tmp_path / "run", [None, 0.1], keep=None)
    newest = sorted((tmp_path / "run").glob("step-*"))[-1]
    for shard in newest.rglob("*.safetensors"):
        shard.write_bytes(shard.read_bytes()[:-8] + b"\xff" * 8)
    toy = Toy(Lazy())
    with toy.checkpointer(tmp_path / "run") as ck:
        assert ck.resume() == 1 and ck.report.skipped
    assert toy.model.mean is None


def test_an_excluded_buffer_is_not_made(tmp_path):
    saved(tmp_path / "run", [0.1])
    toy = Toy(Lazy())
    with holdfast.Checkpointer(tmp_path / "run", model=toy.model, optimizer=toy.optimizer,
                               exclude="mean") as ck:
        ck.resume()
    assert toy.model.mean is None


def test_a_parameter_that_is_none_is_still_refused(tmp_path):
    saved(tmp_path / "run", [0.1])
    toy = Toy(Lazy())
    toy.model.register_parameter("weight", None)
    toy.model.other = nn.Parameter(torch.zeros(2))
    toy.optimizer = torch.optim.AdamW([toy.model.other])
    with toy.checkpointer(tmp_path / "run") as ck:
        with pytest.raises(ValueError, match="not expected: model.weight"):
            ck.resume()
    assert toy.model.mean is None


def with_adapter(run):
    toy = Toy()
    with toy.checkpointer(run) as ck:
        toy.train(ck, [0])
        toy.model.lora = nn.Parameter(torch.zeros(2))
        toy.optimizer.add_param_group({"params": [toy.model.lora]})
        toy.train(ck, [1])


def test_a_model_without_the_adapter_is_refused_with_the_way_to_see_what_was_saved(tmp_path):
    with_adapter(tmp_path / "run")
    with Toy().checkpointer(tmp_path / "run") as ck, pytest.raises(ValueError) as error:
        ck.resume()
    assert clear(error, "not expected: model.lora", "holdfast.open", "strict=False")
    assert "model.lora" in list(holdfast.open(tmp_path / "run"))


def test_what_strict_false_drops_is_said_by_name_in_the_warning_and_the_report(tmp_path, caplog):
    with_adapter(tmp_path / "run")
    with Toy().checkpointer(tmp_path / "run", strict=False) as ck:
        assert ck.resume() == 2
    assert "model.lora" in ck.report.unexpected
    said = [one.message for one in caplog.records if "not expected: model.lora" in one.message]
    assert len(said) == 1 and "1 tensors that were saved are left out" in said[0]


def test_the_step_that_alone_has_what_strict_false_drops_is_never_removed(tmp_path):
    with_adapter(tmp_path / "run")
    toy = Toy()
    with toy.checkpointer(tmp_path / "run", strict=False, keep=1, every="1 steps") as ck:
        toy.train(ck, range(ck.resume(), 8))
    steps = [one["step"] for one in holdfast.ls(tmp_path / "run")["runs"][0]["steps"]]
    assert sorted(steps) == [1, 7]
    assert "model.lora" in list(holdfast.open(tmp_path / "run" / "step-00000001"))


def test_a_parameter_that_is_transposed_in_its_place_is_saved_as_it_is_and_told_at_a_resume(tmp_path):
    toy = Toy(nn.Linear(3, 3))
    with toy.checkpointer(tmp_path / "run") as ck:
        toy.train(ck, [0, 1])
        toy.model.weight.data = toy.model.weight.data.t()
        ck.save(2).durable()
        wanted = toy.model.weight.detach().clone()
    other = Toy(nn.Linear(3, 3))
    with other.checkpointer(tmp_path / "run") as ck:
        assert ck.resume() == 3
    assert torch.equal(other.model.weight, wanted) and not torch.equal(wanted, wanted.t())
    assert len(ck.report.inexact) == 1 and ck.report.inexact[0].startswith("model.weight: had other")
