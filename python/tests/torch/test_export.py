"""holdfast.export: what it writes is loaded by torch and safetensors without a key too many."""

import json
import subprocess
from pathlib import Path

import numpy
import pytest
import torch
from ranks import run_ranks
from safetensors.torch import load_file, load_model
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from training import GPT, ResNet

import holdfast

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
WRITING = holdfast.Writing(space_reserve=0)


class Counting(nn.Module):
    """Has extra state, a module called "module", BatchNorm and a tied head."""

    def __init__(self):
        super().__init__()
        self.module = nn.Embedding(16, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.module.weight
        self.calls = 0
        self.register_buffer("scale", torch.ones(2), persistent=False)

    def forward(self, tokens):
        self.calls += 1
        return self.head(self.norm(self.module(tokens)))

    def get_extra_state(self):
        return {"calls": self.calls, "mark": torch.tensor([self.calls, 7])}

    def set_extra_state(self, state):
        self.calls = int(state["mark"][0])


def update(model, optimizer, seed):
    tokens = torch.randint(16, (12,), generator=torch.Generator().manual_seed(seed))
    nn.functional.cross_entropy(model(tokens), tokens).backward()
    optimizer.step()
    optimizer.zero_grad()


def save(run, model, optimizer, step=2, **more):
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="never",
                               writing=WRITING, **more) as ck:
        for k in range(step + 1):
            update(model, optimizer, k)
            if "ema" in more:
                more["ema"].update_parameters(model)
        ck.save(step)


def groups_of(model):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    return [{"params": decayed, "weight_decay": 0.1, "name": "decayed"},
            {"params": [p for p in model.parameters() if p.dim() < 2], "lr": 0.02}]


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        if isinstance(tensor, torch.Tensor):
            assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


@pytest.mark.parametrize("make", [Counting, GPT, ResNet])
def test_a_pt_file_is_the_state_dict_of_the_model(tmp_path, make):
    torch.manual_seed(1)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer, every="never",
                               writing=WRITING) as ck:
        ck.save(0)
    assert holdfast.export(tmp_path / "run", tmp_path / "model.pt")["notes"] == []
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert_same(loaded, model.state_dict())
    fresh = make()
    assert fresh.load_state_dict(loaded, strict=True) is not None
    assert_same(fresh.state_dict(), model.state_dict())


def test_tied_weights_are_one_tensor_in_a_pt_file_and_two_in_safetensors(tmp_path):
    model = GPT()
    with holdfast.Checkpointer(tmp_path / "run", model=model, every="never",
                               writing=WRITING) as ck:
        ck.save(0)
    holdfast.export(tmp_path / "run", tmp_path / "m.pt")
    loaded = torch.load(tmp_path / "m.pt", weights_only=True)
    assert loaded["head.weight"].data_ptr() == loaded["embed.weight"].data_ptr()
    holdfast.export(tmp_path / "run", tmp_path / "m.safetensors")
    GPT().load_state_dict(load_file(tmp_path / "m.safetensors"), strict=True)
    holdfast.export(tmp_path / "run", tmp_path / "once.safetensors", ties="once")
    assert "head.weight" not in load_file(tmp_path / "once.safetensors")
    fresh = GPT()
    load_model(fresh, tmp_path / "once.safetensors")
    assert_same(fresh.state_dict(), model.state_dict())


def test_extra_state_is_in_a_pt_file_and_named_as_left_out_of_safetensors(tmp_path):
    model = Counting()
    save(tmp_path / "run", model, torch.optim.SGD(model.parameters(), lr=0.1))
    holdfast.export(tmp_path / "run", tmp_path / "m.pt")
    fresh = Counting()
    fresh.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True), strict=True)
    assert fresh.calls == 3
    notes = holdfast.export(tmp_path / "run", tmp_path / "m.safetensors")["notes"]
    assert any("_extra_state" in note for note in notes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_numbers_are_converted_as_torch_does(tmp_path, dtype):
    odd = torch.tensor([0.0, -0.0, 1.0, 1e-8, -3e-8, 5.9e-8, 6.1e-5, 65504.0, 65519.9, 65520.0,
                        1e30, -1e30, float("inf"), 3.3e38, 1 + 2**-9, 1 + 3 * 2**-9])
    noise = torch.randn(1000, generator=torch.Generator().manual_seed(3)) * 1e-3
    bits = torch.randint(-2**31, 2**31, (20000,), generator=torch.Generator().manual_seed(4))
    every = bits.to(torch.int32).view(torch.float32)
    tensors = {"odd": odd, "noise": noise, "every": every[~every.isnan()],
               "double": every[~every.isnan()].double() * 1.0000001,
               "half": torch.arange(0, 31744, dtype=torch.int16).view(torch.float16),
               "whole": torch.arange(5)}
    holdfast.save(tensors, tmp_path / "in.safetensors")
    holdfast.export(tmp_path / "in.safetensors", tmp_path / "out.safetensors", dtype=dtype)
    found = load_file(tmp_path / "out.safetensors")
    expected = {name: one.to(dtype) if one.is_floating_point() else one
                for name, one in tensors.items()}
    if dtype == torch.float16:  # torch rounds doubles twice on some CPUs, and numpy never does
        with numpy.errstate(over="ignore"):
            expected["double"] = torch.from_numpy(tensors["double"].numpy().astype("f2"))
    assert_same(found, expected)


def test_the_average_is_exported_on_request(tmp_path):
    model = Counting()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    save(tmp_path / "run", model, torch.optim.SGD(model.parameters(), lr=0.5), ema=ema)
    holdfast.export(tmp_path / "run", tmp_path / "ema.pt", ema=True)
    loaded = torch.load(tmp_path / "ema.pt", weights_only=True)
    assert torch.equal(loaded["module.weight"], ema.module.module.weight)
    assert not torch.equal(loaded["module.weight"], model.module.weight)
    assert torch.equal(loaded["head.weight"], ema.module.module.weight)
    Counting().load_state_dict(loaded, strict=True)


@pytest.mark.parametrize("make", [
    lambda groups: torch.optim.AdamW(groups, lr=0.01),
    lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9),
    lambda groups: torch.optim.Adafactor(groups, lr=0.01),
])
def test_an_optimizer_loads_what_is_exported_of_it(tmp_path, make):
    model = Counting()
    optimizer = make(groups_of(model))
    save(tmp_path / "run", model, optimizer)
    holdfast.export(tmp_path / "run", tmp_path / "opt.pt", optimizer=True)
    fresh_model = Counting()
    fresh = make(groups_of(fresh_model))
    fresh.load_state_dict(torch.load(tmp_path / "opt.pt", weights_only=True))
    mine, theirs = fresh.state_dict(), optimizer.state_dict()
    for found, expected in zip(mine["param_groups"], theirs["param_groups"], strict=True):
        assert {**found, "fused": None} == {**expected, "fused": None}  # the live one's choice
    assert mine["state"].keys() == theirs["state"].keys()
    for number, slots in theirs["state"].items():
        assert_same(mine["state"][number], slots)
    holdfast.export(tmp_path / "run", tmp_path / "m.pt")
    fresh_model.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True))
    update(model, optimizer, 9)
    update(fresh_model, fresh, 9)
    assert_same(fresh_model.state_dict(), model.state_dict())  # and it goes on with the same bits


def test_options_that_are_tensors_or_of_numpy_become_numbers(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.25), capturable=True)
    optimizer.param_groups[0] |= {"decay": numpy.float64(0.1), "rounds": numpy.int32(-7)}
    with holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer, every="never",
                               writing=WRITING) as ck:
        ck.save(0)
    holdfast.export(tmp_path / "run", tmp_path / "opt.pt", optimizer=True)
    group = torch.load(tmp_path / "opt.pt", weights_only=True)["param_groups"][0]
    assert (group["lr"], group["decay"], group["rounds"]) == (0.25, 0.1, -7)


def test_several_models_and_optimizers_are_exported_by_name(tmp_path):
    model, other = Counting(), nn.Linear(3, 2)
    first = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    second = torch.optim.Adam(other.parameters(), lr=0.2)
    with holdfast.Checkpointer(tmp_path / "run", model={"g": model, "d": other},
                               optimizer={"g": first, "d": second}, every="never",
                               writing=WRITING) as ck:
        other(torch.ones(3)).sum().backward()
        second.step()
        update(model, first, 0)
        ck.save(0)
    subprocess.run([PROGRAM, "export", tmp_path / "run", tmp_path / "d.pt", "--select", "d.*",
                    "--strip", "d."], check=True)
    other_again = nn.Linear(3, 2)
    other_again.load_state_dict(torch.load(tmp_path / "d.pt", weights_only=True), strict=True)
    assert_same(other_again.state_dict(), other.state_dict())
    holdfast.export(tmp_path / "run", tmp_path / "opt.pt", optimizer=True)
    both = torch.load(tmp_path / "opt.pt", weights_only=True)
    torch.optim.Adam(other_again.parameters()).load_state_dict(both["d"])
    assert both["d"]["param_groups"][0]["lr"] == 0.2 and len(both["g"]["state"]) == 3


def export_of_ranks(rank, world, folder, kind):
    torch.manual_seed(0)
    model = GPT()
    wrapped = {"ddp": lambda: DistributedDataParallel(model),
               "compiled": lambda: torch.compile(DistributedDataParallel(model), backend="eager"),
               "fsdp": lambda: fully_shard(model)}[kind]()
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    with holdfast.Checkpointer(folder / "run", model=wrapped, optimizer=optimizer, every="never",
                               writing=WRITING) as ck:
        tokens = torch.randint(16, (2, 12), generator=torch.Generator().manual_seed(5))
        model.loss(wrapped, (tokens, None)).backward()
        optimizer.step()
        ck.save(0)
    return {name: (one.full_tensor() if hasattr(one, "full_tensor") else one).clone()
            for name, one in model.state_dict().items()}


@pytest.mark.parametrize("kind", ["ddp", "compiled", "fsdp"])
def test_wrapped_and_sharded_models_have_the_names_of_the_plain_one(tmp_path, kind):
    expected = run_ranks(2, export_of_ranks, tmp_path, kind)[0]
    holdfast.export(tmp_path / "run", tmp_path / "m.pt")
    loaded = torch.load(tmp_path / "m.pt", weights_only=True)
    plain = GPT()
    plain.load_state_dict(loaded, strict=True)
    assert_same(plain.state_dict(), expected)
    holdfast.export(tmp_path / "run", tmp_path / "opt.pt", optimizer=True)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
    optimizer.load_state_dict(torch.load(tmp_path / "opt.pt", weights_only=True))
    slots = optimizer.state_dict()["state"]
    assert len(slots) == len(list(plain.parameters()))
    shapes = [tuple(p.shape) for p in plain.parameters()]
    assert [tuple(slots[k]["exp_avg"].shape) for k in range(len(slots))] == shapes


def test_refusals_are_one_sentence_and_write_nothing(tmp_path):
    model = nn.Linear(2, 2)
    with holdfast.Checkpointer(tmp_path / "run", model=model, every="never",
                               writing=WRITING) as ck:
        ck.save(0)
    (tmp_path / "taken.pt").touch()
    before = sorted(path.name for path in tmp_path.iterdir())
    cases = [
        (["m.xyz"], "does not tell the format"),
        (["hf/"], "needs the model's config.json"),
        (["m.safetensors", "--optimizer"], "expected a .pt file"),
        (["m.pt", "--optimizer"], "there is no optimizer"),
        (["m.pt", "--ema"], "there is no average"),
        (["m.pt", "--select", "nothing.*"], "no tensor matches nothing.*"),
        (["m.pt", "--strip", "weights."], "no name begins"),
        (["m.pt", "--dtype", "i32"], "expected F16, BF16, F32 or F64"),
        (["m.pt", "--ties", "twice"], "expected each or once"),
        (["m.pt", "--shard-size", "5TB"], "expected a size such as 5GB"),
        (["taken.pt"], "exists already"),
    ]
    for arguments, words in cases:
        target, *options = arguments
        done = subprocess.run([PROGRAM, "export", tmp_path / "run", str(tmp_path / target)
                               + ("/" if target.endswith("/") else ""), *options],
                              capture_output=True, text=True, check=False)
        assert words in done.stderr and done.stderr.count("\n") == 1, (arguments, done.stderr)
        assert done.returncode != 0, arguments
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_the_program_prints_json_and_a_damaged_step_is_passed_over(tmp_path):
    model = nn.Linear(4, 4)
    with holdfast.Checkpointer(tmp_path / "run", model=model, every="never",
                               writing=WRITING) as ck:
        ck.save(0).durable()
        saved = model.weight.detach().clone()
        with torch.no_grad():
            model.weight.add_(1)
        ck.save(1)
    shard = next((tmp_path / "run" / "step-00000001").glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    shard.write_bytes(data)
    done = subprocess.run([PROGRAM, "export", tmp_path / "run", tmp_path / "m.pt", "--json"],
                          capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    assert told["tensors"] == 2 and told["from"].endswith("step-00000000") and told["skipped"]
    assert torch.equal(torch.load(tmp_path / "m.pt")["weight"], saved)


class Adapted(nn.Module):
    """Has the names of a model with adapters of PEFT; one module is called as an adapter is."""

    def __init__(self, names):
        super().__init__()
        self.second = nn.Linear(2, 2)
        self.lora_A = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in names})


def export_adapter(tmp_path, names, **options):
    model = Adapted(names)
    with holdfast.Checkpointer(tmp_path / "run", model=model, every="never", writing=WRITING) as ck:
        ck.resume()
        ck.save(0)
    (tmp_path / "adapter_config.json").write_text("{}")
    holdfast.export(tmp_path / "run", tmp_path / "ours", format="peft",
                    config=tmp_path / "adapter_config.json", **options)
    found = load_file(tmp_path / "ours" / "adapter_model.safetensors")
    return {name: torch.equal(tensor, model.lora_A[options.get("adapter") or names[0]].weight)
            for name, tensor in found.items()}


def test_the_only_adapter_is_exported_whatever_its_name(tmp_path):
    assert export_adapter(tmp_path, ["second"]) == {"lora_A.weight": True}


def test_of_several_adapters_one_must_be_named_if_none_is_known_to_be_active(tmp_path):
    with pytest.raises(ValueError, match="several adapters: default, second; expected --adapter"):
        export_adapter(tmp_path, ["default", "second"])
    (tmp_path / "named").mkdir()
    named = export_adapter(tmp_path / "named", ["default", "second"], adapter="second")
    assert named == {"lora_A.weight": True}
