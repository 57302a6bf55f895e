"""Models and optimizers as pieces: which tensors are found, refused and restored."""

import json

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import holdfast
from holdfast import Box
from holdfast.torch.state.param_groups import merge_optimizer_objects
from holdfast.torch.state.tensor_state import TensorState
from holdfast.torch.values.boxes import Sharded
from holdfast.torch.values.dtypes import SavedTensor


class Net(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.a = nn.Linear(width, 2 * width)
        self.b = nn.Linear(2 * width, width)
        self.register_buffer("count", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.count += 1
        return self.b(torch.relu(self.a(x)))


def train(model, optimizer, steps=2, width=6):
    for step in range(steps):
        torch.manual_seed(step)
        closure = lambda: _loss(model, optimizer, width)  # noqa: E731
        optimizer.step(closure)
    optimizer.zero_grad()


def _loss(model, optimizer, width):
    optimizer.zero_grad()
    loss = model(torch.ones(4, width)).float().pow(2).sum()
    loss.backward()
    return loss


def saved_of(pieces):
    """The pieces as a checkpoint would describe them."""
    return {p.name: SavedTensor(p.tensor.dtype, p.shape) for p in pieces}


def copy_into(state, saved):
    """Fills each piece with its box of the whole tensor of that name."""
    for piece in state.pieces():
        part = tuple(slice(lo, hi) for lo, hi in piece.box.extents)
        piece.tensor.copy_(saved[piece.name][part])


def whole_of(pieces):
    return {p.name: p.tensor.clone() for p in pieces}


def same_bits(a, b):
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.95)),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), amsgrad=True, foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p),
    "adafactor": lambda p: torch.optim.Adafactor(p),
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_fresh_optimizer_gets_its_state_and_goes_on_with_the_same_bits(name):
    torch.manual_seed(3)
    model = Net()
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer)
    state = TensorState(model, optimizer)
    saved, values, objects = saved_of(state.pieces()), whole_of(state.pieces()), state.objects()
    train(model, optimizer)

    again = Net()
    fresh = OPTIMIZERS[name](again.parameters())
    fresh.param_groups[0]["lr"] = fresh.param_groups[0]["lr"] * 7
    other = TensorState(again, fresh)
    other.allocate_slots(saved, objects)
    copy_into(other, values)
    assert other.load_objects(objects) == []
    assert same_bits(whole_of(other.pieces()), values)
    train(again, fresh)
    assert same_bits(whole_of(other.pieces()), whole_of(state.pieces()))
    kinds = [{k: type(v) for k, v in s.items()} for s in fresh.state.values()]
    assert kinds == [{k: type(v) for k, v in s.items()} for s in optimizer.state.values()]


@pytest.mark.parametrize("live, saved, kept", [
    (torch.zeros(()), torch.tensor(0.5), True), (torch.zeros(1), torch.tensor([0.5]), True),
    (torch.zeros(3), torch.arange(3.0), True), (torch.zeros(1), torch.tensor(0.5), True),
    (torch.zeros((), dtype=torch.float64), 0.1, True), (torch.zeros(()), None, False),
    (torch.zeros(2), torch.arange(3.0), False), (torch.zeros(()), torch.tensor([0.5]), False),
])
def test_options_that_are_tensors_come_back_in_their_tensors(live, saved, kept):
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    one, other = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (first, second))
    one.param_groups[0]["mask"], other.param_groups[0]["mask"] = saved, live
    TensorState(second, other).load_objects(TensorState(first, one).objects())
    found = other.param_groups[0]["mask"]
    assert (found is live) == kept
    assert found is saved if saved is None else torch.equal(
        found.reshape(-1), torch.as_tensor(saved, dtype=found.dtype).reshape(-1))


def test_every_tensor_is_a_piece_with_its_name_and_class():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
    pieces = {p.name: p for p in TensorState(model, optimizer).pieces()}
    assert {p.kind for p in pieces.values()} == {"parameter", "buffer", "slot"}
    assert len(pieces) == 4 + 1 + 12
    weight = pieces["model.a.weight"]
    assert weight.tensor.data_ptr() == model.a.weight.data_ptr()
    assert not weight.tensor.requires_grad and not weight.at_once
    assert (weight.shape, weight.box) == ((12, 6), Box([(0, 12), (0, 6)]))
    assert pieces["model.count"].at_once and pieces["optimizer.a.bias.step"].at_once
    assert not pieces["optimizer.a.bias.exp_avg"].at_once


def test_a_step_records_what_each_tensor_is_for(tmp_path):
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    with holdfast.Checkpointer(tmp_path / "run", model=model, optimizer=optimizer) as ck:
        ck.save(1)
    index = json.loads((tmp_path / "run/step-00000001/rank-0000.index.json").read_text())
    roles = {name: (role, of) for name, _, _, role, of, *_ in index["tensors"]}
    assert roles["model.0.weight"] == ("parameter", "")
    assert roles["model.1.running_var"] == ("buffer", "")
    assert roles["model.1.num_batches_tracked"] == ("counter", "")
    assert roles["optimizer.0.weight.exp_avg"] == ("slot", "model.0.weight")
    assert roles["optimizer.0.weight.step"] == ("counter", "model.0.weight")


def test_walking_changes_nothing_and_a_fresh_optimizer_stays_fresh():
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    before = whole_of(TensorState(model).pieces())
    state = TensorState(model, optimizer)
    state.objects()
    assert not optimizer.state and same_bits(whole_of(TensorState(model).pieces()), before)


def test_pieces_follow_tensors_that_are_replaced():
    model = Net()
    state = TensorState(model)
    first = state.pieces()
    assert state.pieces() is first
    model.count = torch.ones(())
    model.a.weight.data = torch.full((12, 6), 3.0)
    pieces = {p.name: p for p in state.pieces()}
    assert pieces["model.count"].tensor == 1 and pieces["model.a.weight"].tensor[0, 0] == 3
    model.a.weight = nn.Parameter(torch.zeros(12, 6))
    with pytest.raises(ValueError, match="model.a.weight: replaced by another parameter"):
        state.pieces()


def test_moments_of_bf16_parameters_stay_fp32():
    model = Net().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters())
    train_input = torch.ones(4, 6, dtype=torch.bfloat16)
    model(train_input).sum().backward()
    optimizer.step()
    for slots in optimizer.state.values():
        slots["exp_avg"] = slots["exp_avg"].float() / 3
    state = TensorState(model, optimizer)
    values = whole_of(state.pieces())
    fresh = torch.optim.AdamW(model.parameters())
    other = TensorState(model, fresh)
    other.allocate_slots(saved_of(state.pieces()), state.objects())
    copy_into(other, values)
    assert same_bits(whole_of(other.pieces()), values)
    assert fresh.state[model.a.weight]["exp_avg"].dtype == torch.float32


def test_options_go_by_parameter_whatever_group_it_was_in():
    model = Net()
    a, b = list(model.a.parameters()), list(model.b.parameters())
    optimizer = torch.optim.AdamW([{"params": a, "lr": 0.5}, {"params": b, "weight_decay": 0.25}])
    objects = TensorState(model, optimizer).objects()
    fresh = torch.optim.AdamW([{"params": b}, {"params": a[:1]}, {"params": a[1:]}])
    assert TensorState(model, fresh).load_objects(objects) == []
    assert [g["lr"] for g in fresh.param_groups] == [1e-3, 0.5, 0.5]
    assert [g["weight_decay"] for g in fresh.param_groups] == [0.25, 0.01, 0.01]
    assert fresh.param_groups[0]["betas"] == (0.9, 0.999)
    with pytest.raises(ValueError, match="optimizer.a.weight and optimizer.b.weight are in one"):
        TensorState(model, torch.optim.AdamW(model.parameters())).load_objects(objects)


def test_options_of_ranks_become_one_and_a_ranks_own_come_first():
    model = Net()
    one = TensorState(model, torch.optim.SGD(model.a.parameters(), lr=1)).objects()
    two = TensorState(model, torch.optim.SGD(model.b.parameters(), lr=2)).objects()
    fresh = torch.optim.SGD([{"params": model.b.parameters()}, {"params": model.a.parameters()}])
    TensorState(model, fresh).load_objects(merge_optimizer_objects([one, two, one]))
    assert [g["lr"] for g in fresh.param_groups] == [2, 1]
    three = TensorState(model, torch.optim.SGD(model.a.parameters(), lr=3)).objects()
    names = ["optimizer.a.weight", "optimizer.a.bias"]
    for own, lr, differ in [(None, 1, names), (0, 1, []), (1, 3, []), (2, 1, names)]:
        merged = merge_optimizer_objects([one, three, two], own)
        TensorState(model, fresh).load_objects(merged)
        assert [g["lr"] for g in fresh.param_groups] == [2, lr] and merged["differ"] == differ


def test_tied_weights_share_slots_by_either_name():
    model = nn.ModuleDict({"embed": nn.Embedding(3, 2), "head": nn.Linear(2, 3, bias=False)})
    model["head"].weight = model["embed"].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=1, momentum=0.9)
    model["embed"].weight.sum().backward()
    optimizer.step()
    pieces = {p.name: p for p in TensorState(model, optimizer).pieces()}
    assert pieces["model.embed.weight"].aliases == ("model.head.weight",)
    slot = pieces["optimizer.embed.weight.momentum_buffer"]
    assert slot.aliases == ("optimizer.head.weight.momentum_buffer",)
    fresh = torch.optim.SGD(model.parameters(), lr=1, momentum=0.9)
    state = TensorState(model, fresh)
    saved = {slot.aliases[0]: SavedTensor(torch.float32, (3, 2))}
    made = state.allocate_slots(saved, state.objects())
    assert made == [slot.aliases[0]]
    assert fresh.state[model["embed"].weight]["momentum_buffer"].shape == (3, 2)


def test_several_models_and_optimizers_go_by_their_keys():
    models = {"g": Net(), "d": Net()}
    optimizers = {k: torch.optim.AdamW(m.parameters()) for k, m in models.items()}
    for key in models:
        train(models[key], optimizers[key], 1)
    names = {p.name for p in TensorState(models, optimizers).pieces()}
    assert "model.g.a.weight" in names and "optimizer.d.d.b.bias.exp_avg" in names
    with pytest.raises(ValueError, match="optimizer.a.weight: in two optimizers"):
        twice = [torch.optim.SGD(models["g"].parameters(), lr=1) for _ in range(2)]
        TensorState(models["g"], twice)


def test_stages_whose_names_begin_anew_need_a_map():
    stages = [nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))]
    with pytest.raises(ValueError, match="model.0.weight: two tensors have this name; expected "
                                         'model={"generator": ..., "critic": ...} for several'):
        TensorState(stages)
    names = [p.name for p in TensorState(stages, names=[None, {"0": "1"}]).pieces()]
    assert names == ["model.0.weight", "model.0.bias", "model.1.weight", "model.1.bias"]


def test_an_optimizer_of_another_model_is_refused():
    with pytest.raises(ValueError, match=r"a parameter of shape \(12, 6\) that the model"):
        TensorState(Net(), torch.optim.SGD(Net().parameters(), lr=1))


def test_a_hand_cut_parameter_takes_its_slots_along():
    model = nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1, momentum=0.9)
    model.weight.sum().backward()
    optimizer.step()
    state = TensorState(model, optimizer, rules={"model.weight": Sharded(0, 1, 2)})
    for piece in state.pieces():
        assert (piece.shape, piece.box) == ((6, 4), Box([(3, 6), (0, 4)])), piece.name
    fresh = torch.optim.SGD(model.parameters(), lr=1, momentum=0.9)
    other = TensorState(model, fresh, rules={"model.weight": Sharded(0, 1, 2)})
    other.allocate_slots(saved_of(state.pieces()), state.objects())
    assert fresh.state[model.weight]["momentum_buffer"].shape == (3, 4)


def test_an_odd_slot_of_a_cut_parameter_needs_a_rule():
    model = nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.Adafactor(model.parameters())
    train_once(model, optimizer)
    cut = {"model.weight": Sharded(0, 1, 2)}
    with pytest.raises(ValueError, match=r"optimizer.weight.row_var: shape \(3, 1\), and its"):
        TensorState(model, optimizer, rules=cut).pieces()
    rules = {**cut, "*.row_var": Sharded(0, 1, 2), "*.col_var": "own"}
    state = TensorState(model, optimizer, rules=rules)
    pieces = {p.name: p for p in state.pieces()}
    assert pieces["optimizer.weight.row_var"].box == Box([(3, 6), (0, 1)])
    assert pieces["optimizer.weight.col_var"].copies == "own"
    fresh = torch.optim.Adafactor(model.parameters())
    TensorState(model, fresh, rules=rules).allocate_slots(saved_of(state.pieces()), state.objects())
    assert fresh.state[model.weight]["row_var"].shape == (3, 1)
    with pytest.raises(ValueError, match="row_var: shape"):
        other = torch.optim.Adafactor(model.parameters())
        cut_state = TensorState(model, other, rules=cut)
        cut_state.allocate_slots(saved_of(state.pieces()), state.objects())


def train_once(model, optimizer):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


# Real ranks


def build(mesh, seed):
    torch.manual_seed(seed)
    model = Net()
    if "tp" in mesh.mesh_dim_names:
        parallelize_module(model, mesh["tp"], {"a": ColwiseParallel(), "b": RowwiseParallel()})
    if "dp" in mesh.mesh_dim_names:
        fully_shard(model, mesh=mesh["dp"])
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def gathered(state, world):
    """The whole tensors, assembled from the pieces of all ranks."""
    mine = [(p.name, p.tensor.clone(), p.shape, p.box.extents) for p in state.pieces()]
    everyone = [None] * world
    dist.all_gather_object(everyone, mine)
    whole = {}
    for name, tensor, shape, extents in (piece for pieces in everyone for piece in pieces):
        into = whole.setdefault(name, torch.full(shape, float("nan"), dtype=tensor.dtype))
        into[tuple(slice(lo, hi) for lo, hi in extents)] = tensor
    assert not any(tensor.isnan().any() for tensor in whole.values())
    return whole


def evaluate_so_that_parameters_stay_gathered(model):
    sharded = model.a.weight
    with torch.no_grad():
        model(torch.ones(1, 6))
    assert model.a.weight is not sharded


def move_between_meshes(rank, world):
    meshes = [((2, 2), ("dp", "tp")), ((4,), ("dp",)), ((4,), ("tp",)), ((1, 4), ("dp", "tp"))]
    meshes = [init_device_mesh("cpu", s, mesh_dim_names=n) for s, n in meshes]
    model, optimizer = build(meshes[0], 0)
    train(model, optimizer)
    evaluate_so_that_parameters_stay_gathered(model)
    state = TensorState(model, optimizer)
    evaluate_so_that_parameters_stay_gathered(model)
    wanted, objects = gathered(state, world), state.objects()
    saved = {name: SavedTensor(tensor.dtype, tuple(tensor.shape))
             for name, tensor in wanted.items()}
    for mesh in meshes[1:]:
        model, optimizer = build(mesh, 1)
        state = TensorState(model, optimizer)
        state.allocate_slots(saved, objects)
        copy_into(state, wanted)
        assert state.load_objects(objects) == []
        assert same_bits(gathered(state, world), wanted), mesh
        train(model, optimizer, 1)  # torch's optimizer works with the restored slots
    return optimizer.param_groups[0]["lr"]


def ddp_buffers(rank, world):
    torch.manual_seed(0)
    made = {}
    for broadcast in (True, False):
        model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)),
                                        broadcast_buffers=broadcast)
        made[broadcast] = {p.name: p.copies for p in TensorState(model).pieces()}
    made["fsdp"] = {p.name: p.copies
                    for p in TensorState(nn.Sequential(nn.BatchNorm1d(3))).pieces()}
    return [made[k].get("model.1.running_mean", made[k].get("model.0.running_mean"))
            for k in made], made[True]["model.0.weight"]


def pipeline_stages(rank, world):
    """The names of a stage made by deleting layers, and of a stage made as a new Sequential."""
    layers = nn.ModuleDict({str(k): nn.Linear(2, 2) for k in range(4)})
    for k in range(4):
        if k // 2 != rank:
            del layers[str(k)]
    cut = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    first = PipelineStage(layers, rank, world, torch.device("cpu"))
    second = PipelineStage(cut, rank, world, torch.device("cpu"))
    renaming = {str(k): str(2 * rank + k) for k in range(2)}
    optimizer = torch.optim.SGD(cut.parameters(), lr=1)
    state = TensorState([second], [optimizer], names=renaming)
    assert state.objects()["groups"][0]["params"][0] == f"optimizer.{2 * rank}.weight"
    return [p.name for p in TensorState(first).pieces()], [p.name for p in state.pieces()]


def test_pipeline_stages_have_names_of_the_whole_model():
    names = [f"model.{k}.{what}" for k in range(4) for what in ("weight", "bias")]
    assert run_ranks(2, pipeline_stages) == [(names[:4], names[:4]), (names[4:], names[4:])]


def test_state_moves_between_meshes_with_the_same_bits():
    assert run_ranks(4, move_between_meshes) == [0.01] * 4


def test_buffers_of_ddp_are_the_first_ranks_or_each_ones_own():
    assert run_ranks(2, ddp_buffers) == [(["first", "own", "own"], "equal")] * 2
