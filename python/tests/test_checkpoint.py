"""Saving and restoring from Python: numpy and torch, bit for bit."""

import gc
import math
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import holdfast

TORCH_DTYPES = [
    torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8,
    torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.complex64, torch.complex128,
]
NUMPY_DTYPES = "bool u1 u2 u4 u8 i1 i2 i4 i8 f2 f4 f8 c8 c16".split()


def random_tensor(dtype, *shape):
    bits = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8)
    if dtype == torch.bool:
        bits &= 1
    return bits.view(dtype).reshape(shape)


def bits(array):
    if isinstance(array, torch.Tensor):
        return array.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return np.ascontiguousarray(array).tobytes()


def save(path, tensors, objects=None, step=1, **more):
    with holdfast.Saver(path, writing=holdfast.Writing(space_reserve=0)) as saver:
        return saver.save(step, tensors, objects, **more).durable()


def round_trip(path, tensors, into):
    save(path, tensors)
    restored = holdfast.restore(path, into)
    for name, tensor in tensors.items():
        assert bits(into[name]) == bits(tensor), name
    return restored


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_every_torch_dtype_comes_back_bit_for_bit(tmp_path, dtype):
    tensors = {"w": random_tensor(dtype, 5, 7), "scalar": random_tensor(dtype)}
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    round_trip(tmp_path, tensors, into)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_every_numpy_dtype_comes_back_bit_for_bit(tmp_path, dtype):
    seed = np.random.default_rng(1).integers(0, 2, 35 * np.dtype(dtype).itemsize, np.uint8)
    tensors = {"w": seed.view(dtype).reshape(5, 7), "scalar": np.array(1, dtype)}
    into = {name: np.zeros_like(array) for name, array in tensors.items()}
    round_trip(tmp_path, tensors, into)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1, 1), (2, 1, 2, 1, 2, 1, 2, 1)])
def test_odd_shapes_come_back(tmp_path, shape):
    tensors = {"w": torch.rand(shape), "other": torch.rand(3)}
    round_trip(tmp_path, tensors, {"w": torch.full(shape, -1.0), "other": torch.zeros(3)})


def test_no_tensors_at_all_come_back(tmp_path):
    save(tmp_path, {}, {"epoch": 3})
    assert holdfast.restore(tmp_path, {}).objects == {"epoch": 3}


def test_strided_arrays_are_saved_and_restored_in_place(tmp_path):
    base = np.arange(240, dtype="f4").reshape(4, 6, 10)
    tensors = {"transposed": base.T, "back": base[::-1, :, ::-2], "column": base[:, 3, 1:]}
    target = np.zeros((10, 6, 4, 2), "f4")
    into = {"transposed": target[..., 0], "back": np.zeros((5, 6, 4), "f4").T[:, :, ::-1],
            "column": np.zeros((9, 4), "f4").T}
    round_trip(tmp_path, tensors, into)
    assert not target[..., 1].any()


def test_strided_torch_tensors_come_back(tmp_path):
    base = torch.rand(6, 8)
    tensors = {"t": base.t(), "rows": base[::2], "columns": base[:, 1::3]}
    into = {"t": torch.zeros(8, 6), "rows": torch.zeros(8, 3).t(), "columns": torch.zeros(6, 3)}
    round_trip(tmp_path, tensors, into)


def test_numpy_and_torch_read_each_other(tmp_path):
    save(tmp_path, {"a": np.arange(6, dtype="i8"), "b": torch.arange(5.0)})
    into = {"a": torch.zeros(6, dtype=torch.int64), "b": np.zeros(5, "f4")}
    holdfast.restore(tmp_path, into)
    assert into["a"].tolist() == list(range(6))
    assert into["b"].tolist() == list(range(5))


def test_parameters_with_gradients_serve(tmp_path):
    model = torch.nn.Linear(3, 2)
    save(tmp_path, dict(model.named_parameters()))
    fresh = torch.nn.Linear(3, 2)
    holdfast.restore(tmp_path, dict(fresh.named_parameters()))
    assert torch.equal(fresh.weight, model.weight)


def test_tied_tensors_are_written_once(tmp_path):
    tied = torch.rand(100, 10)
    folder = save(tmp_path, {"embedding": tied, "head": tied}).folder
    contents = holdfast.open(folder)
    assert contents["head"].name == "embedding"
    assert sum(f.stat().st_size for f in folder.glob("*.safetensors")) < 8192
    target = torch.zeros(100, 10)
    restored = holdfast.restore(tmp_path, {"embedding": target, "head": target})
    assert torch.equal(target, tied)
    assert restored.unused == []


def test_what_was_tied_comes_back_untied(tmp_path):
    tied = torch.rand(9)
    into = {"head": torch.zeros(9), "embedding": torch.zeros(9)}
    round_trip(tmp_path, {"embedding": tied, "head": tied}, into)


def test_two_values_do_not_fit_one_tied_tensor(tmp_path):
    save(tmp_path, {"embedding": torch.zeros(3), "head": torch.ones(3)})
    target = torch.full((3,), 7.0)
    with pytest.raises(ValueError, match="embedding and head are aliases here"):
        holdfast.restore(tmp_path, {"embedding": target, "head": target})
    assert target.tolist() == [7, 7, 7]


def test_equal_values_do_fit_one_tied_tensor(tmp_path):
    save(tmp_path, {"embedding": torch.ones(3), "head": torch.ones(3)})
    target = torch.zeros(3)
    assert holdfast.restore(tmp_path, {"embedding": target, "head": target}).unused == []
    assert target.tolist() == [1, 1, 1]


def test_a_step_can_be_chosen_and_the_newest_is_the_default(tmp_path):
    with holdfast.Saver(tmp_path, writing=holdfast.Writing(space_reserve=0)) as saver:
        for step in (10, 20, 30):
            saver.save(step, {"w": np.full(4, step, "f4")}, metrics={"loss": 1 / step}).captured()
    target = np.zeros(4, "f4")
    assert holdfast.restore(tmp_path, {"w": target}, 20).step == 20
    assert target.tolist() == [20] * 4
    newest = holdfast.restore(tmp_path, {"w": target})
    assert (newest.step, newest.folder) == (30, tmp_path / "step-00000030")
    assert newest.metrics == {"loss": 1 / 30}


def test_a_damaged_step_is_passed_over_and_named(tmp_path):
    with holdfast.Saver(tmp_path, writing=holdfast.Writing(space_reserve=0)) as saver:
        for step in (1, 2):
            saver.save(step, {"w": np.full(4, step, "f4")}).durable()
    shard = tmp_path / "step-00000002" / "rank-0000.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    target = np.zeros(4, "f4")
    restored = holdfast.restore(tmp_path, {"w": target})
    assert restored.step == 1 and target.tolist() == [1] * 4
    ((folder, why),) = restored.skipped
    assert folder == "step-00000002" and "crc" in why


def test_what_is_not_asked_for_is_named(tmp_path):
    save(tmp_path, {"a": np.zeros(2), "b": np.zeros(3)})
    restored = holdfast.restore(tmp_path, {"b": np.ones(3)})
    assert restored.unused == ["a"] and restored.unverified == []


def test_keep_removes_older_steps(tmp_path):
    with holdfast.Saver(tmp_path, keep=holdfast.Keep(1, every=4, best=1, metric="loss"),
                        writing=holdfast.Writing(space_reserve=0)) as saver:
        for step in range(1, 8):
            saver.save(step, {"w": np.zeros(3)}, metrics={"loss": abs(step - 2)}).durable()
    steps = sorted(path.name for path in tmp_path.glob("step-*"))
    assert steps == ["step-00000002", "step-00000004", "step-00000007"]


def test_read_back_saves_too(disk_path):
    writing = holdfast.Writing(space_reserve=0, read_back=True, ring=1 << 20)
    with holdfast.Saver(disk_path, keep=1, writing=writing) as saver:
        assert saver.save(1, {"w": np.arange(9)}).durable().tier == "disk"
        assert saver.path == disk_path


def test_arrays_live_until_they_are_captured(disk_path):
    tmp_path = disk_path
    with holdfast.Saver(tmp_path, writing=holdfast.Writing(space_reserve=0)) as saver:
        array = np.random.default_rng(1).random(2_000_000)
        want, gone = array.tobytes(), weakref.ref(array)
        handle = saver.save(1, {"w": array})
        del array
        handle.captured()
        assert handle.is_captured
        gc.collect()
        assert gone() is None
        handle.durable()
        assert handle.is_done
    target = np.zeros(2_000_000)
    holdfast.restore(tmp_path, {"w": target})
    assert target.tobytes() == want


def test_a_saver_that_is_dropped_finishes_its_saves(tmp_path):
    holdfast.Saver(tmp_path,
                   writing=holdfast.Writing(space_reserve=0)).save(1, {"w": np.arange(1_000_000)})
    gc.collect()
    target = np.zeros(1_000_000, "i8")
    holdfast.restore(tmp_path, {"w": target})
    assert target[-1] == 999_999


def test_skipped_saves_say_so(tmp_path):
    writing = holdfast.Writing(space_reserve=0, backpressure="skip", in_flight=1)
    with holdfast.Saver(tmp_path, writing=writing) as saver:
        handles = [saver.save(step, {"w": np.zeros(500_000)}) for step in range(20)]
        handles[0].durable()
        outcomes = []
        for handle in handles:
            try:
                outcomes.append(handle.durable().tier)
            except holdfast.ConflictError as error:
                assert "skipped" in str(error)
                outcomes.append("skipped")
    assert outcomes[0] == "disk"


def test_two_threads_may_share_a_saver(tmp_path):
    with holdfast.Saver(tmp_path, writing=holdfast.Writing(space_reserve=0)) as saver:
        def work(first):
            for step in range(first, first + 5):
                saver.save(step, {"w": np.full(1000, step)}).durable()
        threads = [threading.Thread(target=work, args=(first,)) for first in (0, 100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(list(tmp_path.glob("step-*"))) == 10


FORK = """
import os, sys, holdfast
saver = holdfast.Saver(sys.argv[1], writing=holdfast.Writing(space_reserve=0))
saver.save(1, {}).durable()
child = os.fork()
if child == 0:
    try:
        saver.save(2, {})
    except ValueError as error:
        print(error, flush=True)
    del saver
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
saver.save(3, {}).durable()
saver.close()
"""


def test_a_forked_child_leaves_the_saver_to_its_parent(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(tmp_path)], capture_output=True, text=True, timeout=60,
        env=os.environ | {"PYTHONPATH": str(Path(holdfast.__file__).parent.parent)},
    )
    assert done.returncode == 0, done.stderr
    assert "this is its child" in done.stdout
    assert holdfast.restore(tmp_path, {}).step == 3


def test_a_closed_saver_saves_no_more(tmp_path):
    saver = holdfast.Saver(tmp_path, writing=holdfast.Writing(space_reserve=0))
    saver.close()
    saver.close()
    with pytest.raises(ValueError, match="closed"):
        saver.save(1, {})


def test_an_error_in_the_block_is_not_hidden_by_close(tmp_path):
    with pytest.raises(RuntimeError, match="mine"):
        with holdfast.Saver(tmp_path, writing=holdfast.Writing(space_reserve=1 << 62)) as saver:
            saver.save(1, {"w": np.zeros(2)})
            raise RuntimeError("mine")


def test_incremental_saves_are_full_as_often_as_asked(tmp_path):
    arrays = {"a": np.arange(5000.0), "b": np.arange(7.0)}
    writing = holdfast.Writing(incremental=True, full_every=3, space_reserve=0)
    with holdfast.Saver(tmp_path / "run", writing=writing) as saver:
        for step in range(7):
            arrays["b"] += 1
            saver.save(step, arrays).durable()
    shards = [len(list((tmp_path / f"run/step-{step:08}").glob("*.safetensors")))
              for step in range(7)]
    assert shards == [1, 2, 2, 1, 2, 2, 1]


@pytest.mark.parametrize(("options", "message"), [
    ({"writing": holdfast.Writing(full_every=0)}, "full_every: 0; expected 1 or more"),
    ({"writing": holdfast.Writing(backpressure="never")}, "wait, skip or newest"),
    ({"writing": holdfast.Writing(in_flight=0)}, "1 or more"),
    ({"writing": holdfast.Writing(ring=-1)}, "ring: -1 bytes"),
    ({"writing": holdfast.Writing(ring=1 << 60)}, "ring"),
    ({"keep": 0}, "^keep=0; expected 1 or more, or None"),
    ({"keep": -1}, "^keep=-1; expected 1 or more, or None"),
])
def test_senseless_options_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        holdfast.Saver(tmp_path, **options)


def bad_arrays():
    return {
        "a meta tensor": (torch.zeros(3, device="meta"), "on meta"),
        "a sparse tensor": (torch.eye(3).to_sparse(), "layout"),
        "a conjugate": (torch.zeros(3, dtype=torch.complex64).conj(), "lazily"),
        "big-endian": (np.zeros(3, ">f4"), "big-endian"),
        "objects": (np.array([None]), "expected numbers"),
        "records": (np.zeros(3, "i4,f4"), "dtype"),
        "dates": (np.zeros(3, "M8[s]"), "expected numbers"),
        "strings": (np.array(["a"]), "dtype"),
        "a masked array": (np.ma.zeros(3), "masked"),
        "a scalar": (np.float32(3), "numpy scalar"),
        "a number": (3.0, "expected an array"),
        "a list": ([1, 2], "expected an array"),
        "nothing": (None, "expected an array"),
        "expanded": (torch.zeros(1).expand(3), "several elements at one address"),
        "nine dimensions": (np.zeros((1,) * 9), "dimensions"),
    }


@pytest.mark.parametrize("kind", bad_arrays())
def test_what_is_no_plain_array_is_refused_by_name(tmp_path, kind):
    array, message = bad_arrays()[kind]
    with holdfast.Saver(tmp_path, writing=holdfast.Writing(space_reserve=0)) as saver:
        with pytest.raises((TypeError, ValueError, NotImplementedError)) as caught:
            saver.save(1, {"fine": np.zeros(2), "model.bad": array})
        assert "model.bad" in str(caught.value) and message in str(caught.value)
        saver.save(2, {"fine": np.zeros(2)}).durable()


def test_a_gpu_array_is_refused_by_name(tmp_path):
    class Gpu:
        __cuda_array_interface__ = {}

    with pytest.raises(TypeError, match="w: on a GPU"):
        save(tmp_path, {"w": Gpu()})


def test_bare_array_interfaces_serve(tmp_path):
    held = np.arange(12, dtype="f4").reshape(3, 4)

    class Bare:
        __array_interface__ = {**held.__array_interface__, "strides": None}

    save(tmp_path, {"w": Bare()})
    target = np.zeros((3, 4), "f4")
    holdfast.restore(tmp_path, {"w": target})
    assert np.array_equal(target, held)


def test_read_only_memory_is_saved_but_not_restored_into(tmp_path):
    array = np.arange(3)
    array.flags.writeable = False
    save(tmp_path, {"w": array})
    with pytest.raises(ValueError, match="w: read-only"):
        holdfast.restore(tmp_path, {"w": array})


@pytest.mark.parametrize(("into", "message"), [
    ({"v": np.zeros(3)}, "not in it: v"),
    ({"w": np.zeros(4)}, r"w is F64 \[3\].* F64 \[4\]"),
    ({"w": np.zeros(3, "f4")}, r"w is F64 \[3\].* F32 \[3\]"),
])
def test_another_model_is_refused_with_what_differs(tmp_path, into, message):
    save(tmp_path, {"w": np.ones(3)})
    with pytest.raises(ValueError, match=message):
        holdfast.restore(tmp_path, into)
    assert not next(iter(into.values())).any()


def test_missing_runs_and_steps_are_not_found(tmp_path):
    with pytest.raises(holdfast.NotFoundError):
        holdfast.restore(tmp_path / "nowhere", {})
    save(tmp_path, {"w": np.ones(3)})
    with pytest.raises(holdfast.NotFoundError, match="no step 7"):
        holdfast.restore(tmp_path, {"w": np.ones(3)}, 7)


def test_a_negative_step_fails_at_durable_and_the_saver_goes_on(tmp_path):
    saver = holdfast.Saver(tmp_path, writing=holdfast.Writing(space_reserve=0))
    with pytest.raises(ValueError, match="step -1"):
        saver.save(-1, {}).durable()
    with pytest.raises(ValueError, match="step -1"):
        saver.save(1, {})
    saver.save(2, {}).durable()
    saver.close()


def test_waiting_has_a_timeout(tmp_path):
    with holdfast.Saver(tmp_path, writing=holdfast.Writing(space_reserve=0)) as saver:
        handle = saver.save(1, {"w": np.zeros(4_000_000)})
        with pytest.raises(ValueError, match="timeout"):
            handle.durable(timeout=-1)
        with pytest.raises(TimeoutError):
            while not handle.is_done:
                handle.durable(timeout=0)
            raise TimeoutError  # the save was done before durable() was called
        handle.durable(timeout=math.inf)


def test_shards_are_read_by_the_safetensors_library(tmp_path):
    tensors = {f"t{i}": random_tensor(dtype, 3, 5) for i, dtype in enumerate(TORCH_DTYPES)
               if dtype not in (torch.complex128, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)}
    folder = save(tmp_path, {**tensors, "strided": torch.rand(4, 6).t()}).folder
    with safe_open(folder / "rank-0000.safetensors", "pt") as file:
        assert tensors.keys() <= set(file.keys())
        for name, tensor in tensors.items():
            seen = file.get_tensor(name)
            assert seen.dtype == tensor.dtype and bits(seen) == bits(tensor), name


def test_no_descriptor_stays_open_after_close(tmp_path):
    save(tmp_path, {"w": np.zeros(9)})
    before = len(os.listdir("/proc/self/fd"))
    save(tmp_path, {"w": np.zeros(9)}, step=2)
    holdfast.restore(tmp_path, {"w": np.zeros(9)})
    assert len(os.listdir("/proc/self/fd")) == before
