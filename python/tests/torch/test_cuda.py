"""Tests on a GPU: the device of slots, generators of devices, saving scalers without a wait."""

import pytest
import torch
from torch import nn

import holdfast
from holdfast.torch.state.stateful import Stateful
from holdfast.torch.state.tensor_state import TensorState
from holdfast.torch.values import generators
from holdfast.torch.values.dtypes import SavedTensor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize("how", [{}, {"fused": True}, {"capturable": True}])
def test_slots_are_made_where_the_optimizer_wants_them(how):
    model = nn.Linear(4, 3).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), **how)
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    state = TensorState(model, optimizer)
    fresh = torch.optim.AdamW(model.parameters(), **how)
    other = TensorState(model, fresh)
    other.allocate_slots({p.name: SavedTensor(p.tensor.dtype, p.shape) for p in state.pieces()},
                     state.objects())
    for parameter, slots in optimizer.state.items():
        for slot, tensor in slots.items():
            assert fresh.state[parameter][slot].device == tensor.device, slot
    for here, there in zip(state.pieces(), other.pieces(), strict=True):
        assert here.name == there.name
        there.tensor.copy_(here.tensor)
    fresh.step()


def test_a_step_count_moves_to_the_gpu_when_the_new_optimizer_is_fused():
    model = nn.Linear(4, 3).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
    state = TensorState(model, optimizer)
    fresh = torch.optim.AdamW(model.parameters(), fused=True)
    TensorState(model, fresh).allocate_slots(
        {p.name: SavedTensor(p.tensor.dtype, p.shape) for p in state.pieces()}, state.objects())
    assert fresh.state[model.weight]["step"].is_cuda


def test_generators_of_devices_draw_on():
    torch.rand(1, device="cuda")
    extra = {"mine": torch.Generator("cuda").manual_seed(3)}
    generators.capture(extra)  # a later capture may include fewer generators
    torch.rand(1, device="cuda")
    saved = generators.capture(extra)
    states = [one.get_state() for one in torch.cuda.default_generators]
    assert saved["cuda"] == [state.numpy().tobytes() for state in states]
    wanted = torch.rand(3, device="cuda"), torch.rand(3, device="cuda", generator=extra["mine"])
    assert generators.restore(saved, extra) == []
    assert torch.equal(torch.rand(3, device="cuda"), wanted[0])
    assert torch.equal(torch.rand(3, device="cuda", generator=extra["mine"]), wanted[1])


def test_a_scaler_is_captured_without_waiting_for_the_gpu():
    scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
    scaler.scale(torch.ones(1, device="cuda"))
    torch.cuda.set_sync_debug_mode("error")
    try:
        tree, pieces = Stateful("scaler", scaler).capture()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(piece.tensor.is_cuda and piece.at_once for piece in pieces)
    fresh = Stateful("scaler", torch.amp.GradScaler("cuda"))
    saved = {p.name: SavedTensor(p.tensor.dtype, p.shape) for p in pieces}
    for here, there in zip(pieces, fresh.allocate(tree, saved), strict=True):
        there.tensor.copy_(here.tensor)
    fresh.load()
    assert fresh._thing.get_scale() == 8.0


def test_the_best_by_a_loss_on_the_gpu_is_kept(tmp_path):
    model = nn.Linear(4, 4).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Checkpointer(tmp_path, model=model, optimizer=optimizer, every="1 steps",
                               keep=holdfast.Keep(1, best=1, metric="loss"),
                               writing=holdfast.Writing(space_reserve=0),
                               failures=holdfast.Failures(signals=False)) as ck:
        ck.resume()
        for step, loss in enumerate([5.0, 1.0, 4.0, 3.0]):
            model(torch.ones(2, 4, device="cuda")).sum().backward()
            optimizer.step()
            ck.step(step, loss=torch.tensor(loss, device="cuda"))
            torch.cuda.synchronize()
        ck.save(4, loss=torch.tensor(2.0, device="cuda")).durable()
    found = {int(path.name[5:]): holdfast.restore(tmp_path, {}, int(path.name[5:])).metrics
             for path in tmp_path.glob("step-*")}
    assert found == {0: {}, 2: {"loss": 1.0}, 4: {"loss": 2.0}}
