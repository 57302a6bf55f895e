"""Campaigns with holdfast.campaign.serve(), and the command line around them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy
import pytest

import holdfast
from holdfast import campaign

PROGRAM = Path(holdfast._native.__file__).parents[2] / "bin" / "holdfast"
PACKAGE = Path(holdfast.__file__).parents[1]
TRIALS = 40 if os.environ.get("HOLDFAST_LONG") else 8

# Fits a matrix to fixed data. Only the first rank writes. The third word makes trouble.
TRAIN = '''
import json, os, signal, sys
import h5py
import numpy
import holdfast

TROUBLE = sys.argv[1]
calls = []


def trial(checkpoint, log, state):
    calls.append(checkpoint)
    if TROUBLE == "interrupt" and len(calls) == 4:  # the golden run was the first
        os.kill(os.getppid(), signal.SIGINT)
    contents = holdfast.open(checkpoint)
    weight, momentum = contents.read("model.weight"), contents.read("momentum_buffer")
    rank = int(os.environ.get("RANK", "0"))
    if TROUBLE == "raise" and rank == 1 and not numpy.abs(weight).max() < 100:
        raise ValueError("a large weight")
    data = numpy.random.default_rng(1).normal(size=(64, 4)).astype(numpy.float32)
    target = data @ numpy.ones((4, 3), numpy.float32)
    lines = []
    with numpy.errstate(all="ignore"):
        for step in range(1, 11):
            error = data @ weight - target
            lines.append({"step": step, "loss": float((error * error).mean())})
            momentum = numpy.float32(0.5) * momentum + data.T @ error / numpy.float32(64)
            weight = weight - numpy.float32(0.1) * momentum
    lines[-1]["accuracy"] = float((numpy.abs(error) < 0.5).mean())
    if rank != 0:
        return
    with open(log, "w") as out:
        out.writelines(json.dumps(line) + "\\n" for line in lines)
    if state:
        with open(state, "wb") as out:
            numpy.savez(out, weight=weight, momentum=momentum)


if len(sys.argv) > 2:
    trial(*sys.argv[2:])
else:
    holdfast.campaign.serve(trial)
'''

# Starts two ranks, as torchrun does.
LAUNCH = '''
import os, subprocess, sys

ranks = [subprocess.Popen([sys.executable, *sys.argv[1:]],
                          env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"})
         for rank in range(2)]
sys.exit(max(rank.wait() for rank in ranks))
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = numpy.random.default_rng(0)
    numpy.savez(tmp_path / "base.npz", **{
        "model.weight": rng.normal(size=(4, 3)).astype(numpy.float32),
        "momentum_buffer": numpy.zeros((4, 3), numpy.float32)})
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "launch.py").write_text(LAUNCH)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def run(out, *command, trials=TRIALS, options=(), code=0):
    words = [PROGRAM, "campaign", "run", "base.npz", "-o", out, "--trials", str(trials),
             "--checksums", "consistent", "--seed", "3", *options, "--", sys.executable, *command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def records(out):
    lines = [json.loads(line) for line in (Path(out) / "trials.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds")
    return sorted(lines, key=lambda line: line["trial"])


def analyse(*words):
    done = subprocess.run([PROGRAM, "campaign", "analyse", *words, "--json"], capture_output=True,
                          text=True, check=True)
    return json.loads(done.stdout)


def test_served_trials_are_those_of_new_processes(folder):
    run("fresh", "train.py", "", "{checkpoint}", "{log}", "{state}")
    run("served", "train.py", "", options=["--serve", "--state"])
    assert len(records("fresh")) == TRIALS
    assert records("served") == records("fresh")
    assert set(records("fresh")[0]) == {
        "trial", "seed", "flips", "outcome", "steps", "final_loss", "final_accuracy",
        "first_accuracy", "why", "distance"}
    assert set(records("fresh")[0]["flips"][0]) == {
        "tensor", "role", "role_guessed", "layer", "element", "dtype", "bits", "mask", "before",
        "after"}


def test_an_interrupted_campaign_keeps_the_trials_that_it_has_made(folder):
    stopped = run("out", "train.py", "interrupt", options=["--serve"], code=-signal.SIGINT)
    assert "2 trials are not checked yet" in stopped.stderr
    assert [record["trial"] for record in records("out")] == [0, 1, 2]


def test_the_log_and_the_analysis_are_for_programs_too(folder):
    done = run("out", "train.py", "", options=["--serve", "--json", "--bits", "30"], trials=4)
    report = json.loads(done.stdout)
    assert (report["version"], report["recorded"], report["stopped"]) == (1, 4, False)
    settings = json.loads((folder / "out" / "campaign.json").read_text())
    assert settings["golden"][-1]["step"] == 10
    assert settings["settings"]["bits"] == "30"
    report = analyse("out")
    assert report["predicted_nev"] == 1
    assert report["trials"] == sum(one["count"] for one in report["outcomes"].values()) == 4
    pairs = analyse("out", "out")
    assert (pairs["pairs"], pairs["p"], pairs["difference"]) == (4, 1, 0)
    assert campaign.analyse("out")["outcomes"] == report["outcomes"]
    assert campaign.analyse(folder / "out", against=["out"])["pairs"] == 4
    with pytest.raises(holdfast.NotFoundError, match="none"):
        campaign.analyse("none")


def test_all_ranks_of_a_job_serve(folder):
    run("one", "train.py", "", options=["--serve"])
    run("two", "launch.py", "train.py", "", options=["--serve"])
    assert records("two") == records("one")


def test_a_rank_that_fails_alone_makes_the_trial_fail(folder):
    run("out", "launch.py", "train.py", "raise",
        options=["--serve", "--bits", "30", "--tensors", "model.*"], trials=2)
    assert [line["outcome"] for line in records("out")] == ["crashed"] * 2
    assert "ValueError: a large weight" in records("out")[0]["why"]


def test_a_campaign_counts_the_chunks_that_were_never_written(folder):
    with h5py.File("base.h5", "w") as file:
        sparse = file.create_dataset("w", (64, 16), "f4", chunks=(4, 16), fillvalue=1.0)
        sparse[8:12] = 2.0
    (folder / "read.py").write_text("""import sys
assert open(sys.argv[1], "rb").read(4)
open(sys.argv[2], "w").write('{"step": 1, "loss": 0.5}\\n')
""")

    def campaign(out, *options):
        words = [PROGRAM, "campaign", "run", "base.h5", "-o", out, "--trials", "4", "--seed", "5",
                 "--checksums", "raw", *options, "--", sys.executable, "read.py", "{checkpoint}",
                 "{log}"]
        return subprocess.run(words, capture_output=True, text=True, timeout=300, check=True).stdout

    counted = json.loads(campaign("a", "--json"))["unwritten"]
    # 15 of 16 chunks were never written, so about 15 sites are passed over before each flip.
    assert counted > 8
    said = campaign("b")
    assert f"{counted} drawn sites were passed over, because they were never written" in said
    flips = [record["flips"] for record in records("a") if "flips" in record]
    assert all(flip["element"] // 64 == 2 for some in flips for flip in some)


def test_serving_needs_a_campaign(monkeypatch):
    monkeypatch.delenv("HOLDFAST_CAMPAIGN", raising=False)
    with pytest.raises(ValueError, match="HOLDFAST_CAMPAIGN is not set"):
        campaign.serve(lambda checkpoint, log, state: None)


@pytest.mark.parametrize("variables, place", [
    ({}, (0, 1)),
    ({"RANK": "2", "WORLD_SIZE": "4"}, (2, 4)),
    ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, 2)),
    ({"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, (1, 4)),
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1)),  # a batch script, without srun
    ({"RANK": "x", "WORLD_SIZE": "4", "HOROVOD_RANK": "3", "HOROVOD_SIZE": "8"}, (3, 8)),
])
def test_launchers_tell_the_rank(variables, place):
    assert campaign._place(variables) == place


@pytest.mark.parametrize("words, sentence", [
    (["run", "base.npz"], "campaign run: -o is not given"),
    (["run", "base.npz", "-o", "out", "--trials", "2"], "--checksums is not given"),
    (["run", "base.npz", "-o", "out", "--checksums", "raw"], "--trials is not given"),
    (["run", "-o", "out", "--checksums", "raw", "--trials", "2"], "0 paths; expected one BASE"),
    (["fly"], '"fly" is no action; expected run or analyse'),
    (["analyse"], "no FOLDER"),
    (["analyse", "a", "b", "c"], "3 folders; expected one or two, or --strata"),
    (["analyse", "a", "b", "--parts", "--strata"], "more than one of --parts, --strata"),
    (["analyse", "a", "--converted"], "--converted without pairs; expected two campaigns"),
    (["analyse", "a", "b", "--against", "c"], "parts: 2 and 1; expected as many of both"),
    (["analyse", "a", "--", "python"], "a command is given; expected folders only"),
    (["run", "base.npz", "-o", "out", "--checksums", "raw", "--trials", "2"], "no command"),
    (["run", "base.npz", "-o", "out", "--checksums", "raw", "--trials", "x"], "x"),
    (["run", "base.npz", "-o", "out", "--checksums", "raw", "--trials", "2", "--deadline", "soon",
      "--", "true"], '--deadline: "soon" is no number'),
])
def test_wrong_calls_are_one_sentence(folder, words, sentence):
    done = subprocess.run([PROGRAM, "campaign", *words], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (folder / "out").exists()


def test_options_of_the_command_are_not_those_of_holdfast(folder):
    done = run("out", "train.py", "", "{checkpoint}", "{log}", "--json", trials=1)
    assert done.stdout.startswith("golden: 2 runs, bit-equal, ")
    assert (folder / "--json").exists()  # the program took it as the name of its state


# A network without a function that hides large numbers: a flip of the highest exponent bit always
# shows in the loss. All weights lie between 0.1 and 1, so no other bit makes one huge.
NETWORK = '''
import json
import h5py
import numpy
import holdfast


def trial(checkpoint, log, state):
    contents = holdfast.open(checkpoint)
    first, second = (contents.read(name).astype(float) for name in ("first", "second"))
    rng = numpy.random.default_rng(1)
    data, target = rng.normal(size=(32, 8)), 5 * rng.normal(size=(32, 2))
    with open(log, "w") as out, numpy.errstate(all="ignore"):
        for step in range(1, 6):
            inner = data @ first
            hidden = numpy.where(inner > 0, inner, 0.1 * inner)
            error = (hidden @ second - target) / 32
            print(json.dumps({"step": step, "loss": float((error * error).sum())}), file=out)
            back = (error @ second.T) * numpy.where(inner > 0, 1, 0.1)
            first, second = first - 1e-4 * data.T @ back, second - 1e-4 * hidden.T @ error


holdfast.campaign.serve(trial)
'''


@pytest.mark.skipif(TRIALS < 40, reason="takes a minute: HOLDFAST_LONG=1")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("flips", [1, 10, 100])
def test_the_rate_of_nev_is_that_of_the_highest_exponent_bit(folder, dtype, flips):
    rng = numpy.random.default_rng(2)
    numpy.savez("base.npz", **{name: (rng.uniform(0.1, 1, shape) * rng.choice([-1, 1], shape))
                               .astype(dtype)
                               for name, shape in (("first", (8, 16)), ("second", (16, 2)))})
    (folder / "network.py").write_text(NETWORK)
    run("out", "network.py", trials=385, options=["--serve", "--flips", str(flips)])
    seen = analyse("out")
    bits = numpy.dtype(dtype).itemsize * 8
    assert seen["predicted_nev"] == pytest.approx(1 - (1 - 1 / bits) ** flips)
    low, high = seen["outcomes"]["N-EV"]["interval"]
    assert low <= seen["predicted_nev"] <= high
    for trial in records("out") if flips == 1 else ():
        struck = any(bits - 2 in flip["bits"] for flip in trial["flips"])
        assert (trial["outcome"] == "N-EV") == struck, trial
