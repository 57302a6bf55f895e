"""torch.distributed.checkpoint with Holdfast as its storage."""

import pickle
import resource
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import run_ranks
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import holdfast
from holdfast.torch.dcp import LoadPlanner, Reader, SavePlanner, Writer

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def save(state, folder, step, **options):
    with Writer(folder, writing=holdfast.Writing(space_reserve=0)) as writer:
        dcp.save(state, checkpoint_id=step, storage_writer=writer,
                 planner=options.pop("planner", SavePlanner()), **options)


def load(state, folder, step=None, **options):
    dcp.load(state, checkpoint_id=step, storage_reader=Reader(folder, **options),
             planner=LoadPlanner())


def trained(seed=0):
    """A model with an optimizer that has made steps, and other things to save."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3).bfloat16())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 + seed)
    for parameter in model.parameters():
        parameter.grad = torch.rand_like(parameter)
    optimizer.step()
    return model, optimizer


def things(seed=0):
    return {"epoch": 3 + seed, "names": ["a", ("b", None)], "range": range(seed, 9),
            "array": np.arange(2000.0) + seed, "pair": (torch.full((3,), 1.5 + seed), seed),
            "big": (1 << 200) + seed, "nested": {"deep": {"x": float(seed), "n": None}}}


def state_of(model, optimizer, seed=0):
    tensors, slots = get_state_dict(model, optimizer)
    return {"model": tensors, "optim": slots, "random": torch.get_rng_state(), **things(seed)}


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_a_state_comes_back_as_it_was_and_is_a_normal_step(tmp_path):
    saved = state_of(*trained())
    save(saved, tmp_path / "run", 7)
    state = state_of(*trained(1), seed=1)
    assert not same(state, saved)
    load(state, tmp_path / "run")
    assert same(state, saved)
    contents = holdfast.open(tmp_path / "run@7")
    assert contents["model.0.weight"].shape == [7, 5]
    assert contents.objects["values"]["epoch"] == 3
    weight = torch.empty(7, 5)
    restored = holdfast.restore(tmp_path / "run", {"model.0.weight": weight}, verify_all=True)
    assert restored.step == 7 and torch.equal(weight, saved["model"]["0.weight"])


def test_the_command_line_knows_the_step(tmp_path):
    save(state_of(*trained()), tmp_path / "run", 7)
    listed = subprocess.run([PROGRAM, "ls", tmp_path / "run"], capture_output=True, text=True)
    assert listed.returncode == 0 and "step-00000007" in listed.stdout
    assert subprocess.run([PROGRAM, "verify", tmp_path / "run"],
                          capture_output=True).returncode == 0


def test_no_file_is_a_pickle_and_none_is_run(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("pickled")

    for name in ("dump", "dumps", "load", "loads"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "save", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    save(state_of(*trained()), tmp_path / "run", 1)
    load(state_of(*trained(1), seed=1), tmp_path / "run")


def test_what_cannot_be_stored_is_named_and_nothing_is_written(tmp_path):
    state = {"a": torch.ones(2), "nested": {"thing": object()}}
    with pytest.raises(CheckpointException, match=r"nested\.thing: a builtins\.object"):
        save(state, tmp_path / "run", 1)
    with pytest.raises(holdfast.NotFoundError):
        holdfast.open(tmp_path / "run")


def test_torchs_own_planners_serve_for_tensors_alone(tmp_path):
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": {"c": torch.ones(())}}
    save(tensors, tmp_path / "run", 1, planner=dcp.DefaultSavePlanner())
    state = {"a": torch.zeros(2, 3), "b": {"c": torch.zeros(())}}
    dcp.load(state, storage_reader=Reader(tmp_path / "run"))
    assert same(state, tensors)
    with pytest.raises(CheckpointException, match="epoch: no tensor, and the planner would"):
        save({**tensors, "epoch": 1}, tmp_path / "run", 2, planner=dcp.DefaultSavePlanner())
    save({**tensors, "epoch": 1}, tmp_path / "run", 2)
    with pytest.raises(CheckpointException, match="epoch: no tensor, and the planner would"):
        dcp.load({"epoch": 0}, storage_reader=Reader(tmp_path / "run"))


def test_what_does_not_fit_is_named_and_the_state_untouched(tmp_path):
    save({"a": torch.ones(2), "b": 1}, tmp_path / "run", 1)
    for state, why in [({"a": torch.zeros(3)}, r"a: saved with shape \(2,\); expected \(3,\)"),
                       ({"a": torch.zeros(2), "new": 0}, "new: not in the checkpoint"),
                       ({"a": 5}, "a: saved as a tensor, and there is a int")]:
        with pytest.raises(CheckpointException, match=why):
            load(state, tmp_path / "run")
        assert not torch.is_tensor(state["a"]) or not state["a"].any()
    with pytest.raises(CheckpointException, match="checkpoint_id=None"):
        save({"a": torch.ones(2)}, tmp_path / "run", None)
    with pytest.raises(ValueError, match="checkpoint_id: 'last'; expected the number"):
        save({"a": torch.ones(2)}, tmp_path / "run", "last")


def test_partial_loads_leave_the_rest_alone(tmp_path):
    save({"a": torch.ones(2), "b": 1}, tmp_path / "run", 1)
    state = {"a": torch.zeros(2), "new": 5}
    dcp.load(state, storage_reader=Reader(tmp_path / "run"),
             planner=LoadPlanner(allow_partial_load=True))
    assert state["new"] == 5 and bool(state["a"].all())


def test_a_damaged_step_is_refused_or_passed_over(tmp_path):
    for step in (1, 2):
        save({"a": torch.full((5000,), float(step))}, tmp_path / "run", f"step-{step}")
    shard = tmp_path / "run" / "step-00000002" / "rank-0000.safetensors"
    damaged = bytearray(shard.read_bytes())
    damaged[-8000] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(damaged)
    state = {"a": torch.zeros(5000)}
    with pytest.raises(CheckpointException, match="crc"):
        load(state, tmp_path / "run")
    load(state, tmp_path / "run", verify="full")
    assert state["a"].unique().tolist() == [1.0]


def test_dtypes_are_converted_where_the_state_wants_another(tmp_path):
    save({"a": torch.arange(4.0), "b": torch.arange(4)}, tmp_path / "run", 1)
    state = {"a": torch.zeros(4, dtype=torch.bfloat16), "b": torch.zeros(8)[::2]}
    load(state, tmp_path / "run")
    assert state["a"].tolist() == [0, 1, 2, 3] and state["b"].tolist() == [0, 1, 2, 3]


def test_asynchronous_saves_have_the_state_of_their_call(tmp_path):
    with Writer(tmp_path / "run", keep=2, writing=holdfast.Writing(space_reserve=0)) as writer:
        for step in range(4):
            state = {"a": torch.full((1000,), float(step)), "step": step}
            future = dcp.async_save(state, checkpoint_id=step, storage_writer=writer,
                                    planner=SavePlanner())
            state["a"].fill_(-1)
            state["step"] = -1
            getattr(future, "upload_completion", future).result()
    for step in (2, 3):
        state = {"a": torch.zeros(1000), "step": None}
        load(state, tmp_path / "run", step)
        assert state["step"] == step and state["a"].unique().tolist() == [step]
    with pytest.raises(CheckpointException):
        load(state, tmp_path / "run", 1)  # retention has removed this step


def test_a_writer_does_not_leave_its_process(tmp_path):
    with Writer(tmp_path / "run", writing=holdfast.Writing(space_reserve=0)) as writer:
        with pytest.raises(TypeError, match="AsyncCheckpointerType.THREAD"):
            pickle.dumps(writer)


# Several ranks


def sharded(rank, world, seed, mesh):
    model = trained(seed)[0].float()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = parameter.detach() * 0.5
    optimizer.step()
    return model, optimizer


def full(state):
    """The whole tensors, for comparison."""
    if isinstance(state, dict):
        return {key: full(value) for key, value in state.items()}
    if isinstance(state, list):
        return [full(value) for value in state]
    return state.full_tensor().clone() if hasattr(state, "full_tensor") else state


def save_ranks(rank, world, folder, background):
    model, optimizer = sharded(rank, world, 0, init_device_mesh("cpu", (world,)))
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optim": optimizer_state, **things(),
             f"own-{rank}": {"tensor": torch.full((2,), rank), "number": rank}}
    with Writer(folder, writing=holdfast.Writing(space_reserve=0)) as writer:
        call = dcp.async_save if background else dcp.save
        made = call(state, checkpoint_id=11, storage_writer=writer, planner=SavePlanner())
        if background:
            getattr(made, "upload_completion", made).result()
    return full({"model": model_state, "optim": optimizer_state})


def load_ranks(rank, world, folder):
    if world == 1:
        model = trained(2)[0].float()
        model.zero_grad()
        optimizer = torch.optim.AdamW(model.parameters(), lr=7.0)
    else:
        model, optimizer = sharded(rank, world, 2, init_device_mesh("cpu", (world,)))
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optim": optimizer_state, **things(9),
             "own-1": {"tensor": torch.zeros(2, dtype=torch.int64), "number": 0}}
    load(state, folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"],
                   optim_state_dict=state["optim"])
    assert state["own-1"]["number"] == 1 and state["own-1"]["tensor"].tolist() == [1, 1]
    assert same({key: state[key] for key in things()}, things())
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return full({"model": model_state, "optim": optimizer_state})


@pytest.mark.parametrize(("background", "before", "after"), [(False, 3, (1, 2)), (True, 2, (3,))])
def test_any_number_of_ranks_loads_what_others_saved(tmp_path, background, before, after):
    saved = run_ranks(before, save_ranks, str(tmp_path / "run"), background)
    for world in after:
        for loaded in run_ranks(world, load_ranks, str(tmp_path / "run")):
            assert same(loaded, saved[0])
    assert holdfast.open(tmp_path / "run")["model.0.weight"].shape == [7, 5]


def uneven(rank, world, folder, rows, saving):
    """FSDP over tensor parallelism with an uneven cut, for which torch's own offsets are wrong."""
    mesh = init_device_mesh("cpu", (3, world // 3), mesh_dim_names=("dp", "tp"))
    wanted = torch.arange(rows * 4.0).reshape(rows, 4)
    layer = nn.Linear(4, rows, bias=False)
    layer.weight = nn.Parameter(distribute_tensor(wanted.clone(), mesh["tp"], [Shard(0)]))
    fully_shard(layer, mesh=mesh["dp"])
    state = {"w": layer.weight, "r": distribute_tensor(wanted, mesh, [Replicate(), Replicate()])}
    if saving:
        save(state, folder, 1)
        dist.barrier()
        for value in state.values():
            value.detach().to_local().zero_()
        load(state, folder)
        return bool((state["r"].to_local() == wanted).all())
    return None


@pytest.mark.parametrize(("rows", "world"), [(7, 6)])
def test_uneven_cuts_of_a_mesh_are_saved_as_they_are(tmp_path, rows, world):
    assert all(run_ranks(world, uneven, str(tmp_path / "run"), rows, True))
    wanted = torch.arange(rows * 4.0).reshape(rows, 4)
    assert np.array_equal(holdfast.open(tmp_path / "run").read("w"), wanted.numpy())


def refuse_on_one(rank, world, folder):
    state = {"a": torch.ones(2), "b": object() if rank == 1 else 5}
    with pytest.raises(CheckpointException, match="b: a builtins.object"):
        save(state, folder, 1)
    return True


def test_what_one_rank_cannot_store_fails_on_all(tmp_path):
    assert all(run_ranks(2, refuse_on_one, str(tmp_path / "run")))


def test_an_id_counts_for_one_save_and_one_load(tmp_path):
    options = {"planner": SavePlanner(), "checkpoint_id": 1}
    with Writer(tmp_path, writing=holdfast.Writing(space_reserve=0)) as writer:
        dcp.save({"a": torch.ones(2)}, storage_writer=writer, **options)
        with pytest.raises((ValueError, CheckpointException), match="checkpoint_id=None; expected"):
            dcp.save({"a": torch.zeros(2)}, storage_writer=writer, planner=SavePlanner())
        reader, state = Reader(tmp_path), {"a": torch.zeros(2)}
        dcp.load(state, storage_reader=reader, planner=LoadPlanner(), checkpoint_id=1)
        assert state["a"].tolist() == [1, 1]
        dcp.save({"a": torch.full((2,), 2.0)}, storage_writer=writer,
                 **{**options, "checkpoint_id": 2})
        dcp.load(state, storage_reader=reader, planner=LoadPlanner())
        assert state["a"].tolist() == [2, 2]
        reader.reset(1)
        reader.read_metadata()  # as a caller does that looks before it loads
        dcp.load(state, storage_reader=reader, planner=LoadPlanner())
        assert state["a"].tolist() == [1, 1]


def test_a_save_that_failed_does_not_fail_the_next_one(tmp_path):
    run, (_, most) = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    with Writer(run, writing=holdfast.Writing(space_reserve=0)) as writer:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))  # as if the disk were full
        try:
            with pytest.raises(CheckpointException, match="File too large"):
                dcp.save({"a": torch.ones(2)}, storage_writer=writer, checkpoint_id=1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        dcp.save({"a": torch.ones(2)}, storage_writer=writer, checkpoint_id=2)
    assert (run / "step-00000002").is_dir()
