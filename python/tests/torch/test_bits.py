"""A run that stops and is resumed has the same bits as a run that never stopped and saved nothing:
every loss, every tensor, and the next random numbers."""

import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from long_tests import IS_LONG, first_of
from ranks import run_ranks
from training import EPOCH, How, Script, settle_matmul, train

import holdfast

STEPS = 20

HOW = {
    "gpt": How(),
    "resnet": How(net="resnet", optimizer="sgd", plain_loader=True),
    "amp": How(net="resnet", amp=True),
    "accumulated": How(accumulate=4, plain_loader=True),
    "warm-up": How(optimizer="sgd", warm_up=True),
    "ema": How(net="resnet", ema=True, plain_loader=True),
    "bf16": How(bf16=True, optimizer="wide", warm_up=True),
    "fused": How(optimizer="fused"),
}

STOPS = {
    "middle": [(10,), (EPOCH + 1, EPOCH + 5)],
    "end": [(EPOCH - 1,), (EPOCH + 3, 2 * EPOCH - 1)],
}
# Each way to train and each kind of stops; those that are least unlike the others come last.
CASES = sorted(itertools.product(HOW, STOPS),
               key=lambda case: (list(HOW).index(case[0]) + list(STOPS).index(case[1])) % 2)

_whole = {}


def whole(how):
    """Trains without stops and without a Checkpointer."""
    if repr(how) not in _whole:
        _whole[repr(how)] = train(how, STEPS)
    return _whole[repr(how)]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.backends.mkldnn.set_flags(True)


@pytest.mark.parametrize(("name", "where"), first_of(CASES, len(HOW)))
def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(tmp_path, name, where):
    for number, stops in enumerate(STOPS[where]):
        losses, digests = train(HOW[name], STEPS, tmp_path / str(number), stops)
        assert losses == whole(HOW[name])[0]
        assert digests == whole(HOW[name])[1]


@pytest.mark.parametrize(("name", "where"), first_of(CASES, 3))
def test_so_it_has_with_workers_that_read_ahead(tmp_path, name, where):
    how = replace(HOW[name], workers=2)
    losses, digests = train(how, STEPS, tmp_path, STOPS[where][1])
    # With workers, torch's own loader draws other random numbers than without; Holdfast's does not.
    wanted = whole(how if how.plain_loader else HOW[name])
    assert losses == wanted[0]
    assert digests == wanted[1]


@pytest.mark.parametrize("name", first_of(HOW, 3))
def test_to_save_after_every_step_changes_nothing(tmp_path, name):
    assert train(HOW[name], STEPS, tmp_path) == whole(HOW[name])


def live(run, steps, end):
    """Runs a script in a new process, which prints its losses."""
    torch.set_num_threads(1)
    settle_matmul()
    script = Script(HOW["ema"], os.getpid() if os.path.exists(run) else 0)
    checkpointer = script.checkpointer(run)
    losses = script.train(steps, checkpointer.resume(), checkpointer)
    print(json.dumps(losses), flush=True)
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "closed":
        checkpointer.close()
    # Otherwise the interpreter closes the Checkpointer when it exits.


def test_processes_that_are_killed_or_just_end_go_on_with_the_same_bits(tmp_path):
    how, run = HOW["ema"], tmp_path / "run"
    path = [str(Path(holdfast.__file__).parent.parent), *map(str, Path(__file__).parents[:2])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    for steps, end in ((6, "left"), (13, "killed")):
        done = subprocess.run([sys.executable, __file__, str(run), str(steps), end], env=env,
                              capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == (-signal.SIGKILL if end == "killed" else 0), done.stderr
        for step, loss in json.loads(done.stdout).items():
            assert loss == whole(how)[0][int(step)]
    settle_matmul()
    script = Script(how, 77)
    with script.checkpointer(run) as checkpointer:
        start = checkpointer.resume()
        assert 6 <= start <= 13
        losses = script.train(STEPS, start, checkpointer)
    assert losses == {step: whole(how)[0][step] for step in range(start, STEPS)}
    assert script.digests() == whole(how)[1]


DDP = {
    "buckets": How(net="resnet", ema=True, ddp={"bucket_cap_mb": 0.001}),
    "views": How(optimizer="sgd", ddp={"bucket_cap_mb": 0.001, "gradient_as_bucket_view": True}),
    "own-buffers": How(net="resnet", ddp={"bucket_cap_mb": 0.001, "broadcast_buffers": False}),
    "static": How(ddp={"bucket_cap_mb": 0.001, "static_graph": True}, plain_loader=True),
}


def stop_on_ranks(rank, world, folder, names):
    """Trains in each way of DDP. Returns the names of those whose results differ."""
    differing = []
    for name in names:
        wanted = train(DDP[name], 12, rank=rank, world=world)
        for stops in ((0, 2), (EPOCH - 1,), (4, 6)):
            run = f"{folder}/{name}-{stops[0]}"
            if train(DDP[name], 12, run, stops, rank, world) != wanted:
                differing.append((name, stops))
    return differing


@pytest.mark.parametrize("world", [3, 4])
def test_several_ranks_with_several_buckets_go_on_with_the_same_bits(tmp_path, world):
    names = list(DDP) if world == 3 else ["buckets"]
    if not IS_LONG:
        if world == 4:
            pytest.skip("needs HOLDFAST_LONG=1")
        names = names[:2]
    assert run_ranks(world, stop_on_ranks, str(tmp_path), names, timeout=90) == [[]] * world


if __name__ == "__main__":
    live(sys.argv[1], int(sys.argv[2]), sys.argv[3])
