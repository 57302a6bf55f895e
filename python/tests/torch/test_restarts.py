"""What a new process learns from the way in which earlier processes ended."""

import json
import os
import signal

import pytest
import torch
from ranks import RankError, run_ranks

import holdfast


def train(rank, world, run, end):
    """Trains, writes what it learned about earlier processes, and ends in the given way."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.Checkpointer(run, model=model, optimizer=optimizer, every="young") as ck:
        start = ck.resume()
        for step in range(start, start + 8):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            ck.step(step)
        (run / "learned").write_text(ck._saves.job.explain())
        if end == "kill":
            ck.save(step).durable()  # no step is lost, but it is a failure nevertheless
            os.kill(os.getpid(), signal.SIGKILL)
        if end == "raise":
            raise RuntimeError("as intended")
        if end == "stop":
            os.kill(os.getpid(), signal.SIGTERM)
            for step in range(start + 8, start + 100):
                optimizer.step()
                ck.step(step)  # exits


def end_by(run, end):
    if end == "close":
        run_ranks(1, train, run, end)
        return
    with pytest.raises(RankError):
        run_ranks(1, train, run, end)


def test_kills_and_errors_are_failures_and_orderly_ends_are_not(tmp_path):
    run = tmp_path / "run"
    failures = 0
    for end in ("kill", "kill", "close", "raise", "stop", "kill", "close"):
        end_by(run, end)
        assert f"from {failures} failures" in (run / "learned").read_text()
        failures += end in ("kill", "raise")
    lines = (run / "events" / "rank-0000.jsonl").read_text().splitlines()
    names = [json.loads(line)["event"] for line in lines]
    assert names.count("job_opened") == 7 and names.count("job_closed") == 3
