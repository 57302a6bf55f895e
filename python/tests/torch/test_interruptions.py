"""Disks that fill up during a job, and signals that end it. All ranks behave alike, and a step is
left from which the job can continue."""

import errno
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import weakref

import pytest
import torch
from ranks import run_ranks
from small_disks import fill
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from training import Toy, clear

import holdfast
from holdfast.torch.loop.closing import _end_process

MIB = 1 << 20


def big_toy():
    torch.manual_seed(0)
    return Toy(nn.Linear(256, 256))  # 0.8 MB with the moments of the optimizer


def test_a_disk_that_fills_up_costs_saves_and_not_the_training(small_disk, caplog):
    run, toy = small_disk / "run", big_toy()
    with toy.checkpointer(run, keep=1) as checkpointer:
        checkpointer.resume()
        checkpointer.save(0).durable()
        fill(small_disk, MIB // 4)
        for step in range(1, 300):  # saves fail again and again
            toy.train(checkpointer, [step])
        with pytest.raises(OSError) as raised:
            checkpointer.save(300).durable()
        assert raised.value.errno == errno.ENOSPC and clear(raised, str(run))
        assert list(holdfast.open(run))  # the older step is undamaged
        (small_disk / "filler").unlink()
        step = 301
        while not (run / f"step-{step - 1:08}").exists():  # a later step saves again
            toy.train(checkpointer, [step])
            time.sleep(0.01)
            step += 1
        toy.train(checkpointer, [step])
    warnings = [one.getMessage() for one in caplog.records if "was not saved" in one.getMessage()]
    assert len(warnings) == 1 and "the last durable step is 0" in warnings[0]
    toy = big_toy()
    with toy.checkpointer(run) as checkpointer:
        assert checkpointer.resume() > 301


def test_close_raises_what_the_last_save_failed_with(small_disk):
    toy = big_toy()
    checkpointer = toy.checkpointer(small_disk / "run")
    checkpointer.resume()
    fill(small_disk, MIB // 4)
    toy.train(checkpointer, range(5))
    with pytest.raises(OSError, match="close") as raised:
        checkpointer.close()
    assert raised.value.errno == errno.ENOSPC


def test_fail_after_ends_a_training_whose_saves_fail(small_disk):
    toy = big_toy()
    checkpointer = toy.checkpointer(small_disk / "run", fail_after="200ms")
    checkpointer.resume()
    fill(small_disk, MIB // 4)
    start = time.monotonic()
    with pytest.raises(OSError, match="before step") as raised:
        for step in range(1000):
            toy.train(checkpointer, [step])
            time.sleep(0.01)
    assert raised.value.errno == errno.ENOSPC
    assert time.monotonic() - start >= 0.2
    (small_disk / "filler").unlink()
    checkpointer.save(1000).durable()
    checkpointer.close()


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_a_training_whose_run_is_taken_away_goes_on(tmp_path, how, caplog):
    run, toy = tmp_path / "runs" / "gpt", big_toy()
    checkpointer = toy.checkpointer(run, every="1 steps")
    checkpointer.resume()
    toy.train(checkpointer, range(5))
    if how == "removed":
        while run.parent.exists():  # a save may write a file there meanwhile
            shutil.rmtree(run.parent, ignore_errors=True)
    else:
        run.rename(tmp_path / "moved")
    toy.train(checkpointer, range(5, 10))  # none of these steps raises
    checkpointer.close()
    assert "it is made anew, and training goes on saving there" in caplog.text
    expected = toy.model.weight.clone()
    if how == "moved":
        assert list(holdfast.open(tmp_path / "moved"))
        assert (tmp_path / "moved" / "holdfast.json").read_bytes() == (
            run / "holdfast.json").read_bytes()
    toy = big_toy()
    with toy.checkpointer(run) as checkpointer:
        assert checkpointer.resume() == 10
    assert torch.equal(toy.model.weight, expected)


def test_a_place_that_another_training_has_taken_is_left_alone(tmp_path):
    toy, other = big_toy(), big_toy()
    checkpointer = toy.checkpointer(tmp_path / "run", every="1 steps")
    checkpointer.resume()
    toy.train(checkpointer, range(3))
    checkpointer.save(2).durable()
    (tmp_path / "run").rename(tmp_path / "moved")
    with other.checkpointer(tmp_path / "run", every="1 steps") as beside:
        assert beside.resume() == 0
        other.train(beside, range(3))
        with pytest.raises(holdfast.ConflictError, match="another training has begun the run"):
            for step in range(3, 10):
                toy.train(checkpointer, [step])
                time.sleep(0.01)
            checkpointer.save(10).durable()
        checkpointer.leave(None)
        other.train(beside, range(3, 6))
    toy = big_toy()
    with toy.checkpointer(tmp_path / "run") as checkpointer:
        assert checkpointer.resume() == 6


def test_what_is_no_duration_is_refused(tmp_path):
    with pytest.raises(ValueError, match="fail_after"):
        Toy().checkpointer(tmp_path, fail_after="soon")


def test_retention_makes_room_before_a_save_is_given_up(small_disk):
    """The disk has room for two steps. A third fits only after the first is removed."""
    # 3.1 MB with the moments of the optimizer.
    run, toy = small_disk / "run", Toy(nn.Linear(512, 512))
    with toy.checkpointer(run, keep=2) as checkpointer:
        checkpointer.resume()
        for step in range(4):
            toy.step()
            checkpointer.save(step).durable()
        assert sorted(path.name for path in run.glob("step-*")) == ["step-00000002",
                                                                    "step-00000003"]
    with toy.checkpointer(run, keep=1) as checkpointer:
        checkpointer.resume()
        fill(small_disk, 0)
        with pytest.raises(OSError):
            for step in (4, 5, 6):
                checkpointer.save(step).durable()
        # Only the newest step is left.
        assert [path.name for path in run.glob("step-*")] == ["step-00000003"]
        (small_disk / "filler").unlink()
        toy.train(checkpointer, [7])


def fill_up(rank, world, folder):
    """Trains until the disk is full. Returns the numbers of saved steps, and the errors raised."""
    toy = Toy(DistributedDataParallel(nn.Linear(256, 256)))
    seen = []
    checkpointer = toy.checkpointer(f"{folder}/run", in_flight=1, fail_after=0)
    checkpointer.resume()
    for step in range(8):
        toy.step()
        try:
            save = checkpointer.save(step)
            seen.append(step)
        except OSError as error:
            seen.append((error.errno, str(error)))
        if step == 0:
            save.durable()
            if rank == 0:
                fill(pathlib.Path(folder), MIB // 8)
        torch.distributed.barrier()
    try:
        checkpointer.close()
    except OSError as error:
        seen.append((error.errno, str(error)))
    return seen


def test_failures_of_the_background_are_raised_on_all_ranks_alike(small_disk):
    seen = run_ranks(3, fill_up, str(small_disk))
    failures = [[one[0] for one in of_rank if isinstance(one, tuple)] for of_rank in seen]
    assert failures[0] and set(failures[0]) == {errno.ENOSPC}
    assert failures == [failures[0]] * 3
    steps = [[one for one in of_rank if isinstance(one, int)] for of_rank in seen]
    assert steps == [steps[0]] * 3


def stop(rank, world, run, number, victim):
    """Trains until a signal. Returns first and last step,
    exit code, and what the user's handler saw."""
    torch.manual_seed(0)
    seen = []
    signal.signal(number, lambda *_: seen.append("mine"))
    toy = Toy(DistributedDataParallel(nn.Linear(4, 4)))
    checkpointer = toy.checkpointer(run, every="1000 steps")
    start = checkpointer.resume()
    step = start
    try:
        while True:
            toy.step()
            if rank == victim and step == start + 3:
                os.kill(os.getpid(), number)
            checkpointer.step(step)
            step += 1
    except SystemExit as end:
        return start, step, end.code, seen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_signal_to_one_rank_stops_all_at_the_same_step(tmp_path, number, victim):
    first = run_ranks(3, stop, str(tmp_path), number, victim)
    assert len({(start, step, code) for start, step, code, _ in first}) == 1
    start, last, code, _ = first[0]
    assert (start, code) == (0, 143)
    assert 3 <= last
    assert [seen for *_, seen in first] == [["mine"] if r == victim else [] for r in range(3)]
    assert (tmp_path / f"step-{last:08}").is_dir()
    second = run_ranks(3, stop, str(tmp_path), number, victim)
    assert {start for start, *_ in second} == {last + 1}


def fail_on_rank_1(rank, world, run):
    """Trains. Returns the exception that ended this rank, and the notes on it."""
    toy = Toy(DistributedDataParallel(nn.Linear(4, 4)))
    try:
        with toy.checkpointer(run, every="1000 steps", timeout=1000) as checkpointer:
            checkpointer.resume()
            toy.step()
            checkpointer.save(0).durable()
            if rank == 1:
                raise KeyError("of rank 1")
            toy.step()
            checkpointer.save(1)
    except (KeyError, holdfast.UnavailableError) as error:
        return type(error).__name__, str(error), getattr(error, "__notes__", [])


def test_a_rank_that_fails_leaves_at_once_and_the_others_hear_of_it(tmp_path):
    first, second, third = run_ranks(3, fail_on_rank_1, str(tmp_path))
    assert second == ("KeyError", "'of rank 1'", [])
    for name, text, _ in (first, third):
        assert name == "UnavailableError" and "is gone" in text
    assert (tmp_path / "step-00000000").is_dir()


def exit_without_close(rank, world, run):
    toy = Toy(DistributedDataParallel(nn.Linear(4, 4)))
    checkpointer = toy.checkpointer(run, every="1000 steps", timeout=1000)
    checkpointer.resume()
    toy.step()
    checkpointer.save(0)
    _end_process(weakref.ref(checkpointer._closing))


def test_an_exit_without_close_commits_the_last_save(tmp_path):
    run_ranks(3, exit_without_close, str(tmp_path))
    assert (tmp_path / "step-00000000").is_dir()


def stop_after_the_last_step(rank, world, run):
    toy = Toy(DistributedDataParallel(nn.Linear(4, 4)))
    seen = []
    signal.signal(signal.SIGTERM, lambda *_: seen.append("mine"))
    checkpointer = toy.checkpointer(run, every="1000 steps")
    checkpointer.resume()
    toy.step()
    checkpointer.save(0)
    os.kill(os.getpid(), signal.SIGTERM)
    checkpointer.close()
    return seen


def test_a_handler_hears_once_of_a_signal_after_the_last_step(tmp_path):
    assert run_ranks(2, stop_after_the_last_step, str(tmp_path)) == [["mine"]] * 2
    assert (tmp_path / "step-00000000").is_dir()


END = """
import os, signal, sys, torch, holdfast
model = torch.nn.Linear(4, 4)
checkpointer = holdfast.Checkpointer(sys.argv[1], model=model, every="1 steps")
checkpointer.resume()
checkpointer.step(0)
os.kill(os.getpid(), signal.SIGTERM)
checkpointer.close()
print("went on")
"""


def test_a_signal_after_the_last_step_ends_the_process_when_all_is_durable(tmp_path):
    done = subprocess.run([sys.executable, "-c", END, str(tmp_path)], capture_output=True,
                          text=True)
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert done.stdout == ""
    assert (tmp_path / "step-00000000").is_dir()


def test_the_save_at_a_stop_is_made_where_others_are_skipped(tmp_path):
    toy = big_toy()
    checkpointer = toy.checkpointer(tmp_path, backpressure="skip", in_flight=1)
    checkpointer.resume()
    with pytest.raises(SystemExit) as stopped:
        for step in range(4):
            toy.step()
            if step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            checkpointer.step(step)
    assert stopped.value.code == 143
    assert (tmp_path / "step-00000003").is_dir()
