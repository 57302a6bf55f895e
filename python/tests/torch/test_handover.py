"""A job that is asked to stop leaves its state in memory, and the next one goes on with it: on
another number of ranks, with another cut, and if the pieces lie on several hosts. Here each host is
a folder of its own, as its /dev/shm would be."""

import json
import logging
import os
import shutil
import stat
import subprocess
import sys

import pytest
from handed_over import Training, gathered, stop, undisturbed
from ranks import run_ranks
from training import Toy, clear

MORE = 3  # steps of a job that is not asked to stop
LONG = pytest.mark.skipif(not os.environ.get("HOLDFAST_LONG"), reason="needs HOLDFAST_LONG=1")


def live(rank, world, run, memories, shape, stops, options=None, resume=None):
    """Trains for some steps, or until it has stopped. Returns where it began, its tensors at the
    end or its exit code, and what was said."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("holdfast").addHandler(handler)
    training = Training(run, memories[rank], *shape, **(options or {}))
    start = training.checkpointer.resume(**(resume or {}))
    try:
        if stops:
            if rank == world - 1:
                training.checkpointer.step_calls.add(start + 1, stop)
            training.train(start, start + 10_000)
        training.train(start, start + MORE)
    except SystemExit as error:
        return start, error.code, said
    training.checkpointer.close(save=False)
    return start, gathered(training.model, training.optimizer), said


def run_job(world, *args):
    """Returns what all ranks return, which is the same but for what is said."""
    outcomes = run_ranks(world, live, *args)
    for outcome in outcomes:
        assert outcome[:2] == outcomes[0][:2]
    return outcomes[0]


def adoptions(run):
    """How many hosts there were, each time that the state came from memory."""
    lines = (run / "events" / "rank-0000.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    return [event["hosts"] for event in events if event["event"] == "adopted_from_memory"]


def hosts(tmp_path, *numbers):
    made = [tmp_path / f"host-{number}" for number in numbers]
    for folder in made:
        folder.mkdir(exist_ok=True)
    return made


def steps_on_disk(run):
    return sorted(path.name for path in run.glob("step-*"))


def test_two_ranks_leave_what_three_and_then_four_go_on_with(tmp_path):
    run, memory = tmp_path / "run", hosts(tmp_path, 0, 0, 0, 0)
    first, code, said = run_job(2, run, memory, (2, 1), True)
    assert (first, code) == (0, 143)
    assert "left in memory" in said[-1]
    (place,) = memory[0].iterdir()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert place.name == "holdfast-" + json.loads((run / "holdfast.json").read_text())["run"]
    second, code, _ = run_job(3, run, memory, (3, 1), True)
    assert second > 0 and code == 143
    third, end, _ = run_job(4, run, memory, (2, 2), False)
    assert third > second and end == undisturbed(third + MORE)
    assert steps_on_disk(run) == [] and adoptions(run) == [1, 1]


def test_between_hosts_the_pieces_travel_and_a_lost_one_is_named(tmp_path):
    run, options = tmp_path / "run", {"every": "2 steps"}
    assert run_job(4, run, hosts(tmp_path, 0, 0, 1, 1), (4, 1), True, options)[1] == 143
    start, code, said = run_job(3, run, hosts(tmp_path, 1, 0, 2), (3, 1), True, options)
    assert start > 0 and code == 143
    assert not any("passed over" in line for line in said) and adoptions(run) == [3]
    (place,) = (tmp_path / "host-1").iterdir()
    shutil.rmtree(place)
    kept = steps_on_disk(run)
    begun, end, said = run_job(2, run, hosts(tmp_path, 0, 2), (1, 2), False, options)
    (line,) = [line for line in said if "passed over" in line]
    assert " was in rank-0000.safetensors, which no host of this job has in its memory" in line
    assert kept[-1] == f"step-{begun - 1:08}"
    assert end == undisturbed(begun + MORE)


def test_without_a_place_in_memory_it_is_saved_to_disk(tmp_path):
    run, memory = tmp_path / "run", [tmp_path / "none"] * 2
    _, code, said = run_job(2, run, memory, (2, 1), True)
    assert code == 143 and len(steps_on_disk(run)) == 1
    assert any("is saved to disk, as it cannot stay in memory" in line for line in said)
    start, end, _ = run_job(1, run, memory, (1, 1), False)
    assert end == undisturbed(start + MORE)


def test_a_step_that_was_gone_back_to_is_not_gone_back_to_again(tmp_path):
    run, memory, options = tmp_path / "run", hosts(tmp_path, 0), {"every": "1 steps", "keep": None}
    run_job(1, run, memory, (1, 1), False, options)
    asked = {"step": 0}
    start, code, _ = run_job(1, run, memory, (1, 1), True, {"every": "never"}, asked)
    assert (start, code) == (1, 143)
    again, _, said = run_job(1, run, memory, (1, 1), False, {"every": "never"}, asked)
    assert again > start, said


def test_what_is_only_in_memory_is_saved_at_the_end(tmp_path):
    run, memory = tmp_path / "run", hosts(tmp_path, 0)
    run_job(1, run, memory, (1, 1), True, {"every": "1 steps"})
    before = steps_on_disk(run)
    run_ranks(1, resume_and_close, run, memory[0])
    assert len(steps_on_disk(run)) == len(before) + 1
    assert not list(memory[0].iterdir())


def resume_and_close(rank, world, run, memory):
    training = Training(run, memory, every="1 steps", keep=None)
    training.checkpointer.resume()
    training.checkpointer.close()


@pytest.mark.parametrize("handover", [1, "", b"/dev/shm", None])
def test_what_is_no_folder_is_refused(tmp_path, handover):
    with pytest.raises(TypeError) as error:
        Toy().checkpointer(tmp_path / "run", handover=handover)
    assert clear(error, f"handover={handover!r}; expected True, False or a folder in memory")
