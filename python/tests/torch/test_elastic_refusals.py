"""What cannot be changed is refused with a sentence, and the job goes on as it was."""

import json
import os
import signal
import time

import pytest
import torch
from command import output_of
from elastic_ran import SCRIPT, Left
from ranks import run_ranks
from recovered_jobs import begin_launch
from test_elastic import resize
from test_launch_hosts import free_port
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast
from holdfast.resize.control import Control


def test_what_cannot_be_is_refused_with_a_sentence_and_no_step_is_lost(tmp_path):
    run, said = tmp_path / "run", tmp_path / "said"
    process = begin_launch(["-n", "2", "--most", "4", SCRIPT, run, "dp=2", "", "10000", "", "other model"], said)
    assert resize(run, until=process).returncode == 0, said.read_text()
    for to, why in [
        ("dp=25", "a batch of 24 for 25 ranks leaves some without a sample"),
        ("dp=5", "5 workers are wanted, and there are at most 4; expected a smaller configuration, or "
                 "holdfast launch --most 5"),
        ("tp=3", "ValueError: 4 heads, and tp=3; expected a divisor"),
        ("pp=2", "ValueError: the other ranks: different: model."),
    ]:
        ran = resize(run, "--to", to)
        assert ran.returncode == 1 and why in ran.stderr and ran.stderr.count("\n") == 1, ran
    for wanted, why in [
        ({"epoch": Control(run).epoch() - 1}, "the request is for a job that has ended"),
        ({"to": "xp=2"}, "configuration 'xp=2'; expected degrees"),
        ({"to": 7}, "configuration 7; expected degrees"),
        ({"avoid": ["x"]}, "avoid: ['x']; expected a list of numbers"),
    ]:
        assert why in ask(run, **wanted)["why"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143, said.read_text()
    made = Left(run)
    assert set(made.configurations().values()) == {"tp=1,pp=1,dp=2"}
    assert sorted(made.losses()) == list(range(len(made.losses())))
    assert made.check_bits() == 2  # of the models that build() has refused to make, or made smaller


def ask(run, **wanted):
    """The answer to a request that was written by hand."""
    control, id = Control(run), "by0hand"
    control._write(f"request-{id}.json", {"id": id, "epoch": control.epoch(), "to": "dp=1", **wanted})
    until = time.monotonic() + 20
    while (answer := control.read_answer(id)) is None or answer["state"] != "refused":
        assert time.monotonic() < until
        time.sleep(0.05)
    (run / "control" / f"answer-{id}.json").unlink()
    return answer


def build_replica(mesh):
    return DistributedDataParallel(nn.Linear(4, 2), process_group=mesh.get_group("dp"))


def train_under_torchrun(rank, world, run, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    job = holdfast.Elastic(build_replica, "dp=2", backend="gloo")
    optimizer = torch.optim.SGD(job.model.parameters(), 0.1)
    ck = holdfast.Checkpointer(run, model=job, optimizer=optimizer)
    for step in range(ck.resume(), 3):
        job.model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        ck.step(step)
    with pytest.raises(ValueError, match="was not started by holdfast launch"):
        job.resize("dp=1")
    with pytest.raises(ValueError, match="tp=1,pp=1,dp=1: has 1 ranks; expected 2"):
        holdfast.Elastic(build_replica, "dp=1")
    ck.close()
    return job.parallel, job.rank


def test_under_torchrun_elastic_only_builds(tmp_path):
    made = run_ranks(2, train_under_torchrun, str(tmp_path), free_port(), backend="")
    assert made == [("tp=1,pp=1,dp=2", 0), ("tp=1,pp=1,dp=2", 1)]
    assert json.loads(output_of("show", tmp_path, "--json"))["manifest"]["parallel"] == "tp=1,pp=1,dp=2"
    no_job = resize(tmp_path, "--to", "dp=1")
    assert no_job.returncode == 4, no_job
