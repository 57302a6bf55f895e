"""Modules that save and load values themselves, and modules whose buffers get new shapes."""

from grouped import grouped
import pytest
import torch
from ranks import run_ranks
from torch import nn
from torch.ao import quantization
from torch.nn.parallel import DistributedDataParallel
from training import Toy, clear

import holdfast

pytestmark = pytest.mark.filterwarnings("ignore::Warning:torch.ao", "ignore:torch.ao",
                                        "ignore:torch.quant", "ignore:Please use quant_min")


class Scaled(nn.Linear):
    """A module with a number and a tensor that only its own state_dict code saves."""

    def __init__(self, start=0):
        super().__init__(4, 2)
        self.seen, self.scale = start, torch.full((2,), float(start))

    def forward(self, x):
        self.seen += 1
        self.scale = self.scale + 0.5
        return super().forward(x) * self.scale + self.seen

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "seen"], destination[prefix + "scale"] = self.seen, self.scale

    def _load_from_state_dict(self, state_dict, prefix, *rest):
        self.seen = state_dict.pop(prefix + "seen")
        self.scale = state_dict.pop(prefix + "scale")
        super()._load_from_state_dict(state_dict, prefix, *rest)


def train(run, steps, model, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="1 steps",
                               **grouped(space_reserve=0, **options)) as checkpointer:
        for step in range(checkpointer.resume(), steps):
            optimizer.zero_grad()
            model(torch.ones(3, 4) * step).sum().backward()
            optimizer.step()
            checkpointer.step(step)
    return checkpointer.report


def scaled(run, steps, wrap=lambda model: model, start=0):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), Scaled(start))
    report = train(run, steps, wrap(net))
    assert report.exact and not report.inexact
    return net[1].seen, net[1].scale.tolist(), net[0].weight.tolist()


def test_what_a_module_puts_into_its_state_dict_comes_back(tmp_path):
    wanted = scaled(tmp_path / "a", 6)
    scaled(tmp_path / "b", 3)
    assert scaled(tmp_path / "b", 6) == wanted and wanted[0] == 6
    assert "model.1._state_dict.scale" in holdfast.open(tmp_path / "b")


def on_ranks(rank, world, folder):
    wanted = scaled(f"{folder}/a", 6, DistributedDataParallel, 100 * rank)
    scaled(f"{folder}/b", 3, DistributedDataParallel, 100 * rank)
    return scaled(f"{folder}/b", 6, DistributedDataParallel) == wanted


def test_each_rank_gets_its_own(tmp_path):
    assert run_ranks(2, on_ranks, str(tmp_path)) == [True, True]


class Deaf(Scaled):
    def _load_from_state_dict(self, *args):
        nn.Module._load_from_state_dict(self, *args)


def test_what_a_module_does_not_load_is_said(tmp_path):
    train(tmp_path, 2, nn.Sequential(Deaf()))
    report = train(tmp_path, 2, nn.Sequential(Deaf()))
    assert len(report.inexact) == 1
    assert report.inexact[0].startswith("model.0.scale, model.0.seen: from a state_dict of")


def test_a_checkpoint_without_it_is_resumed_and_it_is_said(tmp_path):
    train(tmp_path, 2, nn.Sequential(nn.Linear(4, 2)))
    report = train(tmp_path, 2, nn.Sequential(Scaled()))
    assert "model.0.scale, model.0.seen" in report.inexact[0]


class Quantized(nn.Linear):
    """A module like torch's quantized layers: the weight is neither a parameter nor a buffer."""

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        packed = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
        destination[prefix + "_packed_params"] = (packed, None)


def test_quantized_weights_are_refused_by_name_when_the_checkpointer_is_made(tmp_path):
    toy = Toy(nn.Sequential(nn.Linear(4, 4), Quantized(4, 2)))
    with pytest.raises(TypeError) as raised:
        toy.checkpointer(tmp_path)
    assert clear(raised, "model.1._state_dict._packed_params.0", "quantized")


# Buffers that get their shapes in the first forward pass


class Prepared(nn.Module):
    """A model prepared for quantization-aware training, with observers for each channel."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        self.net.qconfig = quantization.get_default_qat_qconfig("x86")
        self.net.train()
        quantization.prepare_qat(self.net, inplace=True)

    def forward(self, x):
        return self.net(x)


def prepared(run, steps):
    torch.manual_seed(0)
    model = Prepared()
    report = train(run, steps, model)
    assert report.exact and not report.inexact
    return {name: value.tolist() for name, value in model.state_dict().items()}


def test_a_model_prepared_for_quantization_is_resumed(tmp_path):
    wanted = prepared(tmp_path / "a", 6)
    assert len(wanted["net.0.weight_fake_quant.scale"]) == 4
    prepared(tmp_path / "b", 3)
    assert prepared(tmp_path / "b", 6) == wanted


def test_going_back_to_the_first_shapes_is_possible(tmp_path):
    torch.manual_seed(0)
    model = Prepared()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = {name: value.tolist() for name, value in model.state_dict().items()}
    with holdfast.Checkpointer(tmp_path, model=model, optimizer=optimizer, every="1000 steps",
                               writing=holdfast.Writing(space_reserve=0)) as checkpointer:
        checkpointer.save(0).durable()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        assert checkpointer.resume() == 1
        assert {name: value.tolist() for name, value in model.state_dict().items()} == before
        checkpointer.save(1).durable()


class Strict(nn.Module):
    """A module that overrides loading and does not accept another shape."""

    def __init__(self, size):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("table", torch.zeros(size))

    def forward(self, x):
        return self.layer(x)

    def _load_from_state_dict(self, *args):
        super()._load_from_state_dict(*args)


@pytest.mark.parametrize("make", [
    Strict, lambda size: nn.Sequential(nn.Linear(4, size), nn.BatchNorm1d(size, affine=False))])
def test_other_buffers_of_another_shape_are_refused(tmp_path, make):
    train(tmp_path, 1, make(3))
    with pytest.raises(ValueError, match=r"is float32 \[3\]; expected float32 \[5\]"):
        train(tmp_path, 1, make(5))


class Caching(nn.Module):
    """Has caches that are no part of its state_dict(); one grows, and one appears later."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("grows", torch.zeros(1, dtype=dtype), persistent=False)
        self.register_buffer("appears", None, persistent=False)

    def forward(self, x):
        if len(self.grows) < 3:
            self.grows = torch.arange(3.0)
        self.appears = torch.ones(2)
        return self.linear(x) + self.grows.sum()


def test_caches_that_grow_or_appear_do_not_prevent_a_resume(tmp_path, caplog):
    model, fresh = Caching(), Caching()
    options = {"every": "never", "writing": holdfast.Writing(space_reserve=0)}
    with holdfast.Checkpointer(tmp_path, model=model, **options) as ck:
        model(torch.ones(1, 4))
        ck.save(3)
    with holdfast.Checkpointer(tmp_path, model=fresh, **options) as ck:
        assert ck.resume() == 4 and ck.report.exact
        assert ck.report.inexact == []
    assert "Caching.grows, which is not persistent, is [3] as in the checkpoint; it was [1]" in (
        caplog.text)
    assert fresh.grows.tolist() == [0, 1, 2] and torch.equal(fresh.appears, model.appears)
    assert torch.equal(fresh.linear.weight, model.linear.weight)
    with holdfast.Checkpointer(tmp_path, model=Caching(torch.float64), **options) as ck:
        with pytest.raises(ValueError, match="model.grows is float32 .3.; expected float64 .1."):
            ck.resume()
